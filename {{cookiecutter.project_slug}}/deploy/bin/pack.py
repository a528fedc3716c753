#!/usr/bin/env python3
"""Pack the commit that is checked out, and name the release. Run by deploy.yml on the machine that deploys.

Usage: pack.py ENVIRONMENT_HASH      prints JSON: release, web_id, beat_id, archive (a path), queues

A release is named after what its workers run on: the code, the environment, and their unit. So each of the three,
changed, is a new release, and the same again is none. Web and beat have ids of their own: a changed worker unit
restarts neither. deploy/ and the documentation are not code: nothing runs on them.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
NOT_CODE = ("deploy/", "tests/", ".github/", ".gitlab-ci.yml", "README.md", "docs/")


def git(*arguments: str) -> str:
    """Run git in the project and return what it prints."""
    return subprocess.run(
        ["git", *arguments], cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def digest(*parts: str) -> str:
    """One hash of several texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def code() -> str:
    """What the commit holds: path and hash of each file that processes run on."""
    lines = git("ls-tree", "-r", "HEAD").splitlines()
    return "\n".join(line for line in lines if not line.partition("\t")[2].startswith(NOT_CODE))


def unit(*names: str) -> str:
    """The text of units, of the commit."""
    return "\0".join(git("show", f"HEAD:./deploy/systemd/{name}") for name in names)


def main(environment: str) -> str | None:
    """Pack, and print what came of it; return a sentence when that is not possible."""
    # The inventory is read where it lies: its hosts and its environment are not part of a commit.
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)deploy/*.yml"):
        return "What is deployed is the commit, and there are changes that are not committed: commit or stash them."
    same = digest(code(), environment)
    release = digest(same, unit("worker@.service"))[:12]
    archive = PROJECT / "var" / f"{release}.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    git("archive", "--format=tar.gz", f"--output={archive}", "HEAD")
    ids = {
        "web_id": digest(same, unit("web.service", "web.socket")),
        "beat_id": digest(same, unit("beat.service")),
    }
    queues = sorted(tomllib.loads(git("show", "HEAD:./ack_policy.toml"))["queues"])
    print(json.dumps({"release": release, **ids, "archive": str(archive), "queues": queues}))
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
