"""Each system check of the policy: what it finds, what it says, and that it is silent on the sound case."""

import contextlib

import pytest
from celery import Task, shared_task
from django.core.cache import caches
from kombu import Queue

from redelivery import checks, force
from redelivery.checks import configuration, deployment, stores, tasks
from redelivery.places import places
from tests.policy.tools import POLICY, REDIS_CACHE, messages, nothing


def ids(found):
    return [message.id for message in found]


def only(found):
    """The one message of a list."""
    assert len(found) == 1, found
    return found[0]


def test_a_sound_project_has_no_message(policy_app):
    policy_app()
    assert messages() == []


def test_unusable_policy(policy_app, settings):
    policy_app()
    settings.ACK_POLICY_FILE = settings.ACK_POLICY_FILE.with_name("broken.toml")
    settings.ACK_POLICY_FILE.write_text("[queues.main]\n")
    error = only(checks.run())
    assert error.id == "redelivery.E001"
    assert "broken.toml:1: queue main has no concurrency" in error.msg
    assert checks.check_deployment() == []


def test_setup_was_not_called(policy_app, monkeypatch):
    policy_app()
    monkeypatch.setattr(force, "_in_force", None)
    assert ids(checks.run()) == ["redelivery.E002"]


def test_policy_that_could_not_be_put_in_force(policy_app, monkeypatch):
    """Celery would log an exception here, and go on without the policy."""
    monkeypatch.setattr(force, "_reports_checks", lambda: True)
    policy_app(CELERY_TASK_ROUTES=[("shop.*", {"queue": "main"})]).conf.finalize()
    error = only(checks.run())
    assert error.id == "redelivery.E002"
    assert "could not be put in force: ValueError" in error.msg


def test_task_without_entry(policy_app):
    app = policy_app()
    app.task(name="shop.tasks.mails")(nothing)
    error = only(messages("shop.tasks.mails"))
    assert error.id == "redelivery.E003"
    assert "ack_policy.toml" in error.msg and '[tasks."shop.tasks.mails"]' in error.hint


def test_celerys_own_tasks_need_no_entry(policy_app):
    app = policy_app()
    assert any(name.startswith("celery.") for name in app.tasks)
    assert messages("celery.") == []


def test_entry_without_task(policy_app):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.count")(nothing)
    app.task(name="shop.tasks.maill")(nothing)
    found = {message.id: message for message in messages("shop.tasks.mail")}
    assert found.keys() == {"redelivery.E003", "redelivery.E004"}
    assert "ack_policy.toml:4: no task is registered as shop.tasks.mail." in found["redelivery.E004"].msg
    assert "Is the task shop.tasks.maill meant?" in found["redelivery.E004"].hint


