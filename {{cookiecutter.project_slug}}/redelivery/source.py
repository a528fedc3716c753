"""Which source files are the project's own."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from django.conf import ENVIRONMENT_VARIABLE, settings

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_installed(path: str) -> bool:
    """Whether a source file (its real path) belongs to Python or to an installed package."""
    return path.startswith(_LIBRARIES) or "/site-packages/" in path or "/dist-packages/" in path


def project_root() -> Path:
    """The folder that holds the project's code.

    That is ``BASE_DIR``; where the settings have none, the folder from which their package is imported.
    """
    base = getattr(settings, "BASE_DIR", None)
    if base:
        return Path(base).resolve()
    module = os.environ[ENVIRONMENT_VARIABLE]  # settings that are overridden do not know it
    package = sys.modules[module.partition(".")[0]]
    folders = list(getattr(package, "__path__", ())) or [package.__file__]
    return Path(folders[0]).resolve().parent
