"""Repositories of the template with several versions in them, made for the tests of an update."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import plain_environment

SERVICE = "{{cookiecutter.project_slug}}"
EARLIER = ("0.0.1", "0.0.2", "0.0.3")

GITCONFIG = """
[user]
    name = Ann
    email = ann@example.com
[init]
    defaultBranch = main
[advice]
    detachedHead = false
"""

TINY_RECORD = """# Of a template for tests.

template = ""

version = "{{ cookiecutter._version }}"

[answers]
{%- for name, answer in cookiecutter.items() if name[0] != "_" %}
{{ name }} = "{{ answer }}"
{%- endfor %}
"""
TINY_QUESTIONS = """{
  "project_slug": "shop",
  "colour": "red",
  "size": ["small", "large"],
  "_version": "1.0.0",
  "_copy_without_render": ["dev"]
}
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the variables of a user whose home folder, git configuration included, is the test's own."""
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    if not (home / ".gitconfig").exists():
        (home / ".gitconfig").write_text(GITCONFIG)
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
    return plain_environment() | own | {"PYTHONDONTWRITEBYTECODE": "1"} | more


@dataclass
class Repository:
    """A git repository of the tests."""

    folder: Path
    home: Path

    def git(self, *arguments, check=True, **more) -> str:
        """Run git in it and return its output; a failure fails the test."""
        command = ["git", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.folder, env=environment(self.home), capture_output=True, text=True, **more
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def commit(self, message="Change") -> str:
        """Commit everything, and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD").strip()

    def write(self, name: str, text: str) -> None:
        """Write a file, its folders included."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def read(self, name: str) -> str:
        """Return the text of a file."""
        return (self.folder / name).read_text()

    def change(self, name: str, before: str, after: str) -> None:
        """Replace a text that stands in a file exactly once."""
        text = self.read(name)
        assert text.count(before) == 1, f"{name} has changed: mend the test ({before!r})"
        self.write(name, text.replace(before, after))

    def append(self, name: str, text: str) -> None:
        """Add text at the end of a file."""
        self.write(name, self.read(name) + text)

    def remove(self, name: str) -> None:
        """Delete a file or a folder."""
        path = self.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def rename(self, name: str, now: str) -> None:
        """Rename a file."""
        (self.folder / now).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).rename(self.folder / now)

    @property
    def status(self) -> str:
        """What `git status` says, in its short form."""
        return self.git("status", "--porcelain")

    @property
    def files(self) -> dict[str, tuple[bytes, bool]]:
        """Path -> content, and whether it can be run, of all files but those of git."""
        return {
            path.relative_to(self.folder).as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
            for path in self.folder.rglob("*")
            if path.is_file() and ".git" not in path.relative_to(self.folder).parts
        }

    @property
    def left_in_git(self) -> list[str]:
        """Temporary files of an update, and of git, that are still there."""
        git_dir = Path(self.git("rev-parse", "--absolute-git-dir").strip())
        return sorted(
            p.name for p in git_dir.iterdir() if p.name.startswith("template-update") or p.suffix == ".lock"
        )


