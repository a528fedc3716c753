"""The sign-up: what the page does, when the mail is published, what the task does at each delivery."""

import logging
import time
from datetime import timedelta

import pytest
import redis
from celery.exceptions import Retry
from django.core.cache import cache
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from onboarding import services
from onboarding.models import Submission
from onboarding.tasks import publish_overdue_welcomes, send_welcome_email
from service.mail import MailNotSent

pytestmark = pytest.mark.django_db(transaction=True)

URL = reverse("onboarding:sign_up")
ZOE = {"name": "Zoë", "email": "zoe@example.org"}


def stored(**fields) -> Submission:
    return Submission.objects.create(**{**ZOE, **fields})


class TestPage:
    """The form, and what it stores and publishes."""

    def test_shows_labels_for_all_fields(self, client):
        page = client.get(URL).content.decode()
        assert all(f'<label for="id_{field}">' in page for field in ("name", "email"))

    def test_stores_publishes_and_redirects(self, client, waiting):
        response = client.post(URL, ZOE)
        assert (response.status_code, response.url) == (302, reverse("onboarding:thanks"))
        assert client.get(response.url).status_code == 200
        submission = Submission.objects.get()
        assert (submission.name, submission.email, submission.welcome_due_at) == (
            "Zoë",
            "zoe@example.org",
            None,
        )
        assert waiting("email") == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"email": ""},
            {"email": "nobody"},
            {"email": "a@b.example\r\nBcc: c@d.example"},
            {"name": "Zoë\r\nBcc: c@d.example"},
            {"name": "Zoë\x00"},
            {"name": "Zo\u2028ë"},
            {"name": "Z" * 101},
            {"email": f"{'z' * 300}@example.org"},
        ],
    )
    def test_refuses(self, client, waiting, wrong):
        response = client.post(URL, {**ZOE, **wrong})
        assert response.status_code == 200
        assert 'class="errorlist"' in response.content.decode()
        assert not Submission.objects.exists()
        assert not waiting("email")

    def test_escapes_what_was_typed(self, client):
        page = client.post(URL, {"name": '"><script>', "email": "x"}).content.decode()
        assert "<script>" not in page

    def test_wants_a_csrf_token(self, client):
        client.handler.enforce_csrf_checks = True
        assert client.post(URL, ZOE).status_code == 403
        assert not Submission.objects.exists()

    def test_follows_no_redirect_of_a_stranger(self, client):
        assert client.post(f"{URL}?next=https://evil.example/", ZOE).url == reverse("onboarding:thanks")


