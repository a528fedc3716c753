"""Settings as another process sees them: what the environment makes of them, and what production refuses."""

import json
import os
import subprocess
import sys

import pytest
from django.conf import settings

from service.settings.env import refuse_unreadable

KEY = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PRODUCTION = {
    "DEBUG": "false",
    "SECRET_KEY": KEY,
    "DOMAIN": "example.org",
    "DATABASE_URL": "postgres://user:p%40ss@db.example.com:5432/service?sslmode=require",
    "BROKER_URL": "redis://broker.example.com/0",
    "CACHE_URL": "redis://cache.example.com/0",
    "EMAIL_URL": "smtp+tls://user%40example.org:p%23ss@mail.example.com:587",
    "PAYMENT_PROVIDER": "stripe",
    "STRIPE_API_KEY": "sk_live_of_nobody",
}
# Every variable that .env may have set for this process, so that only what a test says counts.
FORGET = {
    *PRODUCTION,
    *("ALLOWED_HOSTS", "CONN_MAX_AGE", "DEFAULT_FROM_EMAIL", "EMAIL_TIMEOUT", "HSTS_INCLUDE_SUBDOMAINS"),
    *("HSTS_SECONDS", "LOG_LEVEL", "SERVICE_NAME", "TEAM_EMAIL"),
}
SHOW = """
import json, sys
from django.conf import settings
print(json.dumps({name: getattr(settings, name) for name in sys.argv[1:]}, default=str))
"""


def python(*command: str, **variables: str) -> subprocess.CompletedProcess:
    """Run Python in an environment that has these variables; an empty one hides a line of .env."""
    environment = {name: value for name, value in os.environ.items() if name not in FORGET}
    environment |= {"DJANGO_SETTINGS_MODULE": "service.settings", **variables}
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=settings.BASE_DIR, capture_output=True, text=True
    )


def shown(*names: str, **variables: str) -> dict:
    """Return settings as a process with these variables has them."""
    process = python("-c", SHOW, *names, **variables)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("", "SECRET_KEY is empty"),
        ("short", "SECRET_KEY is too weak"),
        ("x" * 80, "SECRET_KEY is too weak"),
        (f"django-insecure-{KEY}", "SECRET_KEY is too weak"),
    ],
)
def test_production_refuses_a_bad_key(key, complaint):
    process = python("manage.py", "check", **{**PRODUCTION, "SECRET_KEY": key})
    assert process.returncode == 1
    assert process.stderr.startswith(complaint)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SECRET_KEY", "", "is empty: `make .env` draws one"),
        ("DEBUG", "ture", "is 'ture', which is neither true nor false"),
        ("BROKER_URL", "$BROKER", "begins with $, which stands for the name of another variable"),
        ("SERVICE_NAME", "$SERVICE_NAME", "begins with $, which stands for the name of another variable"),
        ("HSTS_INCLUDE_SUBDOMAINS", "2", "is '2', which is neither true nor false"),
        ("HSTS_SECONDS", "1h", "is '1h', which is not a whole number"),
        *(
            ("DOMAIN", value, f"is {value!r}, which is no host name")
            for value in ("", "http://example.com", "example.org/", "two words", "-.org", "example.org:80")
        ),
        *(
            ("TEAM_EMAIL", value, f"is {value!r}, which is no mail address")
            for value in (
                "",
                "team",
                "@example.org",
                "team@",
                "a@b@example.org",
                "team@example.org, me@example.org",
            )
        ),
        ("EMAIL_TIMEOUT", "", "is '', which is not a whole number"),
        ("LOG_LEVEL", "loud", "is 'LOUD': write DEBUG, INFO,"),
        *(
            (variable, value, "is not a URL that can be used: write it like")
            for variable, values in {
                "DATABASE_URL": (
                    *(
                        "",
                        "secret",
                        "postgres//u:secret@h/d",
                        "postgres://u:secret@h:port/d",
                        "mongo://secret/d",
                    ),
                    *("postgres://u:secret@h", "postgres://u:secret@h:65536/d", "sqlite://secret.sqlite3"),
                ),
                "BROKER_URL": (
                    *(
                        "",
                        "secret:6379",
                        "redis://:secret@h:port/0",
                        "redis://:secret@h/zero",
                        "http://secret",
                    ),
                    *("redis:/secret", "redis://h/0;secret", "redis://", "redis://h:0/0"),
                ),
                "CACHE_URL": (
                    "",
                    "secret:6379",
                    "redis://:secret@h:port/1",
                    "redis://:secret@h/one",
                    "redis://",
                ),
                "EMAIL_URL": (
                    "",
                    "secret:25",
                    "smtp://u:secret@h:port",
                    "smtp+tls://u:sec#ret@h:587",
                    "mailto:secret",
                ),
            }.items()
            for value in values
        ),
    ],
)
def test_value_that_makes_no_sense(variable, value, says):
    """One sentence names the variable and the cure, and no secret."""
    process = python("-c", SHOW, "DEBUG", **{**PRODUCTION, variable: value})
    assert process.returncode == 1
    assert process.stderr.startswith(f"{variable} {says}") and process.stderr.count("\n") == 1
    assert "secret" not in process.stderr and process.stdout == ""


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_bytes("DOMAIN=b\u00fccher.example".encode("latin-1")), "is not UTF-8 text"),
    ],
    ids=["folder", "latin-1"],
)
def test_env_file_that_cannot_be_read(tmp_path, capsys, write, says):
    """django-environ would go on without it, and production would start with the values of nobody."""
    write(file := tmp_path / ".env")
    with pytest.raises(SystemExit, match="1"):
        refuse_unreadable(file)
    assert capsys.readouterr().err == f"{file} {says}.\n"