class Foreign(Task):
    """A base class that knows nothing of the policy, as an existing project has them."""


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"acks_late": False}, "acks_late=False"),
        ({"time_limit": 30}, "time_limit=30"),
        ({"soft_time_limit": 30}, "soft_time_limit=30"),
        ({"reject_on_worker_lost": False}, "reject_on_worker_lost=False"),
        ({"retry_on_worker_lost": True}, "retry_on_worker_lost=True"),
        ({"acks_on_failure": False}, "acks_on_failure=False"),
        ({"queue": "other"}, "queue='other'"),
        ({"acks_late": False, "base": Foreign}, "acks_late=False"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_decorator_that_contradicts_its_entry(policy_app, declared, says):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.count")(nothing)
    app.task(name="shop.tasks.mail", **declared)(nothing)
    error = only(messages())
    assert error.id == "redelivery.E005"
    assert f"Task shop.tasks.mail declares {says}" in error.msg and "ack_policy.toml:4" in error.msg


def test_decorator_that_repeats_its_entry_is_fine(policy_app):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.count", acks_late=False)(nothing)
    app.task(name="shop.tasks.mail", acks_late=True, time_limit=60, reject_on_worker_lost=True)(nothing)
    assert messages() == []


def test_class_based_and_bound_and_retried_tasks_get_the_policy(policy_app):
    app = policy_app(tasks=False)

    class Mail(Foreign):
        name = "shop.tasks.mail"
        acks_late = False

        def run(self): ...

    mail = app.register_task(Mail())
    count = app.task(name="shop.tasks.count", bind=True, autoretry_for=(OSError,))(nothing)
    assert "acks_late=False" in only(messages()).msg
    assert (mail.acks_late, mail.time_limit) == (True, 60)
    assert (count.acks_late, count.time_limit) == (False, 30)


def test_shared_tasks_get_the_policy(policy_app):
    app = policy_app(POLICY.replace("shop.tasks.mail", "shop.tasks.shared"), tasks=False)
    shared_task(name="shop.tasks.shared")(nothing)
    app.finalize()
    assert (app.tasks["shop.tasks.shared"].acks_late, app.tasks["shop.tasks.shared"].time_limit) == (True, 60)


def test_policy_that_did_not_reach_a_task(policy_app):
    app = policy_app()
    app.finalize()
    app.tasks["shop.tasks.mail"].time_limit = 600
    error = only(messages())
    assert error.id == "redelivery.E006"
    assert "is not in force on task shop.tasks.mail: it has time_limit=600." in error.msg


def test_class_derived_from_a_registered_task(policy_app):
    app = policy_app(tasks=False)

    class Count(Task):
        name = "shop.tasks.count"

        def run(self): ...

    class Mail(Count):
        name = "shop.tasks.mail"

    app.register_task(Count())
    app.register_task(Mail())
    assert ids(messages()) == ["redelivery.E006"]


@pytest.mark.parametrize(
    "routes",
    [
        {"shop.tasks.mail": "other"},
        {"shop.tasks.mail": {"queue": "other", "priority": 3}},
        ([("shop.tasks.m*", {"queue": Queue("other")}), ("*", {"queue": "main"})],),
        (lambda name, *args, **kwargs: {"queue": "other"} if name == "shop.tasks.mail" else None,),
    ],
    ids=["name", "mapping", "pattern", "function"],
)
def test_route_that_contradicts_the_policy(policy_app, routes):
    app = policy_app(CELERY_TASK_ROUTES=routes)
    found = [message for message in messages() if "shop.tasks.mail" in message.msg]
    assert only(found).id == "redelivery.E007"
    assert "queue 'other'" in found[0].msg and "'main'" in found[0].msg
    assert app.amqp.router.route({}, "shop.tasks.mail")["queue"].name == "main"


def test_routes_are_merged(policy_app):
    app = policy_app(CELERY_TASK_ROUTES={"shop.tasks.mail": {"priority": 3}, "foreign": {"queue": "foreign"}})
    assert messages() == []
    route = app.amqp.router.route({}, "shop.tasks.mail")
    assert (route["queue"].name, route["priority"]) == ("main", 3)
    assert app.amqp.router.route({}, "foreign")["queue"].name == "foreign"
    assert app.amqp.router.route({}, "celery.backend_cleanup")["queue"].name == "main"


def test_a_router_that_fails_outside_of_a_call_is_left_alone(policy_app):
    policy_app(CELERY_TASK_ROUTES=[lambda name, args, *rest, **kwargs: {"queue": args[0]}])
    assert messages() == []


@pytest.mark.parametrize("name", ["shop.tasks.mail", "*"])
def test_annotation_that_contradicts_the_policy(policy_app, name):
    app = policy_app(CELERY_TASK_ANNOTATIONS={name: {"time_limit": 5, "rate_limit": "9/s"}})
    error = next(message for message in messages() if "shop.tasks.mail" in message.msg)
    assert error.id == "redelivery.E008"
    assert "sets time_limit=5 for shop.tasks.mail" in error.msg and "time_limit=60" in error.msg
    task = app.tasks["shop.tasks.mail"]
    assert (task.time_limit, task.rate_limit) == (60, "9/s")


def test_annotations_are_merged(policy_app):
    calls = []
    around = {"@apply_async": lambda method: lambda self, *args, **kwargs: calls.append(kwargs)}
    app = policy_app(
        CELERY_TASK_ANNOTATIONS=[
            {"shop.tasks.mail": {"max_retries": 7, **around}},
            {"*": {"rate_limit": "9/s"}},
        ]
    )
    assert messages() == []
    task = app.tasks["shop.tasks.mail"]
    assert (task.max_retries, task.rate_limit, task.acks_late) == (7, "9/s", True)
    task.delay()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("TASK_ACKS_LATE", True),
        ("TASK_ACKS_LATE", False),
        ("TASK_TIME_LIMIT", 300),
        ("TASK_SOFT_TIME_LIMIT", 300),
        ("TASK_REJECT_ON_WORKER_LOST", True),
        ("TASK_RETRY_ON_WORKER_LOST", True),
        ("TASK_ACKS_ON_FAILURE_OR_TIMEOUT", False),
        ("WORKER_PREFETCH_MULTIPLIER", 4),
        ("BROKER_TRANSPORT_OPTIONS", {"visibility_timeout": 3600}),
    ],
)
def test_setting_that_contradicts_the_policy(policy_app, setting, value):
    app = policy_app(**{f"CELERY_{setting}": value})
    error = only(checks.run([configuration.decided_by_policy]))
    assert error.id == "redelivery.E009"
    assert f"CELERY_{setting} is " in error.msg and "ack_policy.toml" in f"{error.msg} ack_policy.toml"
    task = app.tasks["shop.tasks.mail"]
    assert (task.acks_late, task.time_limit, task.reject_on_worker_lost) == (True, 60, True)
    assert app.conf.worker_prefetch_multiplier == force.in_force().policy.prefetch_multiplier
    assert app.conf.broker_transport_options["visibility_timeout"] == 465


