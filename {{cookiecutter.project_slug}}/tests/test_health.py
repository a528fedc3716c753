"""/healthz with each server down, and with one that is there and does not answer."""

import threading
import time

import pytest
import redis
from django.db import connections
from django.test import Client

from conftest import broker_at
from redelivery.testing.processes import free_port
from service import health, own

pytestmark = pytest.mark.django_db(transaction=True)


def answer(client) -> tuple[int, dict]:
    response = client.get("/healthz")
    return response.status_code, response.json()


def down(*servers: str) -> tuple[int, dict]:
    body = {server: "down" if server in servers else "ok" for server in health.SERVERS}
    return (503 if servers else 200), {"status": "down" if servers else "ok", **body}


def test_all_there(client):
    assert answer(client) == down()
    assert client.head("/healthz").status_code == 200
    assert "no-store" in client.get("/healthz").headers["Cache-Control"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_to_be_read(method):
    assert Client(enforce_csrf_checks=True).generic(method, "/healthz").status_code == 405


class TestDetail:
    """`/healthz?detail`: numbers for staff and for whoever has the token."""

    @pytest.fixture(autouse=True)
    def numbers(self, monkeypatch):
        there = "tests.test_health.answer_to_everything"
        monkeypatch.setattr(own, "DETAILS", {"answer": there, "broken": "os.nothing"})
        monkeypatch.delenv("HEALTH_TOKEN", raising=False)

    def test_not_for_everybody(self, client, monkeypatch):
        assert client.get("/healthz?detail").status_code == 403
        assert client.get("/healthz?detail", headers={"Authorization": "Bearer "}).status_code == 403
        monkeypatch.setenv("HEALTH_TOKEN", "s3cret")
        assert client.get("/healthz?detail", headers={"Authorization": "Bearer s3cre"}).status_code == 403

    def test_for_staff(self, admin_client):
        body = admin_client.get("/healthz?detail").json()
        assert body["answer"] == {"number": 42} and body["broken"] == {"error": "ImportError"}
        assert body["status"] == "ok"

    def test_for_the_token(self, client, monkeypatch):
        monkeypatch.setenv("HEALTH_TOKEN", "s3cret")
        response = client.get("/healthz?detail", headers={"Authorization": "Bearer s3cret"})
        assert response.json()["answer"] == {"number": 42}

    def test_without_a_database_there_is_only_the_rest(self, client, monkeypatch):
        monkeypatch.setitem(health.SERVERS, "database", lambda: 1 / 0)
        assert client.get("/healthz?detail").json()["database"] == "down"


def answer_to_everything() -> dict:
    return {"number": 42}


def test_broker_down(client, no_broker):
    assert answer(client) == down("broker")


def test_cache_down(client, no_cache):
    assert answer(client) == down("cache")


def test_database_down(client, monkeypatch):
    if connections["default"].vendor == "postgresql":
        monkeypatch.setitem(connections.settings["default"], "PORT", str(free_port()))
    else:
        monkeypatch.setitem(connections.settings["default"], "NAME", "/nowhere/db.sqlite3")
    assert answer(client) == down("database")


def test_all_down(client, no_broker, no_cache, monkeypatch):
    monkeypatch.setitem(health.SERVERS, "database", lambda: 1 / 0)
    assert answer(client) == down("database", "broker", "cache")


def test_paused_server_is_down_within_two_seconds_and_threads_do_not_pile_up(client, broker):
    redis.Redis("127.0.0.1", port=broker.port).client_pause(60_000)
    threads = threading.active_count()
    for _ in range(4):
        begun = time.monotonic()
        assert answer(client) == down("broker")
        assert time.monotonic() - begun < 2
        assert threading.active_count() <= threads + 1


def test_server_that_never_answers_is_asked_once(client, monkeypatch):
    asked, wake = [], threading.Event()

    def never() -> None:
        asked.append(1)
        wake.wait(30)

    monkeypatch.setitem(health.SERVERS, "database", never)
    monkeypatch.setattr(health, "TIMEOUT_S", 0.1)
    for _ in range(3):
        assert answer(client)[1]["database"] == "down"
    wake.set()
    assert len(asked) == 1


def test_no_password_in_answer_or_log(client, caplog, monkeypatch):
    def refuse() -> None:
        raise ValueError("cannot connect to postgres://user:hunter2@db/service")

    monkeypatch.setitem(health.SERVERS, "database", refuse)
    with broker_at(f"redis://:hunter2@127.0.0.1:{free_port()}/0"):
        response = client.get("/healthz")
    assert response.status_code == 503
    assert "no answer from the broker" in caplog.text and "no answer from the database" in caplog.text
    assert "hunter2" not in response.content.decode() + caplog.text


def test_answers_over_plain_http_where_pages_are_redirected(client, settings):
    settings.SECURE_SSL_REDIRECT = True
    assert client.get("/healthz").status_code == 200
    assert client.get("/").status_code == 301
