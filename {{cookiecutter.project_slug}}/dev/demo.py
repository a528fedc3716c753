"""`make demo`: kill workers in the middle of their tasks, and count what the world sees.

A web process, a worker and servers of its own; real HTTP posts, real mails, real SIGKILLs. Each worker is killed by the
mail server or the payment provider itself, at the moment that the story needs. Exit status 0 only if everything is as
ack_policy.toml declares.
"""

import http.cookiejar
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Short limits of the demo's own, in seconds; the service's real ones follow from ack_policy.toml.
TIME_LIMIT_S, VISIBILITY_S, DEAD_AFTER_S = 3, 4, 5


@dataclass(frozen=True)
class Scene:
    """One kill: which task, at which step of the SMTP conversation, and what the form is filled in with.

    Without a recipient there is no mail but a payment: the provider kills once it has charged.
    """

    task: str
    killed: str
    step: str
    path: str
    fields: dict[str, str]
    recipient: str = ""


WELCOME, ALERT = "onboarding.tasks.send_welcome_email", "leads.tasks.alert_new_lead"
PAYMENT = "payments.tasks.send_payment"
TEAM = "team@example.com"
SCENES = [
    Scene(
        WELCOME,
        "before the send",
        "rcpt",
        "/signup/",
        {"name": "Ada", "email": "ada@example.com"},
        "ada@example.com",
    ),
    Scene(
        WELCOME,
        "between the send and the marker",
        "quit",
        "/signup/",
        {"name": "Grace", "email": "grace@example.com"},
        "grace@example.com",
    ),
    Scene(
        ALERT,
        "after the alert was sent",
        "quit",
        "/leads/",
        {"name": "Edsger", "email": "edsger@example.com", "message": "Please call."},
        TEAM,
    ),
    Scene(
        PAYMENT,
        "after the charge, before the row says so",
        "charge",
        "/orders/",
        {"customer": "cus_1", "method": "pm_card", "amount": "1250", "currency": "EUR"},
    ),
]


