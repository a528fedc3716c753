"""The template's own `make demo`: it generates, runs, and cleans up, whatever happens."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, plain_environment

DEMOS = {
    "ends well": ("print('demo ran', flush=True)", 0),
    "ends badly": ("import sys; print('demo ran', flush=True); sys.exit(3)", 2),
    "is interrupted": ("import time; print('demo ran', flush=True); time.sleep(60)", None),
}


@pytest.mark.parametrize("how", DEMOS)
def test_demo_leaves_nothing_behind(template, service_venv, home, tmp_path, how):
    """The temporary folder is gone, and the exit status is that of the demo, also after Ctrl-C."""
    program, status = DEMOS[how]
    copy = shutil.copytree(template, tmp_path / "template")
    (copy / "{{cookiecutter.project_slug}}" / "dev" / "demo.py").write_text(program)
    (scratch := tmp_path / "scratch").mkdir()
    process = subprocess.Popen(
        ["make", "demo", f"VENV={sys.prefix}", f"SERVICE_VENV={service_venv}", f"PYTHON={sys.executable}"],
        cwd=copy,
        env=plain_environment(HOME=str(home), TMPDIR=str(scratch)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output = ""
    while "demo ran" not in output and (line := process.stdout.readline()):
        output += line
    if status is None:  # Ctrl-C reaches everything in the terminal's foreground
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
    output += process.communicate(timeout=30)[0]
    assert "demo ran" in output, output
    assert process.returncode == status if status is not None else process.returncode != 0, output
    # cookiecutter leaves its rendered copy of the hook, a lone .py file.
    left = [path.name for path in scratch.iterdir() if not path.name.endswith(".py")]
    assert left == []


def blocks(text: str, begins: tuple[str, ...]) -> list[str]:
    """Return the blocks of lines of a text whose first line begins with one of some words."""
    return [block.strip() for block in text.split("\n\n") if block.lstrip("`toml\n").startswith(begins)]


def test_readme_shows_what_the_service_has():
    """Tables and the policy's excerpt are those of the generated service, to the letter."""
    readme = (ROOT / "README.md").read_text()
    service = ROOT / "{{cookiecutter.project_slug}}"
    tables = blocks((service / "README.md").read_text(), ("| guard |", "| event |"))
    assert len(tables) == 2
    for table in tables:
        assert table in readme
    policy = (service / "ack_policy.toml").read_text()
    entries = blocks(readme.replace("```toml\n", "\n").replace("```\n", "\n"), ("[tasks.",))
    assert len(entries) == 2
    for entry in entries:
        assert entry in policy