def test_what_is_silenced_stops_no_worker(policy_app, settings):
    """A library may read a setting that Celery does not know; what passes `check` must start."""
    policy_app()
    settings.CELERY_EMAIL_TASK_CONFIG = {}
    assert any("EMAIL_TASK_CONFIG" in error.msg for error in checks.errors())
    settings.SILENCED_SYSTEM_CHECKS = ["redelivery.E010"]
    assert not any("EMAIL_TASK_CONFIG" in error.msg for error in checks.errors())


def test_setting_that_agrees_with_the_policy(policy_app):
    policy_app(CELERY_BROKER_TRANSPORT_OPTIONS={"visibility_timeout": 465, "socket_timeout": 5})
    assert messages("CELERY_") == []
    assert force.in_force().app.conf.broker_transport_options["socket_timeout"] == 5
    assert force.in_force().app.conf.worker_disable_prefetch is True


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CELERY_TASK_TIME_LIMITS", "Is CELERY_TASK_TIME_LIMIT meant?"),
        ("CELERY_WORKER_PREFETCH_MULTIPLYER", "Is CELERY_WORKER_PREFETCH_MULTIPLIER meant?"),
        ("CELERYD_TASK_TIME_LIMIT", "Rename it to CELERY_TASK_TIME_LIMIT."),
        ("CELERY_ACKS_LATE", "Rename it to CELERY_TASK_ACKS_LATE."),
        ("CELERYBEAT_SCHEDULE", "Rename it to CELERY_BEAT_SCHEDULE."),
        ("CELERY_QQQ", "Remove it"),
    ],
)
def test_unknown_setting(policy_app, settings, name, hint):
    policy_app()
    setattr(settings, name, {})
    error = only(messages(name, [configuration.unknown_settings]))
    assert error.id == "redelivery.E010"
    assert hint in error.hint


def test_known_settings(policy_app, settings):
    policy_app()
    settings.CELERY_TASK_TRACK_STARTED = True
    settings.CELERY_DB_REUSE_MAX = 3
    assert checks.run([configuration.unknown_settings]) == []


