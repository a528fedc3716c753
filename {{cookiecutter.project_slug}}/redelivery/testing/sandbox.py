"""A world of a test's own around the project: Redis, SMTP sink and databases that nothing else uses.

The project's settings stay as they are; what leads outside is pointed at the sandbox, in this process and in the
workers that a test starts. So no crash map can send a real mail or touch a real row.
"""

import gc
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import redis
from django.conf import settings
from django.core import mail
from django.core.cache import caches
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import DatabaseError, connections
from django.test.utils import override_settings

from redelivery import force, versions
from redelivery.testing.janitor import janitor
from redelivery.testing.processes import free_port
from redelivery.testing.servers import RedisServer, SmtpSink, redis_server

ENVIRONMENT = "REDELIVERY_SANDBOX"
NUMBERS_A_CALL = 1000
# Celery reads these before its own settings.
BROKER_VARIABLES = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
)
BROKER_DB, RESULT_DB, FIRST_CACHE_DB = 0, 1, 2


class SandboxError(Exception):
    """The sandbox cannot be made, or what it was given cannot be tested; the text says why and what to do."""


@dataclass(frozen=True)
class Addresses:
    """Where the sandbox's servers are; travels to worker processes as JSON in the environment."""

    redis_port: int
    smtp_port: int
    directory: str
    databases: dict[str, str]

    def redis_url(self, db: int) -> str:
        """Return the URL of a database of the sandbox's Redis."""
        return f"redis://127.0.0.1:{self.redis_port}/{db}"

    def apply(self) -> None:
        """Point this process at the sandbox: databases, caches, e-mail, broker and results."""
        for alias, name in self.databases.items():
            settings.DATABASES[alias]["NAME"] = name
            connections[alias].settings_dict["NAME"] = name
            if connections[alias].vendor == "sqlite":
                # Real kills run several tasks at once. Without this SQLite refuses one of two that read and then write,
                # at once and without waiting (measured: "database is locked").
                options = connections[alias].settings_dict["OPTIONS"]
                options.setdefault("transaction_mode", "IMMEDIATE")
                options.setdefault("timeout", 20)
        caches = {
            alias: {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": self.redis_url(db),
                # Without this redis-py reads its own version from disk at each first connection (measured: 2 ms).
                "OPTIONS": {"driver_info": None},
            }
            for db, alias in enumerate(sorted(settings.CACHES), start=FIRST_CACHE_DB)
        }
        override_settings(
            CACHES=caches,
            EMAIL_BACKEND="django.core.mail.backends.smtp.EmailBackend",
            EMAIL_HOST="127.0.0.1",
            EMAIL_PORT=self.smtp_port,
            EMAIL_HOST_USER="",
            EMAIL_HOST_PASSWORD="",
            EMAIL_USE_TLS=False,
            EMAIL_USE_SSL=False,
        ).enable()
        broker = dict.fromkeys(
            ("broker_url", "broker_read_url", "broker_write_url"), self.redis_url(BROKER_DB)
        )
        conf = project_app().conf
        results = {"result_backend": self.redis_url(RESULT_DB)} if conf.result_backend else {}
        for name in BROKER_VARIABLES:
            os.environ.pop(name, None)
        # Settings for development and tests like to have tasks eager.
        secure = {"broker_use_ssl": None, "redis_backend_use_ssl": None, "task_always_eager": False}
        versions.put(conf, **broker, **results, **secure)

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to call `enter`."""
        return {**os.environ, ENVIRONMENT: json.dumps(asdict(self))}


def project_app():
    """Return the project's Celery app: the one that the policy is in force on, which need not be the current one."""
    return force.in_force().app


def celery_app():
    """Return the project's Celery app with all its task modules imported."""
    app = project_app()
    app.loader.import_default_modules()
    app.finalize()
    return app


def enter() -> Addresses:
    """Point this process at the sandbox that its environment names."""
    addresses = Addresses(**json.loads(os.environ[ENVIRONMENT]))
    addresses.apply()
    return addresses


