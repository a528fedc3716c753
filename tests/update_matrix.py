"""Edits x routes: what becomes of each edit of a service, by `make update`, by cruft, and by plain cookiecutter.

`make matrix` measures it and writes the tables of docs/updating.md; tests/test_update_matrix.py compares them.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conftest import ROOT, clean_copy
from versions import (
    EARLIER,
    Repository,
    TemplateRepository,
    environment,
    real_template,
    repository_of,
    update,
)

PAGE = ROOT / "docs" / "updating.md"
BETWEEN = re.compile(r"(?<=<!-- matrix -->\n).*?(?=<!-- end of matrix -->)", re.DOTALL)
SLUG = "shop"

TASK = """
[queues.billing]
concurrency = 1

[tasks."billing.tasks.count_invoices"]
queue        = "billing"
ack          = "early"
guard        = "lost-ok"
time_limit_s = 60
reason       = "The next run counts all of them again, so one that is lost costs nothing."
gaps         = ["lost: the numbers are a day old"]
"""
TASK_CODE = '''"""Counts invoices."""

from celery import shared_task


@shared_task
def count_invoices() -> int:
    """Return how many there are."""
    return 0
'''
BELOW = "    # The service's own, below this line: the template adds above it, and git merges both.\n"
OWN_FILES = {
    "billing/__init__.py": "",
    "billing/tasks.py": TASK_CODE,
    "deploy/systemd/shop-billing@.service.d/memory.conf": "[Service]\nMemoryMax=1G\n",
}


@dataclass(frozen=True)
class Edit:
    """An edit, and how to see afterwards whether it is there, and whether the template's change is."""

    name: str
    paths: tuple[str, ...]  # where a conflict about it shows
    do: Callable[[Repository], None]
    kept: Callable[[Repository], bool]
    arrived: Callable[[Repository], bool]
    committed: bool = True


def holds(name: str, *texts: str, without: str = "<<<<<<<") -> Callable[[Repository], bool]:
    """Return a function that says whether a file is there with these texts in it, and without another."""

    def look(service: Repository) -> bool:
        path = service.folder / name
        text = path.read_text() if path.is_file() else ""
        return path.is_file() and all(each in text for each in texts) and without not in text

    return look


def is_gone(name: str) -> Callable[[Repository], bool]:
    """Return a function that says whether a file is not there."""
    return lambda service: not (service.folder / name).exists()


def always(service: Repository) -> bool:
    """There is nothing to look for."""
    return True


def add_what_is_ones_own(service: Repository) -> None:
    """A task with its queue and entry, an app, a setting, a unit's drop-in, each in its place."""
    service.append("ack_policy.toml", TASK)
    own = service.read("service/own.py")
    service.write("service/own.py", own.replace(BELOW, f'{BELOW}    "billing",\n', 1))
    service.append("service/settings/own.py", "\nLANGUAGE_CODE = 'de'\n".replace("'", '"'))
    for name, text in OWN_FILES.items():
        service.write(name, text)


def own_is_there(service: Repository) -> bool:
    """All of that is as it was written."""
    return (
        holds("ack_policy.toml", TASK)(service)
        and holds("service/own.py", f'{BELOW}    "billing",\n')(service)
        and holds("service/settings/own.py", 'LANGUAGE_CODE = "de"')(service)
        and all(holds(name, text)(service) for name, text in OWN_FILES.items())
    )


def ignore_and_write(service: Repository) -> None:
    """A file that git ignores, where the template has a new one."""
    service.append(".git/info/exclude", "publishing.py\n")
    service.write("service/publishing.py", "mine = True\n")


CONF, NEW = "gunicorn.conf.py", "service/publishing.py"
ANOTHER_REGION = Edit(
    "another region of a changed file",
    (CONF,),
    lambda service: service.change(CONF, 'bind = "127.0.0.1:8000"', 'bind = "127.0.0.1:8001"'),
    holds(CONF, "127.0.0.1:8001", without=">>>>>>>"),
    holds(CONF, "graceful_timeout = 20\n"),
)
SAME_LINE = Edit(
    "the same line",
    (CONF,),
    lambda service: service.change(CONF, "graceful_timeout = 300", "graceful_timeout = 1200"),
    holds(CONF, "graceful_timeout = 1200"),
    holds(CONF, "graceful_timeout = 20\n"),
)
DELETED = Edit("a changed file deleted", (CONF,), lambda service: service.remove(CONF), is_gone(CONF), always)
MOVED = Edit(
    "a changed file renamed",
    (CONF, "ops/gunicorn.py"),
    lambda service: service.rename(CONF, "ops/gunicorn.py"),
    lambda service: is_gone(CONF)(service) and holds("ops/gunicorn.py")(service),
    holds("ops/gunicorn.py", "graceful_timeout = 20\n"),
)
EDITED = Edit(
    "a file that the template deletes, edited",
    ("service/legacy.py",),
    lambda service: service.change("service/legacy.py", '"second": 2', '"second": 22'),
    holds("service/legacy.py", '"second": 22'),
    is_gone("service/legacy.py"),
)
RENAMED = Edit(
    "a file that the template renames, edited",
    ("service/checking.py", "service/validators.py"),
    lambda service: service.change("service/checking.py", "Refuses line breaks", "Mine refuses line breaks"),
    holds("service/validators.py", "Mine refuses line breaks"),
    is_gone("service/checking.py"),
)
SAME_PATH = Edit(
    "a file of one's own where the template adds one",
    (NEW,),
    lambda service: service.write(NEW, "mine = True\n"),
    holds(NEW, "mine = True"),
    holds(NEW, "def publish"),
)
IGNORED = Edit(
    "the same, and git ignores it",
    (NEW,),
    ignore_and_write,
    holds(NEW, "mine = True"),
    holds(NEW, "def publish"),
    committed=False,
)
OWN = Edit(
    "own task, queue, app, setting and drop-in",
    ("ack_policy.toml", "service/own.py", "service/settings/own.py"),
    add_what_is_ones_own,
    own_is_there,
    lambda service: (
        holds("ack_policy.toml", "publish_overdue_alerts")(service)
        and holds("service/own.py", "publish-overdue-alerts")(service)
    ),
)
EDITS = (ANOTHER_REGION, SAME_LINE, DELETED, MOVED, EDITED, RENAMED, SAME_PATH, IGNORED, OWN)
TOGETHER = (SAME_LINE, EDITED, RENAMED, SAME_PATH, OWN)
"""Those that can be in one service at once."""


