"""What the policy's tests share: a policy file, an app that it is put in force on, a project in a folder."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

from celery import Celery

from redelivery import checks, force

ROOT = Path(__file__).resolve().parents[2]

REDIS_CACHE = {
    "BACKEND": "django.core.cache.backends.redis.RedisCache",
    "LOCATION": "redis://cache.example/0",
}

POLICY = """\
[queues.main]
concurrency = 2

[tasks."shop.tasks.mail"]
queue        = "main"
ack          = "late"
guard        = "marker"
time_limit_s = 60
reason       = "A customer must get the mail, and should get it once."
gaps         = ["killed after the send and before the marker: sent twice"]

[tasks."shop.tasks.count"]
queue        = "main"
ack          = "early"
guard        = "lost-ok"
time_limit_s = 30
reason       = "One visit more or less does not matter."
gaps         = ["lost when killed before the row is written"]
"""


def nothing(*args, **kwargs):
    """The body of a task that is never run."""


def write_policy(folder: Path, text: str = POLICY) -> Path:
    """Write a policy file and return its path."""
    path = folder / "ack_policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def make_app(policy_file: Path, settings, tasks=True, **celery_settings) -> Celery:
    """A Celery app of its own with the policy in force; ``tasks`` adds the two tasks of ``POLICY``.

    Use the fixture ``policy_app``, which cleans up after it.
    """
    settings.ACK_POLICY_FILE = policy_file
    app = Celery("shop", set_as_current=False, fixups=())
    defaults = {"CELERY_BROKER_URL": "redis://broker.example/0", "CELERY_TASK_IGNORE_RESULT": True}
    app.config_from_object(SimpleNamespace(**{**defaults, **celery_settings}), namespace="CELERY")
    force._in_force = None  # of another test's app
    force.setup(app)
    if tasks:
        app.task(name="shop.tasks.mail")(nothing)
        app.task(name="shop.tasks.count")(nothing)
    return app


def messages(about: str = "", some=checks.CHECKS) -> list:
    """What the checks say, as far as this text is in it."""
    return [message for message in checks.run(some) if about in f"{message.msg} {message.hint}"]


class Project:
    """A small Django project in a folder of its own, whose commands run as processes."""

    def __init__(self, folder: Path, policy: str = POLICY, port: int = 1):
        self.folder, self.port = folder, port
        self.write("manage.py", MANAGE)
        self.write("shop/settings.py", SETTINGS)
        self.write("shop/celery.py", CELERY)
        self.write("shop/__init__.py", "from shop.celery import app as celery_app\n")
        self.write("shop/urls.py", "urlpatterns = []\n")
        self.write("shop/wsgi.py", "from django.core.wsgi import get_wsgi_application\n\n" + WSGI)
        self.write("shop/tasks.py", TASKS)
        write_policy(folder, policy)

    def write(self, name: str, text: str) -> None:
        """Write one file of the project."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its processes; nothing of the service's own settings gets in."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "REDIS_PORT": str(self.port),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *command: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess:
        """Run ``python <command>`` in the project; its output is text, both streams together."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )


MANAGE = """\
import sys

from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""
SETTINGS = """\
import os
from pathlib import Path

ACK_POLICY_FILE = Path(__file__).parents[1] / "ack_policy.toml"
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["redelivery", "shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
PORT = os.environ["REDIS_PORT"]
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": f"redis://127.0.0.1:{PORT}/1",
    }
}
CELERY_BROKER_URL = f"redis://127.0.0.1:{PORT}/0"
CELERY_TASK_IGNORE_RESULT = True
"""
CELERY = """\
from celery import Celery

import redelivery

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
redelivery.setup(app)
app.autodiscover_tasks()
"""
WSGI = "application = get_wsgi_application()\n"
TASKS = """\
import time

from celery import shared_task


@shared_task
def mail(): ...


@shared_task
def count(seconds=0):
    time.sleep(seconds)
"""