class TemplateRepository(Repository):
    """A template with versions: each is a commit with a tag."""

    def version(
        self, name: str, change: Callable[[Repository], None] = lambda repository: None, tag=True
    ) -> str:
        """Change the files, and make a version of them; returns the commit."""
        change(self)
        questions = self.read("cookiecutter.json")
        before = questions.split('"_version": "')[1].split('"')[0]
        self.write("cookiecutter.json", questions.replace(f'"_version": "{before}"', f'"_version": "{name}"'))
        commit = self.commit(f"Version {name}")
        if tag:
            self.git("tag", name)
        return commit

    def generate(self, version: str, folder: Path, **answers) -> Repository:
        """Generate a service of a version into a folder that is not there yet; each different one only once."""
        # The masters lie beside the template: a copy of the repository has masters of its own.
        key = f"{self.git('rev-parse', version).strip()} {sorted(answers.items())}"
        master = self.folder.with_name("masters") / hashlib.sha256(key.encode()).hexdigest()
        if not master.exists():
            self.bake(version, master, answers)
        shutil.copytree(master, folder)
        return Repository(folder, self.home)

    def bake(self, version: str, folder: Path, answers: dict) -> None:
        """Generate a service of a version with cookiecutter."""
        (checkout := folder.with_name(f"{folder.name}.template")).mkdir(parents=True)
        (out := folder.with_name(f"{folder.name}.out")).mkdir()
        archive = subprocess.run(
            ["git", "archive", version], cwd=self.folder, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", checkout], input=archive.stdout, check=True)
        command = [sys.executable, "-m", "cookiecutter", "--no-input", checkout, "--output-dir", out]
        done = subprocess.run(
            [*command, *(f"{name}={answer}" for name, answer in answers.items())],
            env=environment(self.home / "baking"),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (generated,) = out.iterdir()
        generated.rename(folder)


def repository_of(service: Repository) -> Repository:
    """Make a git repository of a generated service, with one commit."""
    service.git("init", "--quiet")
    service.commit("As generated")
    return service


def update(service: Repository, *arguments, template=None, **variables) -> subprocess.CompletedProcess:
    """Run what `make update` runs, and return it done."""
    command = [sys.executable, "-m", "dev.update"]
    if template is not None:
        command += ["--template", str(template.folder if isinstance(template, Repository) else template)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=service.folder,
        env=environment(service.home, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def tiny_template(folder: Path, home: Path, dev: Path) -> TemplateRepository:
    """A template of a few files and three questions, with the `dev/update` of the real one; version 1.0.0."""
    template = TemplateRepository(folder, home)
    folder.mkdir(parents=True)
    template.git("init", "--quiet")
    template.write("cookiecutter.json", TINY_QUESTIONS)
    template.write(f"{SERVICE}/.template.toml", TINY_RECORD)
    template.write(f"{SERVICE}/.gitignore", "__pycache__/\n*.local\n")
    template.write(f"{SERVICE}/numbers.txt", "".join(f"line {n} of the numbers\n" for n in range(20)))
    template.write(f"{SERVICE}/letters.txt", "".join(f"letter {c}\n" for c in "abcdefghij"))
    template.write(f"{SERVICE}/app/tasks.py", "".join(f"task_{n} = {n}\n" for n in range(12)))
    template.write(f"{SERVICE}/app/colour.txt", "{{ cookiecutter.colour }}\n{{ cookiecutter.size }}\n")
    shutil.copytree(dev / "update", folder / SERVICE / "dev" / "update")
    template.version("1.0.0")
    return template


def next_version(template: Repository) -> None:
    """What version 1.1.0 of the tiny template changes."""
    template.change(f"{SERVICE}/numbers.txt", "line 3 of", "line three of")
    template.change(f"{SERVICE}/app/tasks.py", "task_5 = 5", "task_5 = 55")
    template.rename(f"{SERVICE}/letters.txt", f"{SERVICE}/alphabet.txt")
    template.write(f"{SERVICE}/new/added.txt", "added\n")


def real_template(source: Path, folder: Path, home: Path) -> TemplateRepository:
    """The template as it is now, with three earlier versions before it, each a little further away."""
    template = TemplateRepository(folder, home)
    shutil.copytree(source, folder)
    template.git("init", "--quiet")
    now = template.files
    version = template.read("cookiecutter.json").split('"_version": "')[1].split('"')[0]
    for number, name in enumerate(EARLIER):
        for steps in (three_changes_ago, two_changes_ago, one_change_ago)[number:]:
            steps(template)
        template.version(name)
        for path in template.files.keys() - now.keys():
            template.remove(path)
        for path, (content, runs) in now.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
            os.chmod(folder / path, 0o755 if runs else 0o644)
    template.version(version)
    return template


LEGACY = '"""What the template has given up."""\n\nLEGACY = {\n    "first": 1,\n    "second": 2,\n    "third": 3,\n}\n'
OWN = f"{SERVICE}/service/{{% if cookiecutter.worked_examples %}}own.py{{% endif %}}"


def one_change_ago(template: Repository) -> None:
    """What the last version changed: a line, a file less, a file more, a name, a task, each in files of its own."""
    template.change(f"{SERVICE}/gunicorn.conf.py", "graceful_timeout = 20", "graceful_timeout = 300")
    template.write(f"{SERVICE}/service/legacy.py", LEGACY)
    template.remove(f"{SERVICE}/service/publishing.py")
    template.rename(f"{SERVICE}/service/validators.py", f"{SERVICE}/service/checking.py")
    policy = template.read(f"{SERVICE}/ack_policy.toml")
    before, heading, rest = policy.partition('[tasks."leads.tasks.publish_overdue_alerts"]')
    _, separator, rest = rest.partition("{%- else %}")
    assert heading and separator, "ack_policy.toml has changed: mend the test"
    template.write(f"{SERVICE}/ack_policy.toml", before.rstrip("\n") + "\n" + separator + rest)
    own = template.read(OWN)
    before, heading, rest = own.partition('    "publish-overdue-alerts": {')
    _, separator, rest = rest.partition("    },\n")
    assert heading and separator, "own.py has changed: mend the test"
    template.write(OWN, before + rest)


def two_changes_ago(template: Repository) -> None:
    """One version further back, the author was not asked for."""
    template.change("cookiecutter.json", '  "author": "Your Name",\n', "")
    template.change("cookiecutter.json", '    "author": "Author",\n', "")
    template.change(f"{SERVICE}/.template.toml", '"author", ', "")
    line = next(line for line in template.read(f"{SERVICE}/pyproject.toml").splitlines() if "author" in line)
    template.change(f"{SERVICE}/pyproject.toml", line, 'authors = [{ name = "Nobody" }]')


def three_changes_ago(template: Repository) -> None:
    """Another one back, a comment of the settings and one of the Makefile read differently."""
    template.change(f"{SERVICE}/Makefile", "## Say what the targets do", "## This text")
    template.change(f"{SERVICE}/manage.py", '"""Django', '"""This is Django')