def test_without_a_namespace(tmp_path, settings, monkeypatch, policy_app):
    policy_app()
    app = force.in_force().app
    monkeypatch.setattr(app, "namespace", None)
    settings.CELERY_TIMEZONE = "UTC"
    settings.CELERYD_CONCURENCY = 2
    found = messages("CELERYD_CONCURENCY", [configuration.unknown_settings])
    assert "CELERYD_CONCURRENCY" in only(found).hint
    assert messages("CELERY_TIMEZONE", [configuration.unknown_settings]) == []


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "nonsense"])
def test_pool(policy_app, pool):
    policy_app(CELERY_WORKER_POOL=pool)
    assert only(messages("worker_pool")).id == "redelivery.E011"


def test_remapped_sigterm(policy_app, monkeypatch):
    policy_app()
    monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    assert only(messages("REMAP_SIGTERM")).id == "redelivery.E012"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("ACCEPT_CONTENT", ["json", "pickle"]),
        ("RESULT_ACCEPT_CONTENT", ["yaml"]),
        ("TASK_SERIALIZER", "pickle"),
        ("RESULT_SERIALIZER", "pickle"),
    ],
)
def test_content(policy_app, setting, value):
    policy_app(**{f"CELERY_{setting}": value})
    assert only(messages("only JSON")).id == "redelivery.E013"


def test_content_of_one_task(policy_app):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.mail", serializer="pickle")(nothing)
    app.task(name="shop.tasks.count", serializer="json")(nothing)
    assert "shop.tasks.mail" in only(messages("only JSON")).msg


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://localhost", "redis://127.0.0.1:6379/0", True),
        ("redis://localhost:6379", "rediss://user:secret@[::1]:6379/0", True),
        ("redis://LOCALHOST/", "redis://127.0.0.2//0", True),
        ("redis://h/0", "redis://h:6379?db=0", True),
        ("redis://h:6379/0", "redis://h:6380/0", False),
        ("redis://h/0", "redis://h/1", False),
        ("redis://h/0?db=1", "redis://h/1", True),
        ("redis://h1/0", "redis://h2/0", False),
        ("unix:///run/redis.sock?db=1", "redis+socket:///run/redis.sock?virtual_host=1", True),
        ("unix:///run/redis.sock", "unix://:secret@/run/redis.sock?db=0", True),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=2", False),
        ("unix:///run/a.sock", "unix:///run/b.sock", False),
        ("redis://a/0;redis://b/0", "redis://b", True),
        ("sentinel://a:26379/0;sentinel://b:26379", "sentinel://b/0", True),
        (["redis://a/3", "redis://b/3"], "redis://b/3", True),
        ("valkey://h/0", "redis://h/0", True),
        ("redis://h/01", "redis://h/1", True),
        ("amqp://h/0", "redis://h/0", False),
        ("db+sqlite:///redis", "redis://h/0", False),
        (None, "redis://h/0", False),
    ],
)
def test_urls_of_redis(one, other, same):
    assert bool(places(one) & places(other)) is same


SHARED = "redis://redis.example:6379/3"


@pytest.mark.parametrize(
    ("broker", "cache", "result", "who"),
    [
        (SHARED, "redis://redis.example/3", None, "The broker and cache 'default'"),
        (SHARED, "redis://other.example/3", SHARED, "The broker and the results"),
        (SHARED, "redis://redis.example/4", "redis://redis.example/4", "The results and cache 'default'"),
        (SHARED, "redis://redis.example/4", "django-cache", "The results and cache 'default'"),
    ],
)
def test_shared_database(policy_app, settings, broker, cache, result, who):
    settings_for_app = {"CELERY_BROKER_URL": broker}
    if result:
        settings_for_app["CELERY_RESULT_BACKEND"] = result
    policy_app(**settings_for_app)
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": cache}}
    message = only(checks.run([stores.shared_databases]))
    # Only a cache is emptied by FLUSHDB.
    assert message.id == ("redelivery.E014" if "cache" in who else "redelivery.W014")
    assert message.msg.startswith(who)


