"""The ways to get a message from Redis to a task that are compared, and where each of them can be run."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRP_PYTHON = ROOT / ".venv-crp" / "bin" / "python"


@dataclass(frozen=True)
class Variant:
    """One way: its name, what it is in words, and how the lab's app is set up for it."""

    name: str
    words: str
    #: The service's policy is in force.
    policy: bool = False
    #: The setting REDELIVERY_TRANSPORT, where the policy is in force.
    redelivery_transport: bool = False
    #: The value of Celery's `broker_transport`, where it is not the URL's.
    transport: str = ""
    python: str = sys.executable
    #: Seconds after which it gives an unacknowledged message back by its own defaults.
    visibility_s: int = 3600

    def missing(self) -> str:
        """Return why this variant cannot be run here, with the cure, or an empty text."""
        if self.name != "crp":
            return ""
        cure = "`make crp PYTHON=python3.13` makes it, with any Python from 3.13 on"
        if not shutil.which(self.python):
            return f"{self.python} is not there ({cure})"
        command = [self.python, "-c", "import celery_redis_plus, redis"]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
        if done.returncode:
            return f"{self.python} has no celery-redis-plus: {done.stderr.strip().splitlines()[-1]} ({cure})"
        return ""


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("stock", "kombu's Redis transport, late acknowledgement"),
        Variant("policy", "the same under this service's policy, transport off", policy=True),
        Variant("ours", "this service's transport", policy=True, redelivery_transport=True),
        Variant(
            "crp",
            "celery-redis-plus",
            transport="celery_redis_plus.transport:Transport",
            python=os.environ.get("CRP_PYTHON") or str(CRP_PYTHON),
            visibility_s=300,
        ),
    )
}


def clean_environment() -> dict[str, str]:
    """Return the environment without what would lead another Python or Django astray."""
    astray = ("PYTHONPATH", "PYTHONHOME", "DJANGO_SETTINGS_MODULE", "REDELIVERY_TRANSPORT")
    astray += (
        "APP",
        "BROKER_URL",
        "RESULT_BACKEND",
        "LOADER",
    )  # which Celery's command line takes for its options
    return {name: value for name, value in os.environ.items() if name not in astray}


def chosen(names: str) -> tuple[list[Variant], dict[str, str]]:
    """Return the variants that a comma-separated text names and that can run here, and why the others cannot.

    Raises ValueError with one sentence for a name that is unknown, or when nothing is left.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in VARIANTS:
            raise ValueError(f"--variants: there is no {name!r}; choose from {', '.join(VARIANTS)}.")
    skipped = {name: why for name in wanted if (why := VARIANTS[name].missing())}
    left = [VARIANTS[name] for name in dict.fromkeys(wanted) if name not in skipped]
    if not left:
        raise ValueError(
            f"--variants: none of them can run here: {skipped}." if skipped else "--variants: none named."
        )
    return left, skipped


def python_of(name: str, names: list[str]) -> str | None:
    """Return the Python of a variant, or None when it is not among those names."""
    return VARIANTS[name].python if name in names else None