class World:
    """What a case sees: `mailbox` (the SMTP sink), and the sandbox's databases through Django's ORM."""

    def __init__(self, addresses: Addresses, mailbox: SmtpSink):
        self.addresses = addresses
        self.mailbox = mailbox
        self._redis = redis.Redis("127.0.0.1", port=addresses.redis_port)
        self._calls = 0
        self._snapshots: dict[str, Path] = {}
        self._tables: dict[str, list[str]] = {}

    def remember_empty(self) -> None:
        """Keep the state after the migrations, for `empty`."""
        for alias in own_databases():
            connection = connections[alias]
            if connection.vendor == "sqlite":
                number_all_tables(connection)
                connection.close()
                database = Path(self.addresses.databases[alias])
                self._snapshots[alias] = shutil.copyfile(database, database.with_suffix(".empty"))
            else:
                self._tables[alias] = [
                    name for name in connection.introspection.table_names() if is_empty(connection, name)
                ]
        self.close()

    def empty(self) -> None:
        """Bring databases, broker, caches and mailbox back to the state after the migrations.

        Only the numbers of rows go on, as they would in earnest: what a process remembers of one call is not mistaken
        for another one.
        """
        self.close()
        self._calls += 1
        for alias, snapshot in self._snapshots.items():
            database = Path(self.addresses.databases[alias])
            for leftover in database.parent.glob(f"{database.name}-*"):
                leftover.unlink()
            shutil.copyfile(snapshot, database)
            with (
                closing(sqlite3.connect(database)) as raw,
                raw,
                suppress(sqlite3.OperationalError),
            ):  # has no counters
                raw.execute("UPDATE sqlite_sequence SET seq = ?", [self._calls * NUMBERS_A_CALL])
        for alias, tables in self._tables.items():
            connection = connections[alias]
            # Only what was written to: TRUNCATE costs a millisecond a table, and an empty one as much (measured).
            used = [name for name in tables if not is_empty(connection, name)]
            connection.ops.execute_sql_flush(
                connection.ops.sql_flush(no_style(), used, reset_sequences=False, allow_cascade=True)
            )
        # But for the bindings of queues to exchanges: who has declared them does not do so again.
        bindings = {key: self._redis.smembers(key) for key in self._redis.scan_iter("*_kombu.binding.*")}
        self._redis.flushall()
        for key, members in bindings.items():
            self._redis.sadd(key, *members)
        self.mailbox.forget()
        self.mailbox.behave()

    def flush_caches(self) -> None:
        """Empty every cache, as an operator or an eviction might."""
        for db, _ in enumerate(settings.CACHES, start=FIRST_CACHE_DB):
            redis.Redis("127.0.0.1", port=self.addresses.redis_port, db=db).flushdb()

    def waiting_messages(self) -> list[dict]:
        """Take every message out of the broker's queues and return them, as kombu wrote them."""
        taken = []
        for key in self._queues():
            taken += [json.loads(raw) for raw in reversed(self._redis.lrange(key, 0, -1))]  # oldest first
            self._redis.delete(key)
        return taken

    def unacknowledged(self) -> int:
        """Count the messages that wait in the broker's queues or are held by a worker."""
        return sum(map(self._redis.llen, self._queues())) + self._redis.hlen("unacked")

    def _queues(self) -> list[bytes]:
        """The lists of the broker that hold messages; the app's own hold records."""
        lists = self._redis.scan_iter(_type="list", count=1000)
        return [key for key in lists if not key.startswith(b"redelivery.")]

    def warm_up(self) -> None:
        """Do once here what each child would do anew at its first connection (measured: 10 ms a run)."""
        for alias in settings.CACHES:
            caches[alias].set("warm-up", 1)
        with suppress(OSError), mail.get_connection() as connection:
            mail.EmailMessage("warm-up", "", "a@example.com", ["b@example.com"], connection=connection).send()
        for alias in self.addresses.databases:
            connections[alias].ensure_connection()
        celery_app().backend  # noqa: B018 - it searches all installed packages for its entry point
        self.empty()
        gc.collect()
        gc.freeze()  # a collection in a child would copy every page that it looks at

    def close(self) -> None:
        """Close what a forked child must not share. Each child opens its own."""
        connections.close_all()
        for cache in caches.all(initialized_only=True):
            cache.close()