def test_databases_of_their_own(policy_app, settings):
    policy_app(CELERY_BROKER_URL="redis://h/0", CELERY_RESULT_BACKEND="redis://h/2")
    settings.CACHES = {
        "default": {**REDIS_CACHE, "LOCATION": "redis://h/1"},
        "sessions": {**REDIS_CACHE, "LOCATION": "redis://h/1", "KEY_PREFIX": "s"},
    }
    assert checks.run([stores.shared_databases]) == []


@pytest.mark.parametrize("kind", ["locmem.LocMemCache", "dummy.DummyCache", "filebased.FileBasedCache"])
def test_cache_that_cannot_keep_markers(policy_app, settings, tmp_path, kind):
    policy_app()
    settings.CACHES = {
        "default": {"BACKEND": f"django.core.cache.backends.{kind}", "LOCATION": str(tmp_path / "cache")}
    }
    error = only(checks.run([stores.marker_cache]))
    assert error.id == "redelivery.E017"
    assert kind.split(".")[1] in error.msg and "ack_policy.toml:4" in error.msg


def test_caches_that_keep_markers(policy_app, settings):
    policy_app()
    for cache in (
        {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache_table"},
        REDIS_CACHE,
    ):
        settings.CACHES = {"default": cache}
        assert checks.run([stores.marker_cache]) == []


def test_cache_that_hides_its_errors(policy_app, settings):
    policy_app()
    settings.CACHES = {"default": {**REDIS_CACHE, "OPTIONS": {"IGNORE_EXCEPTIONS": True}}}
    with contextlib.suppress(Exception):
        caches["default"].get("x")  # Django's own backend does not know the option; django-redis does
    assert "ignores errors" in only(checks.run([stores.marker_cache])).msg


def test_marker_cache_that_does_not_exist(policy_app, settings):
    policy_app()
    settings.REDELIVERY_MARKER_CACHE = "markers"
    assert "cache 'markers', which does not work" in only(checks.run([stores.marker_cache])).msg


def test_without_markers_any_cache_will_do(policy_app, settings):
    policy_app(
        POLICY.replace('"marker"', '"none"').replace(
            "killed after the send and before the marker", "two deliveries"
        )
    )
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    assert checks.run([stores.marker_cache]) == []


@pytest.mark.parametrize(
    ("options", "wait"),
    [
        ({"default_retry_delay": 301}, "301"),
        ({"autoretry_for": (OSError,), "retry_backoff": True, "max_retries": None}, "600"),
        ({"autoretry_for": (OSError,), "retry_backoff": 100, "max_retries": 5}, "600"),
        (
            {"autoretry_for": (OSError,), "retry_backoff": 100, "max_retries": 3, "retry_backoff_max": 900},
            "400",
        ),
    ],
    ids=str,
)
def test_retry_that_waits_too_long(policy_app, options, wait):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.count")(nothing)
    app.task(name="shop.tasks.mail", **options)(nothing)
    error = only(messages())
    assert error.id == "redelivery.E018"
    assert f"may wait {wait} s" in error.msg and "longest_countdown_s = 300" in error.msg


def test_retries_that_wait_within_the_policy(policy_app):
    app = policy_app(tasks=False)
    app.task(name="shop.tasks.count", default_retry_delay=300)(nothing)
    app.task(name="shop.tasks.mail", autoretry_for=(OSError,), retry_backoff=True, max_retries=8)(nothing)
    assert messages() == []


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"task": "shop.tasks.maill"}, "sends 'shop.tasks.maill', which is not registered"),
        ({"task": "shop.tasks.mail", "options": {"time_limit": 5}}, "sets time_limit"),
        ({"task": "shop.tasks.mail", "options": {"queue": "other"}}, "sets queue"),
        ({"task": "shop.tasks.mail", "options": {"expires": 5}}, None),
    ],
)
def test_schedule(policy_app, entry, says):
    policy_app(CELERY_BEAT_SCHEDULE={"nightly": {"schedule": 60, **entry}})
    found = checks.run([tasks.schedule])
    assert (found == []) if says is None else (says in only(found).msg and found[0].id == "redelivery.E019")


