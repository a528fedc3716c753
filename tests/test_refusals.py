"""Bad answers: one clear sentence first, exit status 1, no folder left behind, and nothing run."""

import os
import pty
import subprocess
import sys
import tomllib

import pytest
from bad_answers import ARGUMENT, BAD_ANSWERS, CONFIG, TYPED
from conftest import QUESTIONS, plain_environment

CASES = [pytest.param(bad, way, id=f"{bad.kind}, {way}") for bad in BAD_ANSWERS for way in bad.ways]


def typed_lines(**answers):
    """Return what to type at the prompts: the answers, and nothing (the default) at the others."""
    return [answers.get(question, "") for question in QUESTIONS]


def assert_refused(run, sentence_about, says):
    """Assert the whole promise about a refusal."""
    assert run.returncode == 1
    assert run.first_line.startswith(f"{sentence_about} "), run.stderr
    assert says in run.first_line
    assert run.first_line.endswith(".")
    assert "pre_gen_project.py" not in run.stderr  # no traceback of the hook's own
    assert run.left_behind == []
    programs = [arguments for event, arguments in run.events if event == "subprocess.Popen"]
    assert len(programs) == len(run.events) == 1, f"more was run than the hook: {run.events}"


@pytest.mark.parametrize(("bad", "way"), CASES)
def test_bad_answer_is_refused(cookiecutter, bad, way):
    """Every bad answer, in every way that can carry it."""
    answers = {"project_slug": "shop", bad.question: bad.answer}
    if way == ARGUMENT:
        run = cookiecutter(*(f"{name}={answer}" for name, answer in answers.items()))
    elif way == CONFIG:
        run = cookiecutter(config=answers)
    else:
        run = cookiecutter(typed=typed_lines(**answers))
    assert_refused(run, bad.question, bad.says)


@pytest.mark.parametrize("way", [CONFIG, TYPED])
def test_slug_derived_from_a_bad_name_is_refused(cookiecutter, way):
    """The default slug comes from the name; a name without a letter in it gives an empty one."""
    run = (
        cookiecutter(config={"project_name": "***"})
        if way == CONFIG
        else cookiecutter(typed=typed_lines(project_name="***"))
    )
    assert_refused(run, "project_slug", "is empty")


def test_folder_of_the_same_name_is_left_alone(cookiecutter, tmp_path):
    """A folder that is there already, and that a refused slug names, keeps its content."""
    mine = tmp_path / "sandbox" / "out" / "root" / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    run = cookiecutter("--overwrite-if-exists", "project_slug=root")
    assert_refused_in_place = run.returncode == 1 and "servers have already" in run.first_line
    assert assert_refused_in_place, run.stderr
    assert run.left_behind == ["out/root", "out/root/mine"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [("ci", "jenkins"), ("worked_examples", "maybe"), ("ansible", "later")],
    ids=["unknown CI", "neither yes nor no", "neither yes nor no, of another question"],
)
def test_choices_are_refused_by_cookiecutter_itself(cookiecutter, question, answer):
    """Cookiecutter knows the choices, and names the answer; no folder is made."""
    run = cookiecutter("project_slug=shop", f"{question}={answer}")
    assert run.returncode == 1
    assert f"{answer} provided for" in run.stderr.splitlines()[-1]
    assert run.left_behind == []


@pytest.mark.parametrize(
    "answer",
    [
        "{{ 7 * 7 }}",
        "{% raw %}",
        "$(touch canary)",
        "`touch canary`",
        "'''; touch canary #",
        '""" + str(__import__("os").system("touch canary")) + """',
        '" + str(__import__("os").system("touch canary")) + "',
    ],
)
@pytest.mark.parametrize("question", ["project_name", "project_slug", "description", "author", "domain"])
def test_typed_answer_is_never_run(cookiecutter, question, answer):
    """Whatever is typed, it comes through as it is: named in the sentence, or written down."""
    run = cookiecutter(typed=typed_lines(**{"project_slug": "shop", question: answer}))
    assert not list(run.sandbox.rglob("canary"))
    assert "49" not in run.first_line
    assert [event for event, _ in run.events] == ["subprocess.Popen"]
    if run.returncode == 1:
        assert run.first_line.startswith(f"{question} ")
        assert answer[:3] in run.first_line
        assert run.left_behind == []
    elif question in ("description", "author"):
        project = tomllib.loads((run.sandbox / "out/shop/pyproject.toml").read_text())["project"]
        assert answer in (project["description"], project["authors"][0]["name"])
    else:
        assert question == "project_name"


def test_refusal_at_a_terminal(template, home, tmp_path):
    """The same at a real terminal, where rich colours the prompts and readline may be at work."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cookiecutter", str(template), "--output-dir", str(tmp_path)],
        env=plain_environment(HOME=str(home), TERM="xterm"),
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(terminal)
    os.write(controller, "".join(f"{line}\n" for line in typed_lines(project_slug="../shop")).encode())
    with process:
        errors = process.stderr.read()
    os.close(controller)
    assert process.returncode == 1
    assert errors.startswith("project_slug '../shop' must begin with a letter")
    assert list(tmp_path.iterdir()) == []


def test_there_are_many_kinds():
    """The table does not shrink by accident, and no kind is there twice."""
    kinds = [bad.kind for bad in BAD_ANSWERS]
    assert len(set(kinds)) == len(kinds) >= 25
