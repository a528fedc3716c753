"""What became of a mail: each way in which an SMTP server can fail, against a server that fails in it."""

import logging
import socket
import threading
import time

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend

from redelivery.testing.processes import free_port
from service.mail import Outcome, deliver


def mail(**fields) -> EmailMessage:
    """Return a mail to send."""
    return EmailMessage(**{"subject": "Hello", "body": "Hello\n.\nAdele", "to": ["a@example.org"], **fields})


def test_sent(mailbox):
    assert deliver(mail()) is Outcome.SENT
    assert len(mailbox.mails()) == 1


@pytest.mark.parametrize(
    ("step", "answer", "outcome", "stored"),
    [
        ("mail", "451 later", Outcome.NOT_SENT, 0),
        ("mail", "550 not from you", Outcome.NOT_SENT, 0),
        ("mail", "drop", Outcome.NOT_SENT, 0),
        ("mail", "hold", Outcome.NOT_SENT, 0),
        ("rcpt", "450 greylisted", Outcome.NOT_SENT, 0),
        ("rcpt", "550 no such user", Outcome.NOT_SENT, 0),
        ("rcpt", "drop", Outcome.NOT_SENT, 0),
        ("rcpt", "hold", Outcome.NOT_SENT, 0),
        ("data", "451 later", Outcome.NOT_SENT, 0),
        ("data", "552 too big", Outcome.NOT_SENT, 0),
        ("data", "554 spam", Outcome.NOT_SENT, 0),
        ("data", "421 going down", Outcome.NOT_SENT, 0),
        ("data", "drop", Outcome.UNKNOWN, 1),
        ("data", "hold", Outcome.UNKNOWN, 1),
        ("quit", "drop", Outcome.SENT, 1),
        ("quit", "500 what?", Outcome.SENT, 1),
    ],
)
def test_server_fails_at(mailbox, settings, step, answer, outcome, stored):
    if answer == "hold":
        settings.EMAIL_TIMEOUT = 2
    mailbox.behave(**{step: answer})
    assert deliver(mail()) is outcome
    mailbox.behave()
    assert len(mailbox.mails()) == stored


def test_slow_goodbye_is_cut_short(mailbox, settings):
    settings.EMAIL_TIMEOUT = 8
    mailbox.behave(quit="sleep 6")
    begun = time.monotonic()
    assert deliver(mail()) is Outcome.SENT
    assert time.monotonic() - begun < 4


def test_nobody_listens(mailbox, settings):
    settings.EMAIL_PORT = free_port()
    assert deliver(mail()) is Outcome.NOT_SENT


def test_no_such_host(mailbox, settings):
    settings.EMAIL_HOST = "mail.invalid"
    assert deliver(mail()) is Outcome.NOT_SENT


def test_no_tls_where_it_is_wanted(mailbox, settings):
    settings.EMAIL_USE_TLS = True
    assert deliver(mail()) is Outcome.NOT_SENT


def test_no_login_where_it_is_wanted(mailbox, settings):
    settings.EMAIL_HOST_USER = settings.EMAIL_HOST_PASSWORD = "x"
    assert deliver(mail()) is Outcome.NOT_SENT


def test_backend_that_is_misconfigured(settings):
    settings.EMAIL_BACKEND = "no.such.Backend"
    assert deliver(mail()) is Outcome.NOT_SENT


@pytest.mark.parametrize(
    "answers",
    [
        [b""],  # nothing, not even a greeting
        [b"554 no\r\n"],
        [b"220 hi\r\n"],
        [b"220 hi\r\n", b"250 hi\r\n", b"250 ok\r\n", b"250 ok\r\n", b"554 no\r\n"],
    ],
)
def test_script_that_never_takes_the_mail(mailbox, settings, answers):
    with scripted_server(answers) as port:
        settings.EMAIL_PORT = port
        assert deliver(mail()) is Outcome.NOT_SENT


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n", b"25"])
def test_script_that_is_unclear_after_the_mail(mailbox, settings, answer):
    polite = [b"220 hi\r\n", b"250 hi\r\n", b"250 ok\r\n", b"250 ok\r\n", b"354 go on\r\n"]
    with scripted_server([*polite, answer]) as port:
        settings.EMAIL_PORT = port
        assert deliver(mail()) is Outcome.UNKNOWN


def test_header_injection_is_refused_before_the_server(mailbox):
    assert deliver(mail(subject="Hello\r\nBcc: b@example.org")) is Outcome.NOT_SENT
    assert deliver(mail(reply_to=["b@example.org\nBcc: c@example.org"])) is Outcome.NOT_SENT
    assert not mailbox.mails()


def test_header_injection_is_provably_not_sent_with_every_backend(settings):
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert deliver(mail(subject="Hello\r\nBcc: b@example.org")) is Outcome.NOT_SENT


def test_nobody_to_send_to(mailbox):
    assert deliver(mail(to=[])) is Outcome.NOT_SENT


@pytest.mark.parametrize("subject", ["Zoë " * 40, "Ω" * 200, "x" * 900])
def test_long_and_foreign_subjects(mailbox, subject):
    assert deliver(mail(subject=subject)) is Outcome.SENT
    assert mailbox.mails()[0]["subject"].split() == subject.split()


def test_soft_limit_after_the_mail_is_unknown(mailbox, monkeypatch):
    def accept_then_interrupt(self, messages):
        self.connection.sendmail("a@example.com", ["a@example.org"], b"Subject: x\r\n\r\nx")
        raise SoftTimeLimitExceeded()

    monkeypatch.setattr(EmailBackend, "send_messages", accept_then_interrupt)
    assert deliver(mail()) is Outcome.UNKNOWN
    assert len(mailbox.mails()) == 1


def test_soft_limit_before_the_mail_is_not_sent(mailbox, monkeypatch):
    def interrupt(self, messages):
        raise SoftTimeLimitExceeded()

    monkeypatch.setattr(EmailBackend, "send_messages", interrupt)
    assert deliver(mail()) is Outcome.NOT_SENT


def test_other_backends_say_nothing_about_a_failed_send(settings, monkeypatch):
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    assert deliver(mail()) is Outcome.SENT
    monkeypatch.setattr(
        "django.core.mail.backends.locmem.EmailBackend.send_messages", lambda self, messages: 1 / 0
    )
    assert deliver(mail()) is Outcome.UNKNOWN


def test_outcomes_are_logged_with_the_message_id(mailbox, caplog):
    mailbox.behave(data="554 spam")
    with caplog.at_level(logging.WARNING):
        deliver(mail(headers={"Message-ID": "<42@example.com>"}))
    assert "<42@example.com>: not sent: SMTPDataError" in caplog.text


def test_only_sent_is_true():
    assert [bool(outcome) for outcome in Outcome] == [True, False, False]


class scripted_server:
    """A server for one connection that gives these answers, one for each thing said, and then hangs up."""

    def __init__(self, answers: list[bytes]):
        self.answers = answers

    def __enter__(self) -> int:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self.socket.getsockname()[1]

    def serve(self) -> None:
        connection, _ = self.socket.accept()
        with connection:
            for number, answer in enumerate(self.answers):
                if number:
                    connection.recv(65536)
                connection.sendall(answer)

    def __exit__(self, *error) -> None:
        self.socket.close()
        self.thread.join(5)
