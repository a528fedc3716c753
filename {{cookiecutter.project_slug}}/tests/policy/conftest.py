"""Fixtures of the policy's tests."""

import pytest
from celery import _state

from redelivery import force
from redelivery.testing.servers import redis_server
from tests.policy.tools import POLICY, REDIS_CACHE, make_app, write_policy


@pytest.fixture
def policy_app(tmp_path, settings, monkeypatch):
    """Make an app under a policy, for this test: ``policy_app(text, tasks=..., CELERY_...=...)``."""
    monkeypatch.setattr(force, "_in_force", force._in_force)
    # Celery shares the tasks of every app with all others that are finalized later: here it gets its own only.
    own = {add for add in _state._on_app_finalizers if add.__module__ == "celery.app.builtins"}
    monkeypatch.setattr(_state, "_on_app_finalizers", own)
    settings.CACHES = {"default": REDIS_CACHE}

    def make(text=POLICY, **options):
        return make_app(write_policy(tmp_path, text), settings, **options)

    return make


@pytest.fixture
def redis_url():
    """The URL of a Redis server of the test's own."""
    with redis_server() as server:
        yield server.url()