def test_crash_retries_without_the_transport(policy_app, settings):
    policy_app()
    assert messages("crash_retries") == []
    settings.REDELIVERY_TRANSPORT = False
    policy_app()
    warning = only(messages("crash_retries"))
    assert (warning.id, warning.is_serious()) == ("redelivery.W001", False)
    assert "shop.tasks.mail" in warning.msg
    policy_app(CELERY_BROKER_URL="amqp://broker.example")
    settings.REDELIVERY_TRANSPORT = True
    assert only(messages("crash_retries")).id == "redelivery.W001"


def test_broker_and_cache_on_one_instance(policy_app, settings):
    policy_app(CELERY_BROKER_URL="redis://redis.example/0")
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": "redis://redis.example:6379/1"}}
    assert checks.run([stores.shared_databases]) == []
    assert only(checks.run([deployment.one_instance])).id == "redelivery.E015"
    settings.CACHES = {"default": {**REDIS_CACHE, "LOCATION": "redis://redis.example:6380/0"}}
    assert checks.run([deployment.one_instance]) == []


def test_queue_that_no_unit_can_be_named_after(policy_app):
    policy_app(POLICY.replace('"main"', '"low-priority"').replace("[queues.main]", "[queues.low-priority]"))
    assert checks.run() == []
    warning = only(checks.run([deployment.unit_names]))
    assert (
        warning.id == "redelivery.W021" and "ack_policy.toml:1: the queue name 'low-priority'" in warning.msg
    )


def test_eager_tasks_in_production(policy_app):
    policy_app(CELERY_TASK_ALWAYS_EAGER=True)
    assert only(checks.run([deployment.eager])).id == "redelivery.E020"


def test_eviction_policy_of_the_broker(policy_app, redis_url):
    import redis

    policy_app(CELERY_BROKER_URL=redis_url)
    assert checks.run([deployment.eviction]) == []
    redis.Redis.from_url(redis_url).config_set("maxmemory-policy", "allkeys-lru")
    error = only(checks.run([deployment.eviction]))
    assert error.id == "redelivery.E016" and "allkeys-lru" in error.msg


def test_eviction_policy_that_cannot_be_read(policy_app):
    policy_app(CELERY_BROKER_URL="redis://127.0.0.1:1/0")
    assert only(checks.run([deployment.eviction])).id == "redelivery.W002"


def test_another_kombu_than_the_tested_one(policy_app, monkeypatch):
    """The transport is off then, and not broken."""
    monkeypatch.setattr("kombu.__version__", "5.8.0")
    app = policy_app()
    warning = only(checks.run([configuration.kombu]))
    assert warning.id == "redelivery.W007" and "kombu 5.8.0 is not of the series 5.7" in warning.msg
    assert not force.transport_on(app) and not force.in_force().transport


def test_no_word_of_kombu_when_the_transport_is_off(policy_app, monkeypatch, settings):
    settings.REDELIVERY_TRANSPORT = False
    monkeypatch.setattr("kombu.__version__", "5.8.0")
    policy_app()
    assert checks.run([configuration.kombu]) == []


def test_broker_that_is_a_cluster(policy_app, monkeypatch):
    policy_app()
    monkeypatch.setattr(deployment, "_ask", lambda state, question: True)
    assert only(checks.run([deployment.cluster])).id == "redelivery.E025"
    monkeypatch.setattr(deployment, "_ask", lambda state, question: 1 / 0)
    assert checks.run([deployment.cluster]) == []