class TestPublishing:
    """The mail is published after the commit, and never lost between the row and the broker."""

    def test_nothing_before_the_commit_and_nothing_after_a_rollback(self, waiting):
        with transaction.atomic():
            services.sign_up(Submission(**ZOE))
            assert not waiting("email")
        assert waiting("email") == 1
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            services.sign_up(Submission(**ZOE))
            raise ZeroDivisionError
        assert waiting("email") == 1

    def test_broker_down(self, client, no_broker, caplog):
        begun = time.monotonic()
        assert client.post(URL, ZOE).status_code == 302
        assert time.monotonic() - begun < 3
        assert Submission.objects.get().welcome_due_at
        assert "was not published" in caplog.text

    def test_broker_paused(self, client, broker):
        redis.Redis("127.0.0.1", port=broker.port).client_pause(60_000)
        begun = time.monotonic()
        assert client.post(URL, ZOE).status_code == 302
        assert time.monotonic() - begun < 3
        assert Submission.objects.get().welcome_due_at

    def test_an_error_that_nobody_thought_of_is_not_the_visitors(self, client, monkeypatch):
        monkeypatch.setattr(services, "publish", lambda *args: 1 / 0)
        assert client.post(URL, ZOE).status_code == 302
        assert Submission.objects.get().welcome_due_at

    def test_sweep_publishes_what_is_due(self, deliver, waiting):
        due = stored(welcome_due_at=timezone.now() - timedelta(seconds=1))
        stored(welcome_due_at=timezone.now() + timedelta(minutes=1))
        stored()
        assert deliver(publish_overdue_welcomes) == 1
        assert deliver(publish_overdue_welcomes) == 0
        assert waiting("email") == 1
        due.refresh_from_db()
        assert due.welcome_due_at is None

    def test_sweep_claims_so_that_two_at_once_publish_once(self, monkeypatch):
        stored(welcome_due_at=timezone.now())
        published = []

        def publish(task, *args):
            published.append(args)
            if len(published) == 1:
                services.publish_overdue_welcomes()  # a second sweep, while the first is at it
            return True

        monkeypatch.setattr(services, "publish", publish)
        services.publish_overdue_welcomes()
        assert len(published) == 1

    def test_sweep_that_read_the_row_before_another_claimed_it_leaves_it(self, monkeypatch, waiting):
        stored(welcome_due_at=timezone.now())
        claims = []
        update = type(Submission.objects.all()).update

        def other_sweep_first(rows, **values):
            if not claims:
                claims.append(1)
                services.publish_overdue_welcomes()
            return update(rows, **values)

        monkeypatch.setattr(type(Submission.objects.all()), "update", other_sweep_first)
        assert services.publish_overdue_welcomes() == 0
        assert waiting("email") == 1

    def test_sweep_of_a_killed_publisher_is_repeated(self, monkeypatch):
        submission = stored(welcome_due_at=timezone.now())
        monkeypatch.setattr(services, "publish", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            services.publish_overdue_welcomes()
        submission.refresh_from_db()
        assert timezone.now() < submission.welcome_due_at <= timezone.now() + services.SWEEP_AFTER

    def test_sweep_gives_up_at_once_without_a_broker(self, no_broker, caplog):
        for _ in range(5):
            stored(welcome_due_at=timezone.now())
        assert services.publish_overdue_welcomes() == 0
        assert caplog.text.count("was not published") == 1
        assert not Submission.objects.filter(welcome_due_at=None).exists()


class TestDelivery:
    """The task: once as far as possible."""

    def test_two_runs_send_once(self, deliver, mailbox, caplog, settings):
        submission = stored()
        assert deliver(send_welcome_email, str(submission.pk)) == "sent"
        with caplog.at_level(logging.INFO):
            assert deliver(send_welcome_email, str(submission.pk), redelivered=True) == "already sent"
        assert "already sent; skipping redelivery" in caplog.text
        [mail] = mailbox.mails()
        assert mail["to"] == "zoe@example.org"
        assert mail["message_id"] == f"<welcome.{submission.pk}@{settings.DOMAIN}>"
        assert "Zoë" in mail["text"]

    def test_marker_is_looked_up_before_the_database(self, deliver, mailbox, django_assert_num_queries):
        submission = stored()
        deliver(send_welcome_email, str(submission.pk))
        with django_assert_num_queries(0):
            deliver(send_welcome_email, str(submission.pk))

    def test_submissions_are_independent(self, deliver, mailbox):
        for email in ("a@example.org", "b@example.org"):
            deliver(send_welcome_email, str(stored(email=email).pk))
        assert [mail["to"] for mail in mailbox.mails()] == ["a@example.org", "b@example.org"]

    def test_flushed_cache_lets_one_through(self, deliver, mailbox):
        submission = stored()
        for _ in range(3):
            deliver(send_welcome_email, str(submission.pk))
        cache.clear()
        for _ in range(2):
            deliver(send_welcome_email, str(submission.pk))
        assert len(mailbox.mails()) == 2
        assert len({mail["message_id"] for mail in mailbox.mails()}) == 1

    def test_run_that_did_not_send_leaves_no_marker_and_is_retried(self, deliver, mailbox, waiting):
        submission = stored()
        mailbox.behave(rcpt="550 no such user")
        assert isinstance(deliver(send_welcome_email, str(submission.pk)), Retry)
        assert waiting("email") == 1
        mailbox.behave()
        assert deliver(send_welcome_email, str(submission.pk), retries=1) == "sent"
        assert len(mailbox.mails()) == 1

    def test_retries_are_bounded(self, deliver, mailbox, waiting):
        mailbox.behave(data="554 no")
        result = deliver(send_welcome_email, str(stored().pk), retries=send_welcome_email.max_retries)
        assert isinstance(result, MailNotSent)
        assert not waiting("email")

    def test_unknown_is_logged_and_neither_retried_nor_marked(self, deliver, mailbox, waiting, caplog):
        submission = stored()
        mailbox.behave(data="drop")
        assert deliver(send_welcome_email, str(submission.pk)) == "unknown"
        assert "unknown, the server may have it" in caplog.text
        assert not waiting("email")
        mailbox.behave()
        assert deliver(send_welcome_email, str(submission.pk)) == "sent"  # no marker kept an operator from it
        assert len(mailbox.mails()) == 2

    def test_marker_that_cannot_be_written_is_logged(self, deliver, mailbox, caplog, monkeypatch):
        submission = stored()

        def refuse(*args, **kwargs):
            raise redis.ConnectionError("gone")

        monkeypatch.setattr("django.core.cache.backends.redis.RedisCache.set", refuse)
        assert deliver(send_welcome_email, str(submission.pk)) == "sent"
        assert "could not be written" in caplog.text

    def test_cache_away_is_retried_before_the_send(self, deliver, mailbox, waiting, no_cache):
        assert isinstance(deliver(send_welcome_email, str(stored().pk)), Retry)
        assert waiting("email") == 1
        assert not mailbox.mails()

    def test_missing_submission_is_logged(self, deliver, mailbox, waiting, caplog):
        assert deliver(send_welcome_email, str(Submission().pk)) == "no such submission"
        assert "nothing sent" in caplog.text
        assert not waiting("email") and not mailbox.mails()


def test_admin_shows_submissions(admin_client):
    submission = stored()
    listed = admin_client.get(reverse("admin:onboarding_submission_changelist"))
    assert submission.email in listed.content.decode()
    shown = admin_client.get(reverse("admin:onboarding_submission_change", args=[submission.pk]))
    assert submission.name in shown.content.decode()
