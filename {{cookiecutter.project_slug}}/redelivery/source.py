"""Which source files are the project's own."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from django.conf import ENVIRONMENT_VARIABLE, settings

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_installed(path: str) -> bool:
    """Whether a source file (its real path) belongs to Python or to an installed package."""
    return path.startswith(_LIBRARIES) or "/site-packages/" in path or "/dist-packages/" in path


def project_root() -> Path:
    """The folder that holds the project's code.

    That is ``BASE_DIR``, or, where the settings have none, the folder from which their package is imported; and so far
    above it that the project's tasks are in it too, which not every ``BASE_DIR`` is.
    """
    from redelivery import force
    from redelivery.checks.tasks import registered

    base = getattr(settings, "BASE_DIR", None)
    module = os.environ[ENVIRONMENT_VARIABLE]  # settings that are overridden do not know it
    root = Path(base).resolve() if base else _folder_of(sys.modules[module.partition(".")[0]])
    for task in registered(force.in_force().app).values():
        folder = _folder_of(sys.modules.get(type(task).__module__))
        if folder and not folder.is_relative_to(root) and not is_installed(f"{folder}/"):
            common = Path(os.path.commonpath([root, folder]))
            root = common if len(common.parts) > 1 else root
    return root


def _folder_of(module: Any) -> Path | None:
    """The folder from which the top package of a module is imported; None for a module without a file."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if file is None:
        return None
    depth = module.__name__.count(".") + hasattr(module, "__path__")
    return Path(file).resolve().parents[depth]
