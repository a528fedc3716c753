"""A generated service, hosts to deploy it to, and the playbooks that do it: what the rows of the proof work with."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import image
from machine import Machine

HERE = Path(__file__).resolve().parent
TEMPLATE = HERE.parents[1]
SLUG = "shop"
GIT = ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
#: Characters that shells, systemd and Ansible each give a meaning to.
ODD = "a$b %d #e \"f\" 'g' \\h `i` $(j) ${k} {l} ü"
POLICY = """
[queues.short]
concurrency = 4

[queues.medium]
concurrency = 2

[queues.long]
concurrency = 8
"""
ENTRY = """
[tasks."load.tasks.{name}"]
queue        = "{queue}"
ack          = "late"
guard        = "none"
time_limit_s = {limit}
reason       = "The proof counts how often each message ran, so that a second run does no harm and is seen."
gaps         = ["two deliveries at the same moment: two rows"]
"""
NUMBERS = itertools.count(1)
#: What of the units' sandbox a container may not allow.
SANDBOX = "systemd-run --quiet --wait -p PrivateUsers=yes -p ProtectSystem=strict -p PrivateDevices=yes true"
LIMITS = {"short": ("short", 10), "medium": ("medium", 72), "long": ("long", 600), "hog": ("short", 10)}


@dataclass
class Play:
    """One run of a playbook."""

    status: int
    output: str
    seconds: float

    @property
    def changed(self) -> int:
        """How many tasks changed something, on all hosts."""
        return sum(map(int, re.findall(r"changed=(\d+)", self.output)))

    @property
    def report(self) -> list[tuple[str, int, int, int, float]]:
        """What the play says of each old unit: name, finished, returned, killed, seconds of drain."""
        line = r"([a-z0-9_]+-[a-z0-9_]+@[0-9a-f]+\.service): (\d+) finished, (\d+) returned, (\d+) killed, ([\d.]+) s"
        # Ansible wraps long lines.
        found = {match[0]: match for match in re.findall(line, re.sub(r"\s+", " ", self.output))}
        return [(unit, int(f), int(r), int(k), float(s)) for unit, f, r, k, s in found.values()]


class Lab:
    """`folder` is a scratch folder. `add_host` makes the hosts: the first has the data servers, web and beat."""

    #: Held while packages are installed: what they start listens where every host's would, until it is configured.
    packages = threading.Lock()

    def __init__(self, folder: Path):
        self.folder, self.service = folder, folder / SLUG
        self.key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.limits = dict(LIMITS)
        self.deploy_s = 30.0
        self.extra: dict[str, str] = {"ODD": ODD}
        self._bake()
        self._base, self._wheels = image.base(self.service / "requirements.txt")
        #: All that are booted, and those of the inventory.
        self.hosts: list[Machine] = []
        self.deployed: list[Machine] = []
        #: What the deploys under load have shown: seconds without a start, and by how much stops were late.
        self.pauses: list[float] = []
        self.late: list[float] = []
        self.tools = image.cache() / "tools"
        requirements = self.service / "deploy/ansible/requirements.txt"
        made = [sys.executable, self.service / "dev/make_venv.py", self.tools, requirements]
        if subprocess.run(made).returncode:
            raise image.NotHere("Ansible could not be installed; the lines above say why")

    def add_host(self, name: str) -> Machine:
        """Boot one more host, and write it into the inventory."""
        host = self.boot(name)
        self.deployed.append(host)
        self.inventory()
        return host

    def boot(self, name: str) -> Machine:
        """Boot one more host."""
        # An address of the loopback network that no other run uses at the same time.
        address = f"127.77.{os.getpid() % 200 + 20}.{next(NUMBERS)}"
        host = Machine(self._base, self._wheels, self.folder, name, address, self.key)
        self.hosts.append(host)
        try:
            host.boot()
        except (RuntimeError, TimeoutError) as error:
            raise image.NotHere(f"a host does not boot: {error}") from None
        if host.try_run(SANDBOX)[0]:
            raise image.NotHere("a host boots, but systemd in it cannot run units in a sandbox")
        return host

    @property
    def host(self) -> Machine:
        """The first host."""
        return self.hosts[0]

    # The service ---------------------------------------------------------------------------------------------

    def bake(self, service: Path) -> None:
        """Generate a service, and put it under version control."""
        service.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "cookiecutter", "--no-input", "--default-config", TEMPLATE]
        answers = [f"project_slug={service.name}", "ci=none"]
        subprocess.run([*command, "--output-dir", service.parent, *answers], check=True)
        subprocess.run(["git", "init", "--quiet"], cwd=service, check=True)
        self.commit("As generated", service)

    def _bake(self) -> None:
        self.bake(self.service)
        shutil.copytree(HERE / "load", self.service / "load", ignore=shutil.ignore_patterns("__pycache__"))
        own = self.service / "service/own.py"
        own.write_text(own.read_text().replace("APPS = [", 'APPS = ["load", '))
        self._policy = (self.service / "ack_policy.toml").read_text() + POLICY
        self.policy()
        self.commit("Add what the proof runs")

    def policy(self) -> None:
        """Write ack_policy.toml with the limits as they are."""
        entries = (
            ENTRY.format(name=name, queue=queue, limit=limit) for name, (queue, limit) in self.limits.items()
        )
        (self.service / "ack_policy.toml").write_text(self._policy + "".join(entries))

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text in a file of the service; it must be there."""
        file = self.service / path
        text = file.read_text()
        if old not in text:
            raise ValueError(f"{path} does not hold {old!r}")
        file.write_text(text.replace(old, new))

    def commit(self, message: str, service: Path | None = None) -> None:
        """Commit what was changed."""
        for command in (["add", "--all"], ["commit", "--quiet", "--allow-empty", "--message", message]):
            subprocess.run([*GIT, *command], cwd=service or self.service, check=True)

    def shell(self, command: str, folder: Path, more: dict[str, str]) -> subprocess.CompletedProcess:
        """Run a line of a shell as a user would, with some variables more, and none of a `make` that runs this."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
        out = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        return subprocess.run(["sh", "-c", command], cwd=folder, env=kept | more, **out)

    def change_code(self) -> None:
        """Commit a change that every process runs on."""
        with (self.service / "service/urls.py").open("a") as file:
            file.write(f"# {time.time_ns()}\n")
        self.commit("Change the code")

    # Playbooks -----------------------------------------------------------------------------------------------

    def inventory(self) -> None:
        """Write the inventory as somebody would who starts from the example."""
        first = self.host.address
        example = (self.service / "deploy/inventory.example.yml").read_text()
        variables = example[example.index("  vars:\n") :].replace("127.0.0.1", first)
        for name, value in self.extra.items():
            variables = variables.replace(
                "      DOMAIN:", f"      {name}: {json.dumps(value)}\n      DOMAIN:"
            )
        one, every = {"hosts": {self.host.name: None}}, {"hosts": {host.name: None for host in self.deployed}}
        names = re.findall(
            r"^\[queues\.(\w+)\]", (self.service / "ack_policy.toml").read_text(), re.MULTILINE
        )
        queues = {f"queue_{name}": every if name == "short" else one for name in names}
        groups = {
            "service": {"children": {"web": one, "beat": one, **queues}},
            "redis": one,
            "postgresql": one,
        }
        shared = {
            "ansible_user": "admin",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "redis_bind": first,
            "postgresql_listen": first,
            "postgresql_clients": ["127.0.0.0/8"],
        }
        hosts = {
            host.name: {**shared, "ansible_host": host.address, "service_web_listen": f"{host.address}:8000"}
            for host in self.deployed
        }
        # JSON is YAML, too.
        text = f"all:\n  children: {json.dumps(groups)}\n  hosts: {json.dumps(hosts)}\n"
        (self.service / "deploy/inventory.yml").write_text(text + variables)
        secrets = {
            "vault_secret_key": ODD * 2,
            "vault_database_password": ODD[:30],
            "vault_email_url": "smtp://127.0.0.1:9",
        }
        secrets["vault_stripe_api_key"] = "sk_test_of_nobody"
        lines = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in secrets.items())
        (self.service / "deploy/vault.yml").write_text(f"all:\n  vars:\n{lines}")

    def start_play(self, name: str, *arguments: str) -> subprocess.Popen:
        """Start a playbook in a session of its own."""
        return subprocess.Popen(
            [self.tools / "bin/ansible-playbook", f"{name}.yml", *arguments],
            cwd=self.service / "deploy/ansible",
            env={
                **os.environ,
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_HOST_KEY_CHECKING": "0",
                "ANSIBLE_DEPRECATION_WARNINGS": "0",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def play(self, name: str, *arguments: str, expect: int | None = 0) -> Play:
        """Run a playbook; raises AssertionError with its output when its status is not the expected one."""
        begin = time.monotonic()
        process = self.start_play(name, *arguments)
        try:
            output = process.communicate()[0]
        except BaseException:  # this run has no time left, or was interrupted
            os.killpg(process.pid, signal.SIGKILL)
            raise
        with (self.folder / "plays.log").open("a") as log:
            log.write(f"==== {name} {' '.join(arguments)}\n{output}\n")
        if expect is not None and (process.returncode != 0) != (expect != 0):
            raise AssertionError(f"{name}.yml ended with {process.returncode}:\n{output[-6000:]}")
        play = Play(process.returncode, output, time.monotonic() - begin)
        if name == "deploy" and play.status == 0 and play.changed:
            self.deploy_s = play.seconds - sum(stop[-1] for stop in play.report[:1])
        return play

    # What the hosts say --------------------------------------------------------------------------------------

    def release(self) -> str:
        """The release that serves, by the first host."""
        return self.host.run(f"basename $(readlink /srv/{SLUG}/current)")

    def unit(self, queue: str, release: str = "") -> str:
        """The name of a worker unit."""
        return f"{SLUG}-{queue}@{release or self.release()}.service"

    def manage(self, command: str) -> str:
        """Run manage.py on the first host."""
        return self.host.run(f"/srv/{SLUG}/bin/manage {command}")

    def sql(self, query: str) -> str:
        """Ask the database; one value a line, columns separated by |."""
        return self.host.run(f"runuser -u postgres -- psql -d {SLUG} -AtX", text=query)

    def publish(self, seconds: float, queue: str = "long") -> int:
        """Publish one task that takes so long; return its number."""
        return json.loads(self.manage(f"load --one {seconds} --queue {queue}"))["first"]

    @property
    def longer_than_a_deploy_s(self) -> float:
        """How long a task must take so that it still runs when a deploy that builds a release stops its worker."""
        return max(30.0, 1.3 * self.deploy_s + 10)

    def run_begins(self, number: int, timeout_s: float = 60) -> None:
        """Wait until a task runs."""
        query = f"SELECT count(*) FROM load_run WHERE number = {number}"
        self.host.wait_until(lambda: self.sql(query) != "0", timeout_s, f"task {number} runs")

    def runs(self, number: int) -> list[list[str]]:
        """Each run of a task: worker, start, end (empty when it has none), the times as seconds since the epoch."""
        columns = "worker, extract(epoch from started_at), extract(epoch from ended_at)"
        text = self.sql(f"SELECT {columns} FROM load_run WHERE number = {number} ORDER BY started_at")
        return [line.split("|") for line in text.splitlines()]

    @contextmanager
    def under_load(self, short: float = 20, long: float = 0.1, longest: float = 60):
        """Messages at a steady rate and web requests meanwhile; what came of them is in the `Load` afterwards."""
        load = Load(self)
        load.start(short, long, longest)
        try:
            yield load
        except BaseException:
            load.stop()
            raise
        load.stop()
        load.wait()


class Load:
    """A publisher on the first host and a thread that asks its web process ten times a second."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self.requests = self.failed_requests = 0
        self.slowest_s = 0.0
        self._stop = threading.Event()

    def start(self, short: float, long: float, longest: float) -> None:
        """Begin, and return when the first message has run."""
        self.first = int(time.time()) * 10**6
        options = f"--short {short} --long {long} --longest {longest} --first {self.first} --seconds 3600"
        self.lab.host.run(
            f"systemd-run --quiet --unit=load --uid={SLUG} --working-directory=/srv/{SLUG}/current/code"
            f" --property=EnvironmentFile=/srv/{SLUG}/current/environment"
            f" /srv/{SLUG}/current/venv/bin/python manage.py load {options}"
        )
        self._asker = threading.Thread(target=self._ask, daemon=True)
        self._asker.start()
        self.lab.host.wait_until(lambda: int(self._count("load_run")) > 20, 60, "the first tasks have run")

    def _ask(self) -> None:
        url = f"http://{self.lab.host.address}:8000/healthz"
        while not self._stop.wait(0.1):
            begin = time.monotonic()
            self.requests += 1
            try:
                request = urllib.request.Request(url, headers={"Host": "localhost"})
                with urllib.request.urlopen(request, timeout=30):
                    pass
            except OSError as error:
                self.failed_requests += 1
                self.last_error = error
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)

    def _count(self, table: str, condition: str = "") -> str:
        return self.lab.sql(f"SELECT count(*) FROM {table} WHERE number >= {self.first} {condition}")

    def stop(self) -> None:
        """End the publishing, and the requests."""
        self._stop.set()
        self._asker.join()
        self.lab.host.try_run("systemctl stop load.service")

    def wait(self) -> None:
        """Wait until everything that was sent has ended (a minute longer than it may take)."""
        done = f"SELECT count(*) FROM load_sent s WHERE number >= {self.first} AND NOT EXISTS "
        done += "(SELECT 1 FROM load_run r WHERE r.number = s.number AND r.ended_at IS NOT NULL)"
        self.waiting = done
        with suppress(TimeoutError):  # `lost` says how many
            self.lab.host.wait_until(lambda: self.lab.sql(done) == "0", 120, "all messages have run")

    def figures(self) -> dict[str, float]:
        """What the database knows: sent, lost, cut off, run twice, and the longest pause between two starts."""
        runs = f"FROM load_run WHERE number >= {self.first}"
        pause = self.lab.sql(
            "SELECT coalesce(max(pause), 0) FROM (SELECT extract(epoch from started_at - lag(started_at) OVER "
            f"(ORDER BY started_at)) AS pause {runs} AND queue = 'short') AS pauses"
        )
        twice = self.lab.sql(
            f"SELECT count(*) FROM (SELECT number {runs} GROUP BY number HAVING count(*) > 1) AS twice"
        )
        return {
            "sent": int(self._count("load_sent")),
            "lost": int(self.lab.sql(self.waiting)),
            "cut off": int(self._count("load_run", "AND ended_at IS NULL")),
            "run twice": int(twice),
            "longest pause s": round(float(pause), 2),
            "requests": self.requests,
            "failed requests": self.failed_requests,
            "slowest request s": round(self.slowest_s, 2),
        }

    def began_before(self, moment: float) -> list[tuple[str, float]]:
        """Worker, and planned end as seconds since the epoch, of each run that was on its way at `moment`."""
        text = self.lab.sql(
            "SELECT worker, extract(epoch from started_at) + seconds FROM load_run "
            f"WHERE started_at < to_timestamp({moment}) AND coalesce(ended_at, now()) > to_timestamp({moment})"
        )
        return [(worker, float(end)) for worker, end in (line.split("|") for line in text.splitlines())]
