"""Run git, and say in one sentence what it refused."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Set by git for its hooks; with them, a command meant for one repository would go to another.
OF_ANOTHER_REPOSITORY = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
}

OLDEST = (2, 38)
"""The first git with `merge-tree --write-tree`: a merge that touches no file."""


class Refused(Exception):
    """Nothing was changed; the text is one sentence that says why, and what to do."""


class GitFailed(Exception):
    """A git command failed; the text is what it printed."""


class Git:
    """Git commands in one folder, with fixed options and variables.

    `git("status", "-z")` returns what the command prints. A failing one raises GitFailed.
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), **variables: str):
        self.folder, self.options, self.variables = folder, tuple(options), variables

    def having(self, *options: str, **variables: str) -> "Git":
        """Return the same with more options and variables."""
        return Git(self.folder, (*self.options, *options), **{**self.variables, **variables})

    def run(self, *arguments: str | Path, text: str = "") -> subprocess.CompletedProcess:
        """Run a command to its end and return it, failed or not."""
        environment = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_REPOSITORY}
        return subprocess.run(
            ["git", *self.options, *map(str, arguments)],
            cwd=self.folder,
            env=environment | self.variables,
            input=text.encode(errors="surrogateescape"),
            capture_output=True,
            check=False,
        )

    def __call__(self, *arguments: str | Path, text: str = "") -> str:
        """Run a command and return its output."""
        done = self.run(*arguments, text=text)
        if done.returncode != 0:
            raise GitFailed(said(done))
        return os.fsdecode(done.stdout)

    def line(self, *arguments: str | Path, text: str = "") -> str:
        """Run a command and return its output without the newline at its end."""
        return self(*arguments, text=text).removesuffix("\n")

    def fields(self, *arguments: str | Path) -> list[str]:
        """Run a command that is asked for NUL-separated output, and return the parts."""
        return self(*arguments).split("\0")[:-1]


def said(done: subprocess.CompletedProcess) -> str:
    """Return the sentence that matters of a failed command: the first one that calls itself fatal or an error."""
    lines = os.fsdecode(done.stderr or done.stdout).strip().splitlines()
    lines = [line for line in lines if line.strip() and not line.startswith("hint:")]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines[::-1] or [f"git ended with status {done.returncode}"])[0].strip()


def refuse_old_git() -> None:
    """Raise Refused when git is missing or older than what an update needs."""
    try:
        words = subprocess.run(
            ["git", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        raise Refused("git cannot be run: install it.") from None
    numbers = tuple(int(part) for part in words[2].split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise Refused(f"git {words[2]} is too old for an update: install {needed} or newer.")