class Demo:
    """The processes of the demo, and what is asked of them."""

    def __init__(self, stack: ExitStack):
        from payments.proofs.field import policy
        from payments.testing import Simulator
        from redelivery.testing import processes
        from redelivery.testing.servers import SmtpSink, redis_server

        self.processes = processes
        self.stack = stack
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="demo-")))
        self.redis = stack.enter_context(redis_server())
        self.mailbox = SmtpSink(processes.free_port(), self.directory)
        self.mailbox.start()
        stack.callback(self.mailbox.stop)
        (self.directory / "provider").mkdir()
        self.provider = Simulator(self.directory / "provider")
        self.provider.start()
        stack.callback(self.provider.stop)
        self.port = processes.free_port()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "payments.proofs.settings",  # the service's own, with short times
            "PROOF_POLICY": str(policy(self.directory)),
            "PROOF_DEAD_AFTER_S": str(DEAD_AFTER_S),
            "PAYMENT_PROVIDER": "simulated",
            "PAYMENT_SIMULATOR_URL": self.provider.url,
            "PAYMENT_TIMEOUT_S": "1",
            "DEBUG": "true",
            "SECRET_KEY": secrets.token_urlsafe(50),
            "ALLOWED_HOSTS": "127.0.0.1",
            "DATABASE_URL": f"sqlite:///{self.directory / 'demo.sqlite3'}",
            "BROKER_URL": self.redis.url(0),
            "CACHE_URL": self.redis.url(1),
            "EMAIL_URL": f"smtp://127.0.0.1:{self.mailbox.port}",
            "TEAM_EMAIL": TEAM,
            "DOMAIN": "example.com",
        }

    def python(self, *arguments: str):
        """Start a Python of this environment; what it says goes to a file that is shown if something goes wrong."""
        log = (self.directory / "log").open("a")
        process = self.processes.start(
            [sys.executable, *arguments], cwd=ROOT, env=self.environment, stdout=log, stderr=log, stdin=-3
        )
        self.stack.callback(self.processes.stop, process)
        return process

    def start_web(self) -> None:
        """Make the database and start gunicorn."""
        if self.python("manage.py", "migrate", "--verbosity", "0").wait():
            raise RuntimeError("the migrations failed")
        self.python("-m", "gunicorn", "service.wsgi", "--bind", f"127.0.0.1:{self.port}", "--workers", "1")
        self.processes.wait_until(lambda: self.processes.listens(self.port), 20, "the web process")

    def start_worker(self):
        """Start a worker and return it once it consumes."""
        consumers = len(self.text("log").split(" ready."))
        process = self.python(
            *("-m", "redelivery.testing.worker", str(self.directory), str(TIME_LIMIT_S), str(VISIBILITY_S)),
            *("--concurrency", "1", "--hostname", f"demo-{secrets.token_hex(3)}@localhost"),
        )
        self.processes.wait_until(
            lambda: process.poll() is not None or len(self.text("log").split(" ready.")) > consumers,
            30,
            "the worker",
        )
        if process.poll() is not None:
            raise RuntimeError("the worker did not start")
        return process

    def text(self, name: str) -> str:
        """Return the content of one of the demo's files."""
        file = self.directory / name
        return file.read_text() if file.exists() else ""

    def post(self, path: str, fields: dict[str, str]) -> None:
        """Fill in a form as a browser does: fetch it, take its CSRF token, post it, follow the redirect."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        url = f"http://127.0.0.1:{self.port}{path}"
        page = opener.open(url, timeout=10).read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page).group(1)
        answer = opener.open(
            url, urllib.parse.urlencode({"csrfmiddlewaretoken": token, **fields}).encode(), timeout=10
        )
        if answer.url == url:
            raise RuntimeError(f"the form at {path} was not accepted")

    def starts(self) -> int:
        """Return how often any task was started so far."""
        return len(self.text("starts").split())

    def empty(self) -> bool:
        """Tell whether the broker holds no message any more."""
        import redis

        broker = redis.Redis.from_url(self.redis.url(0))
        waiting = sum(broker.llen(key) for key in broker.scan_iter(_type="list"))
        return waiting + broker.hlen("unacked") == 0

    def quiet(self) -> bool:
        """Tell whether the broker is empty, twice in a row: between two of kombu's steps a message is nowhere."""
        if not self.empty():
            return False
        time.sleep(0.5)
        return self.empty()

    def payments(self) -> dict:
        """Return what `manage.py payments --json` says."""
        asked = [sys.executable, "manage.py", "payments", "--json"]
        done = subprocess.run(asked, cwd=ROOT, env=self.environment, stdin=-3, capture_output=True, text=True)
        return json.loads(done.stdout)

    def reconcile(self) -> None:
        """Have beat's sweep publish what is due, until no payment is open."""
        say(
            "  the row is `sending`, and nobody sends it again; reconciliation asks the provider what became of it"
        )
        deadline = time.monotonic() + 30
        sweep = "from payments.publishing import publish_due; publish_due()"
        while any(state["count"] for state in self.payments()["open"].values()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the payment is not settled: {self.payments()}")
            if self.python("manage.py", "shell", "--verbosity", "0", "-c", sweep).wait():
                raise RuntimeError("the sweep failed")

    def arm(self, scene: Scene, group: int) -> None:
        """Have the mail server or the provider kill a process group when the scene's moment comes."""
        if scene.recipient:
            self.mailbox.behave(to=scene.recipient, **{scene.step: f"kill {group}"})
        else:
            self.provider.behave(kill=group)

    def effects(self, scene: Scene) -> int:
        """Count from outside: mails, or charges in the provider's own ledger."""
        return len(self.mailbox.mails(to=scene.recipient) if scene.recipient else self.provider.charges())

    def play(self, scene: Scene) -> tuple[int, int]:
        """Play one scene; return how often the task was delivered, and how many mails or charges there are."""
        worker = self.start_worker()
        before = self.starts()
        self.arm(scene, worker.pid)
        self.post(scene.path, scene.fields)
        self.processes.wait_until(
            lambda: worker.poll() is not None, 20, f"the worker to be killed {scene.killed}"
        )
        say(f"  POST {scene.path} ... worker killed {scene.killed}: SIGKILL to all its processes")
        self.mailbox.behave()
        self.provider.behave()
        successor = self.start_worker()
        say("  another worker is up; the message comes back when its visibility timeout has passed")
        self.processes.wait_until(self.quiet, 60, "the message to be done")
        deliveries = self.starts() - before
        if scene.task == PAYMENT:
            self.reconcile()
        self.processes.stop(successor)
        return deliveries, self.effects(scene)


def say(text: str) -> None:
    """Show progress at once."""
    print(text, flush=True)


def promise(scene: Scene) -> tuple[str, set[int]]:
    """Return what the policy promises for a scene, in words and as the counts of effects that keep it."""
    from redelivery import policy

    entry = policy.load(ROOT / "ack_policy.toml").tasks[scene.task]
    if entry.guard == "none":
        return "1 or 2, never 0", {1, 2}
    if entry.guard == "claim":
        return "never 2; in doubt, it is read back", {1}  # this provider can be asked
    declared = [gap for gap in entry.gaps if gap.startswith("killed")] if scene.step == "quit" else []
    return (f'2, declared: "{declared[0]}"', {2}) if declared else ("1", {1})


def table(rows: list[tuple[str, ...]]) -> str:
    """Align rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def run(demo: Demo) -> bool:
    """Play all scenes, print the table, and return whether every verdict holds."""
    say(
        f"Starting Redis, SMTP sink, payment provider and web on free ports of 127.0.0.1, in {demo.directory}"
    )
    demo.start_web()
    say(f"Limits of this demo: time limit {TIME_LIMIT_S} s, visibility timeout {VISIBILITY_S} s")
    rows = [("task", "killed", "deliveries", "effects", "ack_policy.toml promises", "verdict")]
    held = True
    for number, scene in enumerate(SCENES, start=1):
        say(f"\n{number}/{len(SCENES)} {scene.task}, killed {scene.killed}")
        deliveries, effects = demo.play(scene)
        words, counts = promise(scene)
        kept = effects in counts and deliveries == 2
        held = held and kept
        rows.append(
            (scene.task, scene.killed, str(deliveries), str(effects), words, "kept" if kept else "BROKEN")
        )
    say("\n" + table(rows))
    say(
        "\nNothing went wrong that was not declared."
        if held
        else "\nSomething went wrong that was not declared."
    )
    return held


def main() -> int:
    """Run the demo and return its exit status; whatever happens, no process is left behind."""
    if not (ROOT / "onboarding").is_dir():
        say("The demo plays the worked examples, and this service was made without them.")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    try:
        with ExitStack() as stack:
            demo = Demo(stack)
            try:
                held = run(demo)
            except (RuntimeError, OSError) as error:
                say(f"\nThe demo could not go on: {error}\n{demo.text('log')[-3000:]}")
                return 1
    except KeyboardInterrupt:
        say("\nStopped; nothing is left running.")
        return 130
    say(f"({time.monotonic() - begun:.0f} s)")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
