"""Whatever comes back over the wire: an adapter calls it unknown, raises nothing, and does not wait for ever."""

import json
import signal
import socket
import threading
from contextlib import contextmanager, suppress

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from payments.models import Payment, State
from payments.providers import NotFound, Request, Unknown, asked
from payments.providers.simulated import Simulated
from payments.providers.stripe import Stripe
from payments.tasks import reconcile_payment, send_payment

pytestmark = pytest.mark.django_db(transaction=True)
REQUEST = Request("key", "order", "cus_1", "pm_1", 1250, "EUR")


def http(body: bytes, status: str = "200 OK") -> list[bytes]:
    """A whole answer."""
    return [
        b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status.encode(), len(body)),
        body,
    ]


ANSWERS = {
    "nothing": [b""],
    "no HTTP": [b"\0\1\2 hello\r\n\r\n"],
    "a list": http(b"[]"),
    "a number": http(b"1e999"),
    "null": http(b"null"),
    "a text": http(b'"charged"'),
    "no object's fields": http(b"{}"),
    "fields of other kinds": http(
        b'{"status": ["charged"], "reference": {}, "error": [1], "id": [], "object": 3}'
    ),
    "no reference": http(b'{"status": "charged"}'),
    "reference null": http(b'{"status": "charged", "reference": null}'),
    "reference empty": http(b'{"status": "charged", "reference": ""}'),
    "too deep": http(b"[" * 60_000),
    "no text": http(b"\xff\xfe\x00"),
    "list of nonsense": http(
        b'{"object": "list", "data": [{"object": "payment_intent", "metadata": 7}], "has_more": true}'
    ),
    "error is a text": http(b'{"error": "no"}', "500 Oops"),
    "redirect": [b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"],
    "status that is none": [b"HTTP/1.1 9999 Oops\r\n\r\n"],
    "endless headers": [b"HTTP/1.1 200 OK\r\n", *[b"X: %b\r\n" % (b"x" * 1000)] * 2000],
}


@contextmanager
def server(pieces: list[bytes], pause_s: float = 0):
    """Answer every connection with these pieces; gives the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    for piece in pieces:
                        connection.sendall(piece)
                        if done.wait(pause_s):
                            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        done.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def adapter(name: str, port: int):
    """One of the adapters, pointed at a port."""
    url = f"http://127.0.0.1:{port}"
    return Simulated(url, 0.5) if name == "simulated" else Stripe("sk_test_1", 0.5, url)


@pytest.mark.parametrize("name", ["simulated", "stripe"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_proves_nothing(name, answer, payment):
    with server(ANSWERS[answer]) as port:
        one = adapter(name, port)
        assert type(asked(one.send, REQUEST)) is Unknown
        assert type(asked(one.read_back, REQUEST, payment.created_at)) in (Unknown, NotFound)
        # Only a list that is one and has no such payment says that it was not found.
        assert not (name == "simulated" and isinstance(one.read_back(REQUEST), NotFound))


@pytest.mark.parametrize("answer", ["a list", "too deep", "no reference"])
def test_the_payment_is_uncertain_and_stays_in_sight(answer, payment, deliver, monkeypatch):
    monkeypatch.setenv("PAYMENT_PROVIDER", "simulated")
    monkeypatch.setenv("PAYMENT_TIMEOUT_S", "0.5")
    with server(ANSWERS[answer]) as port:
        monkeypatch.setenv("PAYMENT_SIMULATOR_URL", f"http://127.0.0.1:{port}")
        assert deliver(send_payment, str(payment.pk)) == State.UNCERTAIN
        assert deliver(reconcile_payment, str(payment.pk), "1") == State.UNCERTAIN
    assert Payment.objects.get().due_at  # it is looked at again


def test_huge_answer_is_not_read_to_its_end():
    piece = b" " * 65536
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"
    with server([head, *[piece] * 100_000]) as port:
        assert type(adapter("simulated", port).send(REQUEST)) is Unknown


def test_slow_drip_ends_with_the_soft_time_limit(payment, monkeypatch):
    """Each byte is in time, and the whole is not: the soft limit strikes, and the payment is uncertain."""
    from payments import sending

    def strike(*_):
        raise SoftTimeLimitExceeded

    answer = json.dumps({"status": "charged", "reference": "x" * 500}).encode()
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer), *(bytes([b]) for b in answer)]
    monkeypatch.setenv("PAYMENT_PROVIDER", "simulated")
    monkeypatch.setenv("PAYMENT_TIMEOUT_S", "10")
    before = signal.signal(signal.SIGALRM, strike)
    try:
        with server(pieces, pause_s=0.1) as port:
            monkeypatch.setenv("PAYMENT_SIMULATOR_URL", f"http://127.0.0.1:{port}")
            signal.setitimer(signal.ITIMER_REAL, 1.5)
            assert sending.claim_and_send(payment) == State.UNCERTAIN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "SoftTimeLimitExceeded" in payment.evidence_set.get().seen
