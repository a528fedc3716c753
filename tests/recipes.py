"""The recipes of docs/copying.md as data, and the projects that the tests carry them out in."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from conftest import ROOT, plain_environment

DOCUMENT = ROOT / "docs" / "copying.md"
HOSTS = Path(__file__).with_name("hosts")
#: Commands that only point somewhere, install what the tests have, or end badly while decisions are open.
NOT_RUN = ("reference", "install", "later")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, for whom it is meant (the rest of its first line), and its text."""

    language: str
    target: str
    text: str


def recipe(letter: str) -> list[Block]:
    """Return the blocks of one recipe, in their order."""
    text = DOCUMENT.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## \({letter}\) .*?(?=^## |\Z)", text, re.M | re.S)
    found = re.findall(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", section, re.M | re.S)
    return [Block(*one) for one in found]


@dataclass
class Project:
    """A project that the recipes are copied into.

    `code` is the folder of its manage.py. The other paths are below that: the files that a recipe adds to.
    """

    folder: Path
    python: Path
    reference: Path
    task: str
    settings: str
    celery: str
    urls: str
    app: str = "app"
    cache: tuple[str, ...] = ()
    imports: str = ""
    on_redis: bool = True
    code: str = "."
    environment: dict = field(default_factory=dict)

    @property
    def here(self) -> Path:
        """The folder in which all commands run."""
        return self.folder / self.code

    def run(self, script: str, expect: int = 0, **environment: str) -> str:
        """Run a shell script as the reader would, with the project's environment active; return what it printed."""
        done = subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=self.here,
            env=plain_environment(
                PYTHONDONTWRITEBYTECODE="1",
                REFERENCE=str(self.reference),
                TASK=self.task,
                **{
                    "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
                    **self.environment,
                    **environment,
                },
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == expect, f"{script}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def follow(self, block: Block, **environment: str) -> str:
        """Do what a block says; return what it printed."""
        if block.language == "sh":
            return "" if block.target in NOT_RUN else self.run(block.text, **environment)
        if block.target == "celery":
            self.after(self.celery, "config_from_object(", re.sub(r"\bapp\b", self.app, block.text))
        elif block.target == "cache":
            for name in self.cache or (self.settings,):
                self.append(name, block.text)
        elif block.target in ("settings", "urls"):
            self.append(getattr(self, block.target), block.text)
        elif block.target == "imports" and self.imports:
            self.append(self.imports, block.text)
        elif block.target == "redis" and self.on_redis:
            self.append(self.settings, block.text)
        elif block.target == "policy":
            self.append("ack_policy.toml", block.text)
        elif block.target.endswith(".py"):
            (self.here / block.target).parent.mkdir(exist_ok=True)
            self.append(block.target, block.text)
        return ""  # else it shows something

    def append(self, name: str, text: str) -> None:
        """Add lines at the end of a file."""
        with (self.here / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")

    def after(self, name: str, part: str, text: str) -> None:
        """Add lines after the one line that has a part in it."""
        path = self.here / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (number,) = [number for number, line in enumerate(lines) if part in line]
        path.write_text("".join([*lines[: number + 1], text, *lines[number + 1 :]]), encoding="utf-8")

    def replace(self, name: str, old: str, new: str) -> None:
        """Change the one place of a file that reads so."""
        text = (self.here / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        (self.here / name).write_text(text.replace(old, new), encoding="utf-8")


def startproject(folder: Path, python: Path, reference: Path) -> Project:
    """Make a project with `django-admin startproject`, and add what Celery's documentation says and two tasks."""
    folder.mkdir()
    subprocess.run([python, "-m", "django", "startproject", "mysite", folder], check=True)
    shutil.copytree(HOSTS / "startproject", folder, dirs_exist_ok=True)
    more = folder / "mysite" / "settings_more.py"
    with (folder / "mysite" / "settings.py").open("a") as settings:
        settings.write(more.read_text())
    more.unlink()
    return Project(
        folder=folder,
        python=python,
        reference=reference,
        task="send_receipt",
        settings="mysite/settings.py",
        celery="mysite/celery.py",
        urls="mysite/urls.py",
        environment={"DJANGO_SETTINGS_MODULE": "mysite.settings"},
    )


def cookiecutter_layout(folder: Path, python: Path, reference: Path) -> Project:
    """Make a project in the layout of cookiecutter-django."""
    shutil.copytree(HOSTS / "cookiecutter_layout", folder)
    return Project(
        folder=folder,
        python=python,
        reference=reference,
        task="crm.users.tasks.add_points",
        settings="config/settings/base.py",
        celery="config/celery_app.py",
        urls="config/urls.py",
        cache=("config/settings/local.py", "config/settings/test.py"),
    )


def src_layout(folder: Path, python: Path, reference: Path) -> Project:
    """Make a project with a src folder, class-based tasks, RabbitMQ, and a module of its own for Celery's settings."""
    shutil.copytree(HOSTS / "src_layout", folder)
    return Project(
        folder=folder,
        python=python,
        reference=reference,
        task="acme.billing.book-payment",
        settings="acme/settings.py",
        celery="acme/queue/app.py",
        urls="acme/urls.py",
        app="queue",
        imports="acme/queue/config.py",
        on_redis=False,
        code="src",
    )


MAKERS = (startproject, cookiecutter_layout, src_layout)