class Route:
    """One way to take over a newer version."""

    name = ""

    def __init__(self, template: TemplateRepository, scratch: Path):
        self.template, self.scratch = template, scratch

    def generate(self, version: str, folder: Path) -> Repository:
        """Return a service of a version, in no repository yet."""
        return self.template.generate(version, folder, project_slug=SLUG)

    def take_over(self, service: Repository) -> int:
        """Bring a service to the newest version, and return the exit status."""
        raise NotImplementedError

    def measured(self, edits: Sequence[Edit], version: str = EARLIER[-1]) -> list[str]:
        """Make edits, take over the newest version, and return what became of each."""
        place = Path(tempfile.mkdtemp(dir=self.scratch))
        service = repository_of(self.generate(version, place / SLUG))
        for edit in edits:
            edit.do(service)
        if all(edit.committed for edit in edits):
            service.commit("Edits")
        before = service.files
        status = self.take_over(service)
        if status and service.files == before:
            return [f"flagged [{status}], refused" for _ in edits]
        return [f"{state(edit, service)} [{status}]" for edit in edits]


def state(edit: Edit, service: Repository) -> str:
    """Say what became of an edit."""
    conflicts = set(service.git("diff", "--name-only", "--diff-filter=U").splitlines())
    rejected = {path for path in edit.paths if (service.folder / f"{path}.rej").exists()}
    if conflicts & set(edit.paths):
        return "flagged"
    if rejected:
        return "flagged (.rej)"
    if not edit.kept(service):
        return "**lost**"
    return "kept" if edit.arrived(service) else "**missed**"


class MakeUpdate(Route):
    """`make update`."""

    name = "make update"

    def take_over(self, service: Repository) -> int:
        """Run what the target runs."""
        return update(service, template=self.template).returncode


class Cruft(Route):
    """`cruft create`, then `cruft update`."""

    name = "cruft update"

    def run(self, *arguments, cwd: Path) -> subprocess.CompletedProcess:
        """Run cruft."""
        command = [sys.executable, "-m", "cruft", *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment(self.scratch / "home"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def generate(self, version: str, folder: Path) -> Repository:
        """As cookiecutter, and .cruft.json."""
        out = self.scratch / "cruft" / version
        extra = f'{{"project_slug": "{SLUG}"}}'
        where = ("--output-dir", out, "--checkout", version, "--extra-context", extra, "--no-input")
        if not out.exists():
            done = self.run("create", self.template.folder, *where, cwd=self.scratch)
            assert done.returncode == 0, done.stderr
        shutil.copytree(out / SLUG, folder)
        return Repository(folder, self.template.home)

    def take_over(self, service: Repository) -> int:
        """Update, and answer no question."""
        return self.run("update", "--skip-apply-ask", cwd=service.folder).returncode


class Cookiecutter(Route):
    """`cookiecutter --overwrite-if-exists`."""

    name = "cookiecutter, overwriting"

    def take_over(self, service: Repository) -> int:
        """Generate the newest version over the service."""
        command = [
            sys.executable,
            "-m",
            "cookiecutter",
            "--no-input",
            "--overwrite-if-exists",
            self.template.folder,
        ]
        return subprocess.run(
            [*command, "--output-dir", service.folder.parent, f"project_slug={SLUG}"],
            env=environment(self.scratch / "home"),
            capture_output=True,
        ).returncode


ROUTES = (MakeUpdate, Cruft, Cookiecutter)
ROWS = [*(edit.name for edit in EDITS), *(f"{edit.name}, with the others" for edit in TOGETHER)]


def column(route: Route) -> list[str]:
    """Measure a route: each edit alone, then those that can be in one update."""
    return [*(route.measured([edit])[0] for edit in EDITS), *route.measured(TOGETHER)]


def table(columns: list[list[str]]) -> str:
    """Return the columns as a Markdown table."""
    heading = f"| edit | {' | '.join(f'`{route.name}`' for route in ROUTES)} |"
    rows = (f"| {name} | {' | '.join(cells)} |" for name, *cells in zip(ROWS, *columns, strict=True))
    return "\n".join([heading, "|---" * (len(ROUTES) + 1) + "|", *rows]) + "\n"


def column_of_page(route: type[Route]) -> list[str]:
    """Return what the page says of a route."""
    lines = BETWEEN.search(PAGE.read_text()).group().splitlines()[2:]
    return [line.split(" | ")[ROUTES.index(route) + 1].removesuffix(" |") for line in lines]


def main() -> None:
    """Measure every route, and write the table into the page."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        template = real_template(clean_copy(scratch / "copy"), scratch / "template", scratch / "home")
        text = table([column(route(template, scratch)) for route in ROUTES])
    PAGE.write_text(BETWEEN.sub(lambda _: text, PAGE.read_text()))
    print(text, end="")


if __name__ == "__main__":
    main()
