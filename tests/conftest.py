"""Generate services from a clean copy of the template, watched and away from the user's own files.

The copy holds what a clone would: caches and leftovers in the working tree do not reach the services.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import postgresql
import pytest

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = (
    "project_name",
    "project_slug",
    "description",
    "author",
    "domain",
    "ci",
    "worked_examples",
    "ansible",
)
CI_KINDS = ("github", "gitlab", "none")
BAKE = "seconds of a bake"

# What a shell starts in the background ignores Ctrl-C, and under nohup a hangup; so would all that the tests start.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

WATCHER = '''
"""Write down what this Python, and each Python that it starts, runs and connects to."""
import json, os, sys

def note(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "socket.connect", "socket.getaddrinfo"):
        with open(os.environ["WATCHER_LOG"], "a") as log:
            log.write(json.dumps([event, repr(arguments)]) + "\\n")

sys.addaudithook(note)
'''


def plain_environment(**more) -> dict[str, str]:
    """Return the few variables that any program needs, and none of a `make` that runs these tests."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | more


@dataclass
class Run:
    """What one run of cookiecutter did."""

    returncode: int
    stdout: str
    stderr: str
    sandbox: Path  # the folder that it ran in, with `out` (the --output-dir) and nothing else
    events: list  # programs started and connections made, of cookiecutter and its hook

    @property
    def first_line(self) -> str:
        """The first line of the errors."""
        return self.stderr.partition("\n")[0]

    @property
    def left_behind(self) -> list[str]:
        """Every path below the sandbox, except for the empty folder `out`."""
        paths = sorted(path.relative_to(self.sandbox).as_posix() for path in self.sandbox.rglob("*"))
        return [path for path in paths if path != "out"]


def clean_copy(copy: Path) -> Path:
    """Copy the files of the template that git knows or would add, as they are now."""
    listing = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """A copy of the template with the files that git knows or would add, as they are now."""
    return clean_copy(tmp_path_factory.mktemp("template") / "template")


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A home folder for cookiecutter, which writes replay files there, with the watcher beside it."""
    home = tmp_path_factory.mktemp("home")
    (home / "watcher").mkdir()
    (home / "watcher" / "sitecustomize.py").write_text(WATCHER)
    return home


@pytest.fixture
def cookiecutter(template, home, tmp_path, record_property):
    """Return a function that runs `cookiecutter TEMPLATE` in an empty sandbox, and returns a `Run`.

    Arguments: `arguments` for the command line; `typed`, the lines typed at the prompts; `config`, the
    `default_context` of a config file; `sandbox`, another place for it to run in; `source`, the template as a
    URL.
    """

    def run(*arguments, typed=None, config=None, sandbox=tmp_path / "sandbox", source=template):
        (sandbox / "out").mkdir(parents=True, exist_ok=True)
        log = home / "events"
        log.write_text("")
        command = [sys.executable, "-m", "cookiecutter", str(source), "--output-dir", str(sandbox / "out")]
        if config is not None:
            (home / "config.yaml").write_text(json.dumps({"default_context": config}))
            command += ["--config-file", str(home / "config.yaml")]
        if typed is None:
            command.append("--no-input")
        environment = plain_environment(
            HOME=str(home),
            PYTHONPATH=str(home / "watcher"),
            PYTHONDONTWRITEBYTECODE="1",
            WATCHER_LOG=str(log),
        )
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, *arguments],
            cwd=sandbox,
            env=environment,
            input=None if typed is None else "".join(f"{line}\n" for line in typed),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
        if done.returncode == 0:
            record_property(BAKE, time.perf_counter() - begin)
        events = [json.loads(line) for line in log.read_text().splitlines()]
        return Run(done.returncode, done.stdout, done.stderr, sandbox, events)

    return run


@pytest.fixture
def bake(cookiecutter):
    """Return a function that generates a service with the given answers, and returns its folder."""

    def generate(sandbox=None, **answers):
        answers = {"project_slug": "shop", **answers}
        place = {} if sandbox is None else {"sandbox": sandbox}
        run = cookiecutter(*(f"{name}={value}" for name, value in answers.items()), **place)
        assert run.returncode == 0, run.stderr
        return run.sandbox / "out" / answers["project_slug"]

    return generate


@pytest.fixture(scope="session")
def service_venv() -> Path:
    """The virtual environment that all generated services of these tests share; made by their own script."""
    venv = Path(os.environ.get("SERVICE_VENV", ROOT / ".venv-service"))
    service = ROOT / "{{cookiecutter.project_slug}}"
    # One process of pytest-xdist makes it, and the others wait.
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, service / "dev" / "make_venv.py", venv, service / "requirements-dev.txt"],
            check=True,
        )
    return venv


@pytest.fixture(scope="session")
def postgresql_url():
    """The URL of a database on a PostgreSQL of these tests; skips, with the reason, where there is none."""
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgresql.postgresql())
        except postgresql.NoPostgresql as reason:
            pytest.skip(str(reason))
        yield url


@pytest.fixture
def run_in(service_venv):
    """Return a function that runs a program of the services' environment in a folder and returns its output.

    `run_in(folder, "ruff", "check", ".")`; `make` gets the environment as VENV; `env` adds variables. A
    program that fails fails the test.
    """

    def run(folder, program, *arguments, env=None, timeout=120):
        command = [program, *arguments]
        if program == "make":
            command += [f"VENV={service_venv}", f"PYTHON={sys.executable}"]
        else:
            command[0] = str(service_venv / "bin" / program)
        done = subprocess.run(
            command,
            cwd=folder,
            env=plain_environment(PYTHONDONTWRITEBYTECODE="1", **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        if done.returncode != 0:
            pytest.fail(f"{command} ended with {done.returncode}:\n{done.stdout}", pytrace=False)
        return done.stdout

    return run


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the longest tests first, after pytest-randomly has shuffled: a long one that comes last would run alone."""

    def minutes(item) -> float:
        return -max((mark.kwargs.get("minutes", 1) for mark in item.iter_markers("slow")), default=0)

    items.sort(key=minutes)


def pytest_terminal_summary(terminalreporter):
    """Say how long the bakes took, the start of cookiecutter included."""
    reports = [report for several in terminalreporter.stats.values() for report in several]
    seconds = [
        seconds
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, seconds in report.user_properties
        if name == BAKE
    ]
    if seconds:
        terminalreporter.write_line(
            f"{len(seconds)} bakes: {statistics.median(seconds):.2f} s in the median, "
            f"{min(seconds):.2f} to {max(seconds):.2f} s."
        )