def number_all_tables(connection) -> None:
    """Give each table that counts its rows an entry in SQLite's own table of counters."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%'")
        for (name,) in cursor.fetchall():
            cursor.execute(
                "INSERT INTO sqlite_sequence (name, seq) SELECT %s, 0 WHERE NOT EXISTS "
                "(SELECT 1 FROM sqlite_sequence WHERE name = %s)",
                [name, name],
            )


def is_empty(connection, table: str) -> bool:
    """Tell whether a table holds no row."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")
        return cursor.fetchone() is None


@contextmanager
def sandbox():
    """Make a sandbox, point this process at it, and give its `World`; everything is gone afterwards.

    Raises SandboxError where it cannot be made.
    """
    with ExitStack() as stack:
        # Memory if there is some: a kill at every opcode is a commit at every opcode.
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        directory = Path(tempfile.mkdtemp(prefix="redelivery-", dir=shm))
        names = database_names(directory)
        stack.enter_context(janitor(lambda: clean(directory, names)))
        try:
            world = make_world(stack, directory, names)
        except RuntimeError as error:
            raise SandboxError(str(error)) from error
        except (DatabaseError, OSError) as error:
            raise SandboxError(f"the sandbox cannot be made: {type(error).__name__}: {error}") from error
        yield world


def make_world(stack: ExitStack, directory: Path, names: dict[str, str]) -> World:
    """Start the servers, make the databases, and point this process at them."""
    server: RedisServer = stack.enter_context(redis_server())
    mailbox = SmtpSink(free_port(), directory)
    mailbox.start()
    stack.callback(mailbox.stop)
    for alias in own_databases():
        create_database(alias, names[alias])
    addresses = Addresses(server.port, mailbox.port, str(directory), names)
    addresses.apply()
    refuse_private_stores()
    for alias in own_databases():
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    world = World(addresses, mailbox)
    stack.callback(world.close)
    world.remember_empty()
    world.warm_up()
    return world


def mirrored(alias: str) -> str | None:
    """Return the database that this one is a replica of (`TEST: {"MIRROR": ...}`, as for Django's own tests)."""
    return connections[alias].settings_dict["TEST"]["MIRROR"]


def own_databases() -> list[str]:
    """Return the databases that are no replica of another one."""
    return [alias for alias in settings.DATABASES if not mirrored(alias)]


def database_names(directory: Path) -> dict[str, str]:
    """Choose a name for each database that nobody else uses; of SQLite, a file."""
    names = {}
    for alias in own_databases():
        if connections[alias].vendor == "sqlite":
            names[alias] = str(directory / f"{alias}.sqlite3")
        else:
            names[alias] = f"redelivery_{secrets.token_hex(6)}_{alias}"[:60]
    return names | {alias: names[mirrored(alias)] for alias in settings.DATABASES if mirrored(alias)}


def create_database(alias: str, name: str) -> None:
    """Create an empty database on the project's database server; SQLite makes its file by itself."""
    connection = connections[alias]
    if connection.vendor != "sqlite":
        with connection._nodb_cursor() as cursor:
            suffix = connection.creation.sql_table_creation_suffix()
            cursor.execute(f"CREATE DATABASE {connection.ops.quote_name(name)} {suffix}")


def clean(directory: Path, names: dict[str, str]) -> None:
    """Delete the sandbox's folder and its databases."""
    shutil.rmtree(directory, ignore_errors=True)
    for alias in own_databases():
        connection = connections[alias]
        if connection.vendor != "sqlite":
            force = (
                " WITH (FORCE)" if connection.vendor == "postgresql" else ""
            )  # a killed child may still be seen
            with suppress(DatabaseError), connection._nodb_cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(names[alias])}{force}")


def refuse_private_stores() -> None:
    """Raise SandboxError where a store lives in one process: what a killed child wrote there, nobody else can see."""
    for alias in connections:
        connection = connections[alias]
        if connection.vendor == "sqlite" and connection.is_in_memory_db():
            raise SandboxError(
                f"database {alias!r} is in memory: it dies with the killed child (measured: the child saw 1 row, the "
                "parent 0). Use an SQLite file or PostgreSQL."
            )
    for alias, cache in settings.CACHES.items():
        if cache["BACKEND"].rpartition(".")[2] in {"LocMemCache", "DummyCache"}:
            raise SandboxError(
                f"cache {alias!r} is {cache['BACKEND']}: each process has its own, so a marker dies with the killed "
                "child. Use a Redis cache."
            )
