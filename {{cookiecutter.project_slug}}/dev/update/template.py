"""The template's repository: its versions, and what one of them generates."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from dev.update import record
from dev.update.git import Git, GitFailed, Refused

EXPAND = """
import sys
from cookiecutter import config, repository
print(repository.expand_abbreviations(sys.argv[1], config.BUILTIN_ABBREVIATIONS))
"""


def expanded(source: str, scratch: Path) -> str:
    """Return a URL for cookiecutter's `gh:owner/name` and the like, and everything else as it is.

    cookiecutter runs in a process of its own, here and below, that is started in an empty folder: Python imports
    from where it is started, and a service may have a module that is called as one of cookiecutter's.
    """
    if not source.startswith(("gh:", "gl:", "bb:")):
        return source
    command = [sys.executable, "-c", EXPAND, source]
    return subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=True).stdout.strip()


class Version:
    """One commit of the template, checked out."""

    def __init__(self, commit: str, folder: Path):
        self.commit, self.folder = commit, folder
        try:
            self.questions = json.loads((folder / "cookiecutter.json").read_text(encoding="utf-8"))
            self.name = self.questions["_version"]
        except (OSError, ValueError, KeyError):
            raise Refused(f"The template has no _version in cookiecutter.json at {commit[:10]}.") from None

    def renames(self) -> list[dict]:
        """Return the entries of answers.toml: which answer was renamed in which version."""
        file = self.folder / "answers.toml"
        return tomllib.loads(file.read_text(encoding="utf-8")).get("renamed", []) if file.exists() else []

    def notes_since(self, version: str) -> list[str]:
        """Return the upgrade notes of the changelog that are newer than a version, oldest first."""
        file = self.folder / "CHANGELOG.md"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        notes = []
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            heading = section.split()[0]
            since, here = record.numbers(version), record.numbers(heading)
            found = re.search(r"^### Upgrade\n+(.*?)(?=^#|\Z)", section, re.MULTILINE | re.DOTALL)
            if found and here and since < here <= record.numbers(self.name):
                notes.append(f"{heading}:\n{found.group(1).rstrip()}")
        return notes[::-1]

    def generate(self, answers: record.Answers, scratch: Path) -> Path:
        """Generate a service with these answers, and return its folder.

        Neither the user's configuration nor their caches are read or written: no default of theirs slips in.
        """
        (output := scratch / "out").mkdir(parents=True)
        places = {"cookiecutters_dir": str(scratch / "cache"), "replay_dir": str(scratch / "replay")}
        (config := scratch / "config.yaml").write_text(json.dumps({**places, "default_context": {}}))
        command = [sys.executable, "-m", "cookiecutter", self.folder, "--no-input", "--config-file", config]
        texts = [f"{name}={answer}" for name, answer in answers.items()]
        done = subprocess.run(
            [*command, "--output-dir", output, *texts],
            cwd=scratch,
            env=os.environ | {"TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            lines = os.fsdecode(done.stderr or done.stdout).strip().splitlines() or ["no word why"]
            reason = lines[-1] if lines[0].startswith("Traceback") else lines[0]
            raise Refused(
                f"Version {self.name} of the template does not generate with the recorded answers: {reason}"
            )
        services = list(output.iterdir())
        if len(services) != 1:
            raise Refused(
                f"Version {self.name} of the template does not generate one folder with these answers."
            )
        return services[0]


class Template:
    """A clone of the template's repository, for as long as the update takes."""

    def __init__(self, source: str, scratch: Path):
        source = expanded(source, scratch)
        self.source, self.scratch = record.without_password(source), scratch
        if Path(source).is_dir():
            source = os.path.abspath(source)
        try:
            Git(Path.cwd())("clone", "--quiet", "--bare", "--", source, scratch / "template.git")
        except GitFailed as error:
            why = str(error).replace(source, self.source)
            raise Refused(f"The template cannot be had from {self.source}: {why.rstrip('.')}.") from None
        # Named, not found: with safe.bareRepository=explicit, git finds none.
        self.git = Git(scratch, GIT_DIR=str(scratch / "template.git"))
        if self.git.run("cat-file", "-e", "HEAD:cookiecutter.json").returncode != 0:
            raise Refused(
                f"What is at {self.source} is no cookiecutter template: it has no cookiecutter.json."
            )

    def tags(self) -> dict[str, str]:
        """Return version -> tag, oldest first, of the tags that are plain versions."""
        names = self.git("for-each-ref", "--format=%(refname:strip=2)", "refs/tags").splitlines()
        tags = {name.removeprefix("v"): name for name in names if record.numbers(name)}
        return dict(sorted(tags.items(), key=lambda item: record.numbers(item[0])))

    def commit(self, revision: str) -> str | None:
        """Return the commit that a tag, a branch or an id stands for; None when there is none."""
        done = self.git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return os.fsdecode(done.stdout).strip() or None

    def recorded(self, version: str) -> str:
        """Return the commit of a recorded version: its tag, else the first commit that it can have come from.

        The first one, because a difference that the service has already merges clean, and one that is left out
        would never come.
        """
        if tag := self.tags().get(version):
            return self.commit(f"refs/tags/{tag}")
        named = self.commits_with(f'"_version": "{version}"', "cookiecutter.json")
        if not named:
            raise Refused(
                f"The template at {self.source} has no version {version}, which {record.FILE} records: "
                'name the commit that the service comes from: make update ARGS="--from COMMIT".'
            )
        # Nothing that records a version was generated before the template had this file.
        recording = self.commits_with("cookiecutter._version", f":(glob)*/{record.FILE}")
        order = self.git("rev-list", "--reverse", "--topo-order", "HEAD").split()
        return max(named[0], *recording[:1], key=order.index)

    def commits_with(self, text: str, path: str) -> list[str]:
        """Return the commits that added a text to a file, or removed it, the oldest first."""
        log = (
            "-c",
            "log.showSignature=false",
            "log",
            "--reverse",
            "--topo-order",
            "--format=%H",
            f"-S{text}",
        )
        return self.git(*log, "HEAD", "--", path).split()

    def wanted(self, revision: str | None) -> str:
        """Return the commit to update to: what was asked for, else the newest version, else the newest commit."""
        tags = self.tags()
        if revision is None:
            return self.commit(f"refs/tags/{list(tags.values())[-1]}" if tags else "HEAD")
        found = self.commit(f"refs/tags/{tags[revision]}") if revision in tags else self.commit(revision)
        if not found:
            versions = ", ".join(tags) or "none"
            raise Refused(f"The template at {self.source} has no {revision!r}. Its versions: {versions}.")
        return found

    def version(self, commit: str) -> Version:
        """Check a commit out, as it is in the repository, and return it."""
        folder = self.scratch / f"template-{commit[:10]}"
        if not folder.exists():
            folder.mkdir()
            git = Git(
                folder,
                ("-c", "core.autocrlf=false", "-c", "core.hooksPath=/dev/null"),
                **self.git.variables,
                GIT_WORK_TREE=str(folder),
                GIT_INDEX_FILE=f"{folder}.index",
            )
            git("read-tree", commit)
            git("checkout-index", "--all")
        return Version(commit, folder)
