"""Real workers, a real broker and a provider, in a place of their own, with an operator's view of the rows."""

import argparse
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from redelivery.testing import processes
from redelivery.testing.servers import RedisServer

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_S, MARGIN_S, TIMEOUT_S = 5, 31, 0.8
DEAD_AFTER_S = TIME_LIMIT_S + MARGIN_S


def parser(name: str, text: str) -> argparse.ArgumentParser:
    """Return a parser with what all experiments with workers take."""
    made = argparse.ArgumentParser(
        prog=name, description=text, epilog="On PostgreSQL: PROOF_DATABASE_URL=postgres://..."
    )
    made.add_argument(
        "--dead-after",
        type=float,
        default=DEAD_AFTER_S,
        help="seconds after which a claimed row is looked at (default: what follows from the policy); for haste only",
    )
    return made


def database(stack: ExitStack, directory: Path) -> str:
    """Return the URL of an empty database: a file, or one of its own beside that of PROOF_DATABASE_URL."""
    url = os.environ.get("PROOF_DATABASE_URL")
    if not url:
        return f"sqlite:///{directory / 'db.sqlite3'}"
    import psycopg

    name = f"proof_{secrets.token_hex(6)}"

    def execute(sql: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql)

    execute(f"CREATE DATABASE {name}")
    stack.callback(execute, f"DROP DATABASE {name} WITH (FORCE)")
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def policy(directory: Path) -> Path:
    """Write the service's own policy with short limits; return its path."""
    text = (ROOT / "ack_policy.toml").read_text()
    text = re.sub(r"time_limit_s = \d+", f"time_limit_s = {TIME_LIMIT_S}", text)
    text = re.sub(r"margin_s = \d+", f"margin_s = {MARGIN_S}", text)
    (directory / "ack_policy.toml").write_text(text)
    return directory / "ack_policy.toml"


class Field:
    """The servers, the workers, and this process as web and beat."""

    def __init__(self, stack: ExitStack, name: str, dead_after_s: float, timeout_s: float = TIMEOUT_S):
        from payments.testing import Simulator

        self.stack = stack
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{name}-")))
        (self.directory / "broker").mkdir()
        (self.directory / "provider").mkdir()
        self.broker = RedisServer(processes.free_port(), self.directory / "broker")
        self.broker.start()
        stack.callback(lambda: self.broker.stop())
        self.provider = Simulator(self.directory / "provider")
        self.provider.start()
        stack.callback(self.provider.stop)
        os.environ.update(
            DJANGO_SETTINGS_MODULE="payments.proofs.settings",
            PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            PROOF_POLICY=str(policy(self.directory)),
            DATABASE_URL=database(stack, self.directory),
            PROOF_DEAD_AFTER_S=str(dead_after_s),
            BROKER_URL=self.broker.url(0),
            CACHE_URL=self.broker.url(1),
            PAYMENT_PROVIDER="simulated",
            PAYMENT_SIMULATOR_URL=self.provider.url,
            PAYMENT_TIMEOUT_S=str(timeout_s),
            SECRET_KEY=secrets.token_urlsafe(50),
        )
        self.workers: list[subprocess.Popen] = []
        self.migrate()

    def migrate(self) -> None:
        """Enter the settings of the experiment in this process, and make its tables."""
        import django
        from django.core.management import call_command

        django.setup()
        logging.disable(logging.CRITICAL)
        from datetime import timedelta

        from payments import publishing

        publishing.SWEEP_AFTER = timedelta(seconds=10)
        call_command("migrate", verbosity=0)

    def start_worker(self) -> subprocess.Popen:
        """Start a worker of one process for the payments; it may take seconds until it consumes."""
        log = (self.directory / "workers.log").open("a")
        celery = [sys.executable, "-m", "celery", "-A", "service", "worker", "-Q", "payments", "-c", "1"]
        name = f"w{secrets.token_hex(4)}@proof"
        command = [
            *celery,
            "-n",
            name,
            "-l",
            "INFO",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
        process = processes.start(command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        self.workers.append(process)
        self.stack.callback(processes.stop, process)
        return process

    def log(self) -> str:
        """Return what all workers said."""
        return (self.directory / "workers.log").read_text()

    def kill(self, worker: subprocess.Popen) -> None:
        """SIGKILL a worker, its pool process too."""
        processes.kill_group(worker)
        worker.wait()
        self.workers.remove(worker)

    def signal(self, worker: subprocess.Popen, number: signal.Signals) -> None:
        """Send a signal to a worker and its pool process."""
        os.killpg(worker.pid, number)

    def order(self, number: int) -> None:
        """Place an order, as the web would."""
        from payments.publishing import place_order
        from payments.records import Order

        place_order(Order(customer=f"cus_{number}", method="pm_card", amount=100 + number, currency="EUR"))

    def sweep(self) -> int:
        """Publish what is due, as beat would; nothing while the broker is away."""
        from payments.publishing import publish_due

        return publish_due()

    def until(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Sweep every second until something is true; raises TimeoutError."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"waited {seconds:g} s in vain for {what}: {self.states()}\n{self.log()[-3000:]}"
                )
            self.sweep()
            time.sleep(1)

    def states(self) -> Counter:
        """Count the rows by state."""
        from payments.models import Payment

        return Counter(Payment.objects.values_list("state", flat=True))

    def nothing_moves(self) -> bool:
        """Tell whether each row is settled, or open with a person."""
        from payments.models import Payment

        return not Payment.objects.filter(settled_at=None, due_at__isnull=False).exists()

    def books(self) -> dict:
        """Compare the provider's ledger with the rows."""
        from payments.models import Payment, State

        charges = Counter(charge["key"] for charge in self.provider.charges())
        rows = list(Payment.objects.select_related("order"))
        sent = {str(row.provider_key) for row in rows if row.state == State.SENT}
        amounts = {charge["key"]: charge["amount"] for charge in self.provider.charges()}
        return {
            "rows": dict(sorted(self.states().items())),
            "charges": charges.total(),
            "charged more than once": sum(count > 1 for count in charges.values()),
            "sent without a charge": len(sent - charges.keys()),
            "rejected with a charge": sum(
                row.state == State.REJECTED and str(row.provider_key) in charges for row in rows
            ),
            "charged and pending": sum(
                row.state == State.PENDING and str(row.provider_key) in charges for row in rows
            ),
            "open, and nobody told": sum(row.settled_at is None and row.due_at is not None for row in rows),
            "with a person": sum(row.settled_at is None and row.due_at is None for row in rows),
            "wrong amount": sum(
                amounts.get(str(row.provider_key), row.order.amount) != row.order.amount for row in rows
            ),
            "contradicted": sum(row.contradicted for row in rows),
        }


WRONG = (
    "charged more than once",
    "sent without a charge",
    "rejected with a charge",
    "charged and pending",
    "open, and nobody told",
    "wrong amount",
    "contradicted",
)


def wrong(books: dict) -> list[str]:
    """Return what must be zero in the books and is not."""
    return [f"{name}: {books[name]}" for name in WRONG if books[name]]


def show(title: str, books: dict, more: dict) -> int:
    """Print what came of an experiment; return its exit status."""
    print(title)
    for name, value in {**more, **books}.items():
        print(f"  {name:<24} {value}")
    found = wrong(books)
    print(f"  WRONG: {', '.join(found)}" if found else "  books and rows agree")
    return 1 if found else 0