@pytest.mark.parametrize(
    "command",
    [
        ("manage.py", "check"),
        ("manage.py", "runserver", "127.0.0.1:0"),
        ("-m", "celery", "-A", "service", "worker"),
        ("-m", "celery", "-A", "service", "beat"),
        ("-m", "pytest", "--collect-only"),
        ("-m", "gunicorn", "--bind", "127.0.0.1:0"),
    ],
    ids=["check", "runserver", "worker", "beat", "pytest", "gunicorn"],
)
def test_every_process_says_it_in_one_sentence(command):
    process = python(*command, **{**PRODUCTION, "DATABASE_URL": "postgres//"})
    output = process.stdout + process.stderr
    assert process.returncode == 1, output
    assert output.count("DATABASE_URL is not a URL that can be used") == 1 and "Traceback" not in output


def test_gunicorn_without_its_configuration_file_does_not_start_workers_for_ever():
    command = ("-m", "gunicorn", "--config", os.devnull, "--bind", "127.0.0.1:0", "service.wsgi")
    assert python(*command, **{**PRODUCTION, "DATABASE_URL": "postgres//"}).returncode == 3


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DEBUG", "off"),
        ("DEBUG", "True"),
        ("DEBUG", ""),
        ("DATABASE_URL", "postgres:///service"),
        ("DATABASE_URL", "postgres://u:p%23@[::1]:5432/d?sslmode=require"),
        ("DATABASE_URL", "sqlite:////var/lib/service/db.sqlite3"),
        ("BROKER_URL", "redis://a/0;redis://b/0"),
        ("BROKER_URL", "sentinel://a:26379;sentinel://b:26379"),
        ("BROKER_URL", "rediss://u:p%23@h:6380/3?ssl_cert_reqs=required"),
        ("BROKER_URL", "amqp://h//"),
        ("CACHE_URL", "rediss://u:p@h:6380"),
        ("CACHE_URL", "memcache://h:11211"),
        ("EMAIL_URL", "consolemail://"),
        ("LOG_LEVEL", "debug"),
    ],
)
def test_value_that_makes_sense(variable, value):
    shown("CELERY_BROKER_URL", **{**PRODUCTION, variable: value})


def test_check_deploy_finds_nothing_in_the_settings():
    process = python(
        "manage.py", "check", "--deploy", "--tag", "security", "--fail-level", "WARNING", **PRODUCTION
    )
    assert process.returncode == 0, process.stderr


def test_production():
    found = shown(
        "DATABASES", "CACHES", "EMAIL_HOST_PASSWORD", "EMAIL_USE_TLS", "ALLOWED_HOSTS", **PRODUCTION
    )
    database = found["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["PASSWORD"], database["CONN_MAX_AGE"]) == ("p@ss", 60)
    assert database["OPTIONS"] == {"sslmode": "require", "connect_timeout": 5}
    assert found["CACHES"]["default"]["BACKEND"] == "django.core.cache.backends.redis.RedisCache"
    assert found["CACHES"]["default"]["OPTIONS"]["socket_timeout"] == 1
    assert (found["EMAIL_HOST_PASSWORD"], found["EMAIL_USE_TLS"]) == ("p#ss", True)
    assert "example.org" in found["ALLOWED_HOSTS"] and "*" not in found["ALLOWED_HOSTS"]


def test_production_never_prints_mails_by_default():
    without = {name: value for name, value in PRODUCTION.items() if name != "EMAIL_URL"}
    assert shown("EMAIL_BACKEND", **without)["EMAIL_BACKEND"].endswith("smtp.EmailBackend")


def test_sqlite_file_is_found_from_every_folder(tmp_path):
    variables = {**PRODUCTION, "DATABASE_URL": "sqlite:///db.sqlite3"}
    assert shown("DATABASES", **variables)["DATABASES"]["default"]["NAME"] == str(
        settings.BASE_DIR / "db.sqlite3"
    )
    variables["DATABASE_URL"] = f"sqlite:///{tmp_path}/other.sqlite3"
    assert shown("DATABASES", **variables)["DATABASES"]["default"]["NAME"] == f"{tmp_path}/other.sqlite3"


def test_two_services_on_one_cache_have_keys_of_their_own():
    prefixes = {
        shown("CACHES", **PRODUCTION, SERVICE_NAME=name)["CACHES"]["default"]["KEY_PREFIX"]
        for name in ("My Shop", "Your Shop")
    }
    assert len(prefixes) == 2
    assert not any(" " in prefix for prefix in prefixes)


def test_variable_of_the_environment_wins_over_env_file():
    assert shown("TEAM_EMAIL", **PRODUCTION, TEAM_EMAIL="x@example.org")["TEAM_EMAIL"] == "x@example.org"


def test_broker_takes_json_only_and_is_waited_for_briefly():
    assert settings.CELERY_ACCEPT_CONTENT == ["json"]
    assert 3 * settings.CELERY_BROKER_TRANSPORT_OPTIONS["socket_timeout"] < 3


def test_mail_server_is_given_up_before_the_soft_limit():
    from redelivery import policy

    limits = [task.soft_time_limit_s for task in policy.current().tasks.values()]
    assert all(shown("EMAIL_TIMEOUT", **PRODUCTION)["EMAIL_TIMEOUT"] < limit for limit in limits)
