"""Make the virtual environment, or bring it up to date with the requirements. Quick when nothing is to do.

Usage: python dev/make_venv.py .venv requirements-dev.txt

It is run by whatever Python there is, so it uses no syntax that Python 3.6 could not read.
"""

import hashlib
import os
import subprocess
import sys

OLDEST = (3, 11)
STAMP = "requirements.stamp"


def version():
    """Return the version of this Python as '3.11'."""
    return "%d.%d" % sys.version_info[:2]


def wanted_stamp(requirements):
    """Return what an up-to-date environment has in its stamp: the Python, and a hash of the requirements."""
    with open(requirements, "rb") as file:
        return "Python %s, %s\n" % (version(), hashlib.sha256(file.read()).hexdigest())


def read_stamp(venv):
    """Return the stamp of the last complete installation, or an empty text."""
    try:
        with open(os.path.join(venv, STAMP), encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def refusal(venv):
    """Return the sentence that says why this Python cannot make or use the environment; None when it can."""
    if sys.version_info < OLDEST:
        return (
            "%s is Python %s, and the service needs %d.%d or newer: "
            "say which one to use: make PYTHON=/path/to/python3." % (sys.executable, version(), *OLDEST)
        )
    made_with = read_stamp(venv).split(",")[0]
    if made_with and made_with != "Python %s" % version():
        return (
            "%s was made with %s, and this is Python %s: delete it, or name another one with make VENV=."
            % (venv, made_with, version())
        )
    if os.path.isdir(venv) and os.listdir(venv) and not os.path.exists(os.path.join(venv, "pyvenv.cfg")):
        return "%s is not empty and not a virtual environment: name another folder with make VENV=." % venv
    try:
        import ensurepip  # noqa: F401
        import venv as _  # noqa: F401
    except ImportError:
        return (
            "%s (Python %s) cannot make virtual environments: on Debian and Ubuntu, install the package "
            "python%s-venv; or say which other Python to use: make PYTHON=/path/to/python3."
            % (sys.executable, version(), version())
        )
    return None


def install(venv, requirements):
    """Make the environment when it is not there, and install the requirements, hashes checked.

    Returns the sentence that says what failed, or None. What the failing program printed stands before it.
    """
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "bin", "pip")):
        print("Making %s with Python %s ..." % (venv, version()), flush=True)
        if subprocess.call([sys.executable, "-m", "venv", "--clear", venv]) != 0:
            return "%s could not be made; the lines above say why." % venv
    print("Installing %s into %s ..." % (requirements, venv), flush=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"]
    if subprocess.call([*pip, "--requirement", requirements]) != 0:
        return "%s could not be installed into %s; the lines above say why." % (requirements, venv)
    return None


def main(venv, requirements):
    """Do what is needed; return None, or the sentence that says what is wrong."""
    stamp = wanted_stamp(requirements)
    if read_stamp(venv) == stamp and os.path.exists(os.path.join(venv, "bin", "python")):
        return None
    problem = refusal(venv) or install(venv, requirements)
    if problem is None:
        with open(os.path.join(venv, STAMP), "w", encoding="ascii") as file:
            file.write(stamp)
    return problem


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
