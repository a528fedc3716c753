"""The recipes of docs/copying.md, carried out block by block in three projects that nobody made for them."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from recipes import MAKERS, recipe, src_layout, startproject

GAP = "shop/tasks.py:17 in send_receipt"
UNDECIDED = "taken over from the decorator: decide"


@pytest.fixture
def reference(bake, tmp_path):
    """A generated service to copy from."""
    return bake(sandbox=tmp_path / "reference")


@pytest.fixture
def make(reference, service_venv, tmp_path):
    """Return a function that makes a project of one kind, with the case of its task (`after`) already written."""

    def project(maker, python=service_venv / "bin" / "python"):
        made = maker(tmp_path / "host", python, reference)
        made.run('cp -R "$AFTER/." . && rm -r "$AFTER"', AFTER=str(made.folder / "after"))
        return made

    return project


def check_is_content(output: str) -> None:
    """The checks name what is to be decided, and no error."""
    assert "are open decisions" in output and "ERRORS" not in output


#: What the tasks of each project say of a stop.
STOPS = {
    "startproject": ("TimeoutStopSec=1845", "none"),
    "cookiecutter_layout": ("TimeoutStopSec=345", "none"),
    "src_layout": ("TimeoutStopSec=46", "acme.billing.book-payment, acme.billing.remind"),
}
UNIT = """[Service]
ExecStart=/bin/true
TimeoutStopSec=10
"""


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_only_the_drain(make, tmp_path, maker):
    """Recipe (a): the number is that of the tasks, and the drop-in says it, and nothing that systemd does not know."""
    project = make(maker)
    (units := tmp_path / "units").mkdir()
    (units / "work.service").write_text(UNIT)
    seconds, unlimited = STOPS[maker.__name__]
    number = seconds.partition("=")[2]
    for block in recipe("a"):
        output = project.follow(block, UNITS=str(units), WORKER="work", SECONDS_TO_STOP=number)
        if block.target == "number":
            assert output.splitlines()[-2:] == [f"Without a time limit: {unlimited}", seconds]
    drop_in = (units / "work.service.d" / "drain.conf").read_text().splitlines()
    assert {seconds, "KillMode=mixed"} <= set(drop_in)
    if shutil.which("systemd-analyze"):
        verify = ["systemd-analyze", "verify", "work.service"]
        environment = {
            "PATH": os.environ["PATH"],
            "SYSTEMD_UNIT_PATH": str(units),
            "SYSTEMD_LOG_LEVEL": "warning",
        }
        said = subprocess.run(verify, env=environment, cwd=units, capture_output=True, text=True, check=False)
        assert "drain.conf" not in said.stderr, said.stderr


#: What of the tests that a recipe runs is run here, for time: everything in the first project, once.
CHOSEN = {
    ("startproject", "b"): "",
    ("startproject", "c"): "-k 'onboarding and not real_kill'",
    "b": "-k 'not real_kill'",
    "c": "-k 'TestPage or late_ack_task'",
}


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_recipes_in_three_projects(make, maker):
    """Recipe (b), then (c): every block in its order; the checks know only warnings, and the tests pass."""
    project = make(maker)
    for letter in "bc":
        chosen = CHOSEN.get((maker.__name__, letter), CHOSEN[letter])
        for block in recipe(letter):
            output = project.follow(block, PYTEST_ADDOPTS=chosen)
            if "manage.py check" in block.text:
                check_is_content(output)
            if "manage.py crashmap" in block.text:
                shown = output
            if block.target == maker.__name__:  # what the recipe says that it shows here
                assert block.text in shown
            if "-m pytest" in block.text:
                assert " passed" in output
                # Late-ack tasks that are open decisions and have no case: only one of the projects has such.
                assert (" skipped" in output) == (maker is src_layout)
    (strict,) = [block.text for block in recipe("b") if block.target == "later"]
    assert "open decisions" in project.run(strict, expect=1)


@pytest.mark.slow
def test_what_the_crash_map_finds_in_a_task_that_was_there(make):
    """Its author thought that the look at the row was enough. Declared so, the test says where it is not."""
    project = make(startproject)
    for block in recipe("b"):
        if not ("-m pytest" in block.text or "crashmap" in block.text):
            project.follow(block)
    entry = '[tasks."shop.tasks.send_receipt"]'
    before, _, after = (project.here / "ack_policy.toml").read_text().partition(entry)
    after = after.replace('"none"', '"transaction"').replace(UNDECIDED, "The row tells whether it was sent")
    (project.here / "ack_policy.toml").write_text(before + entry + after)
    tests = "python -m pytest -q tests/test_redelivery.py -k 'crash_map and send_receipt'"
    output = project.run(tests, expect=1)
    assert f"{GAP} (opcode" in output
    assert "2 effects, but guard 'transaction' and the declared gaps allow [1]" in output


def test_blocks_are_what_their_files_say():
    """The documentation shows units and tasks as they are: `make docs` fills it, and says no more than the files."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "refresh.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "time_limit_s = 60",
            "time_limit_s = 61",
            "README.md, docs/copying.md: a block is not what its file says",
        ),
        (
            '[tasks."onboarding.tasks.send_welcome_email"]',
            '[tasks."x"]',
            "there is no SERVICE/ack_policy.toml, [tasks.",
        ),
    ],
    ids=["another text", "another name"],
)
def test_rotten_block_is_found(template, tmp_path, old, new, says):
    """In CI: a file that changed, and one that no longer has what a block shows; `make docs` mends the former."""
    copy = shutil.copytree(template, tmp_path / "template")
    policy = copy / "{{cookiecutter.project_slug}}" / "ack_policy.toml"
    policy.write_text(policy.read_text().replace(old, new))
    refresh = [sys.executable, copy / "docs" / "refresh.py"]
    done = subprocess.run([*refresh, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    if "is not what" in says:
        subprocess.run(refresh, check=True)
        assert subprocess.run([*refresh, "--check"], check=False).returncode == 0
        assert new in (copy / "docs" / "copying.md").read_text()
