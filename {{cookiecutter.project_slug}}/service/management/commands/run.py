"""`manage.py run`: web, worker, beat, a Redis if none answers, and what service/own.py adds; for development."""

import fcntl
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import BaseCommand, CommandError, call_command
from django.core.management.commands.runserver import naiveip_re
from django.db import Error as DatabaseError
from django.db import connections
from django.utils.module_loading import import_string

from redelivery.testing.servers import redis_binary
from service import own
from service.celery import app
from service.supervisor import Child, Supervisor

COLOURS = {"web": 36, "worker": 32, "beat": 35, "redis": 33, "run": 1}
OTHER_COLOUR = 34
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
REDIS_START_S = 10


class Command(BaseCommand):
    """Start everything, print what it says, and stop everything."""

    help = (
        "Runs web, worker and beat, a Redis of the service's own if BROKER_URL or CACHE_URL points at a local port "
        "where nothing answers, and what service/own.py adds. Ctrl-C stops warmly: tasks that have begun are "
        "finished. A second Ctrl-C kills."
    )

    def add_arguments(self, parser):
        """Declare the arguments."""
        parser.add_argument("addrport", nargs="?", default="8000", help="[address:]port of the web")
        parser.add_argument(
            "--state",
            type=Path,
            default=settings.BASE_DIR / "var",
            help="folder for what Redis and beat keep",
        )

    def handle(self, *args, addrport: str, state: Path, **options):
        """Run until Ctrl-C (exit status 0) or until one of the processes ends by itself (1)."""
        if not settings.DEBUG:
            raise CommandError(
                "`run` is for development, and DEBUG is not true. Production runs gunicorn, `celery worker` "
                "for each queue, and one `celery beat`, each under a supervisor."
            )
        port = naiveip_re.match(addrport)
        if port is None or not 0 < int(port["port"]) < 65536:
            raise CommandError(f"{addrport!r} is no [address:]port with a port from 1 to 65535.")
        try:
            state.mkdir(parents=True, exist_ok=True)
            lock = (state / "run.lock").open("a")
        except OSError as error:
            raise CommandError(f"--state {state}: {error.strerror}") from error
        try:
            # Held until this process ends, however it ends: two would share a Redis and a beat's schedule.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(
                f"another `run` is at work in {state}: stop it, or give this one a --state and ports of its own."
            ) from None
        self.migrate()
        supervisor = Supervisor(self.say)
        supervisor.listen()
        try:
            redis = [self.start_redis(supervisor, port, state) for port in unanswered_redis_ports()]
            others = self.start_others(supervisor, state)
            services = self.start_services(supervisor, addrport, state)
            supervisor.run()
            if tasks := running_tasks():
                self.say("run", f"the worker finishes {tasks}")
            supervisor.stop(services)
            supervisor.stop(others)
            supervisor.stop(redis)  # the last: a worker that drains has acknowledgements to write
        finally:
            supervisor.kill_all()
        if supervisor.failed:
            sys.exit(1)

    def migrate(self) -> None:
        """Bring the database up to date; raises CommandError when it cannot be reached."""
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except DatabaseError as error:
            raise CommandError(f"DATABASE_URL: migrations cannot be applied: {error}") from error
        finally:
            connections.close_all()

    def start_redis(self, supervisor: Supervisor, port: int, state: Path) -> Child:
        """Start a Redis on a loopback port and wait until it answers; its data lies in `state`."""
        directory = state / f"redis-{port}"
        directory.mkdir(exist_ok=True)
        try:
            binary = redis_binary()
        except RuntimeError as error:
            raise CommandError(str(error)) from error
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
        command += ["--save", "", "--appendonly", "yes", "--logfile", "redis.log"]
        child = supervisor.start("redis", command)
        if supervisor.wait_until(lambda: listens("127.0.0.1", port), REDIS_START_S):
            self.say("run", f"{Path(binary).name} answers on port {port}; data and log in {directory}")
        else:
            self.say("run", f"{Path(binary).name} does not answer on port {port}; its log is in {directory}")
        return child

    def start_others(self, supervisor: Supervisor, state: Path) -> list[Child]:
        """Start what service/own.py names; raises CommandError when one of them says that it cannot run."""
        started = []
        for name, function in own.DEVELOPMENT.items():
            try:
                command = import_string(function)(state)
            except (ValueError, OSError) as error:
                raise CommandError(str(error)) from error
            if command:
                started.append(supervisor.start(name, command))
        return started

    def start_services(self, supervisor: Supervisor, addrport: str, state: Path) -> list[Child]:
        """Start web, worker and beat."""
        celery = [sys.executable, "-m", "celery", "--quiet", "-A", "service"]
        worker = [*celery, "worker", "--without-mingle", "--without-gossip"]
        beat = [*celery, "beat", "--pidfile=", "-s", str(state / "celerybeat-schedule")]
        web = [sys.executable, str(settings.BASE_DIR / "manage.py"), "runserver", addrport]
        # runserver's reloader ends its own child when it is asked to stop, not when it is killed.
        return [
            supervisor.start("web", web, when_orphaned=signal.SIGTERM),
            supervisor.start("worker", worker),
            supervisor.start("beat", beat),
        ]

    def say(self, name: str, line: str) -> None:
        """Print one line behind the name of whoever said it."""
        label = f"{name:<6} |"
        if self.stdout.isatty() and not os.environ.get("NO_COLOR"):
            label = f"\033[{COLOURS.get(name, OTHER_COLOUR)}m{label}\033[0m"
        self.stdout.write(f"{label} {line}")
        self.stdout.flush()


def unanswered_redis_ports() -> list[int]:
    """Return the loopback ports that BROKER_URL and CACHE_URL name and that nothing listens on.

    Only plain URLs count: a Redis with TLS or a password is somebody else's to start.
    """
    cache = settings.CACHES["default"].get("LOCATION") or ""
    locations = [settings.CELERY_BROKER_URL, *([cache] if isinstance(cache, str) else cache)]
    ports = []
    for url in map(urlsplit, locations):
        port = url.port or 6379
        own = url.scheme == "redis" and url.hostname in LOOPBACK and not url.password
        if own and port not in ports and not listens(url.hostname, port):
            ports.append(port)
    return ports


def listens(host: str, port: int) -> bool:
    """Tell whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def running_tasks() -> str:
    """Ask a worker, for 3 seconds at most, what it runs; empty when it runs nothing or does not answer."""
    try:
        answers = app.control.inspect(timeout=3, limit=1).active() or {}
    except Exception:  # the broker may be what has just ended
        return ""
    tasks = [f"{task['name']}[{task['id']}]" for active in answers.values() for task in active]
    return ", ".join(tasks)
