"""What all tests share: a Redis of their own, a mail server, and tasks run as a worker runs them.

There is no eager mode here: it would hide serialisation, commits, acknowledgement and retries.
"""

import os
import signal
import uuid
from contextlib import contextmanager

import pytest
import redis
from celery import current_app
from celery.app.trace import build_tracer
from django.test import override_settings
from kombu import pools

from redelivery import versions
from redelivery.testing.processes import free_port
from redelivery.testing.sandbox import BROKER_VARIABLES, celery_app
from redelivery.testing.servers import redis_server, smtp_sink

app = celery_app()

# What a shell starts in the background ignores Ctrl-C, and under nohup a hangup; so would all that the tests start.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@contextmanager
def broker_at(url: str):
    """Point the Celery app at another broker."""
    before = app.conf.broker_url
    for broker_url in (url, before):
        versions.put(app.conf, broker_url=broker_url)
        pools.reset()
        app._pool = app.amqp._producer_pool = None
        if broker_url == url:
            yield


@pytest.fixture(scope="session", autouse=True)
def shared_redis():
    """A Redis of the tests' own: database 0 is the broker, 1 the cache, whatever the environment says."""
    for name in BROKER_VARIABLES:
        os.environ.pop(name, None)
    with redis_server() as server:
        cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": server.url(1)}
        timeouts = {"OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1}}
        versions.put(app.conf, task_always_eager=False)
        if app.conf.result_backend:
            versions.put(app.conf, result_backend=server.url(2))
        with broker_at(server.url(0)), override_settings(CACHES={"default": cache | timeouts}):
            yield server


@pytest.fixture(autouse=True)
def empty_redis(shared_redis):
    """Nothing published and nothing cached when a test begins."""
    with redis.Redis("127.0.0.1", port=shared_redis.port) as client:
        client.flushall()


@pytest.fixture(autouse=True)
def one_app():
    """A test that leaves an app of its own as the current one fails: shared tasks of later tests would use it."""
    yield
    left = current_app._get_current_object()
    app.set_current()
    assert left is app, f"{left} is still the current app: make it with set_as_current=False"


@pytest.fixture(autouse=True)
def plain_http(settings):
    """The test client speaks HTTP, also where .env has DEBUG off."""
    settings.SECURE_SSL_REDIRECT = False


@pytest.fixture
def waiting(shared_redis):
    """Count the messages that wait in a queue: `waiting("email")`."""
    with redis.Redis("127.0.0.1", port=shared_redis.port) as client:
        yield client.llen


@pytest.fixture
def broker():
    """A broker of the test's own, to be stopped or paused; a `RedisServer`."""
    with redis_server() as server, broker_at(server.url(0)):
        yield server


@pytest.fixture
def no_broker():
    """A broker that is away."""
    with broker_at(f"redis://127.0.0.1:{free_port()}/0"):
        yield


@pytest.fixture
def no_cache(settings):
    """A cache that is away."""
    cache = settings.CACHES["default"]
    settings.CACHES = {"default": {**cache, "LOCATION": f"redis://127.0.0.1:{free_port()}/1"}}


@pytest.fixture(scope="session")
def mail_server():
    """An SMTP server in a process of its own."""
    with smtp_sink() as sink:
        yield sink


@pytest.fixture
def mailbox(mail_server, settings):
    """The SMTP server, empty and well-behaved, as the one that mails go to."""
    mail_server.behave()
    mail_server.forget()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST = "127.0.0.1"
    settings.EMAIL_PORT = mail_server.port
    settings.EMAIL_HOST_USER = settings.EMAIL_HOST_PASSWORD = ""
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    settings.EMAIL_TIMEOUT = 30
    yield mail_server
    mail_server.behave()


@pytest.fixture
def deliver():
    """Run a task as a worker does when a message is delivered; gives its result or its exception."""

    def deliver(task, *args, retries: int = 0, redelivered: bool = False):
        request = {
            "id": str(uuid.uuid4()),
            "task": task.name,
            "args": list(args),
            "kwargs": {},
            "retries": retries,
            "is_eager": False,
            "delivery_info": {"redelivered": redelivered, "routing_key": "email", "exchange": ""},
        }
        run = build_tracer(task.name, task, app=app)
        traced = run(request["id"], request["args"], request["kwargs"], request)
        return traced.info.retval if traced.info else traced.retval

    return deliver
