"""The targets of a generated service, and its own tests, as a newcomer would run them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, plain_environment

DEV = ROOT / "{{cookiecutter.project_slug}}" / "dev"


def run(*command, cwd):
    """Run a command and return it done, with both outputs in `stdout`."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow(minutes=20)
def test_own_tests_pass(bake, run_in):
    """`make check` and `make test` of a generated service."""
    service = bake(ci="none", worked_examples="yes")
    run_in(service, "make", "check")
    print(run_in(service, "make", "test", timeout=3000))


@pytest.mark.slow(minutes=5)
def test_own_tests_pass_without_examples(bake, run_in):
    """The same without the worked examples; what tests the redelivery app alone is left out, for time."""
    service = bake(ci="none", worked_examples="no")
    run_in(service, "make", "check")
    same = (
        *("tests/policy", "tests/broker", "tests/kills", "tests/test_storm.py"),
        *("tests/redelivery/test_guards.py", "tests/redelivery/test_crashmap.py"),
    )
    arguments = " ".join(f"--ignore={path}" for path in same)
    print(run_in(service, "make", "test", f"ARGS={arguments}", timeout=3000))


@pytest.mark.slow(minutes=10)
def test_own_tests_pass_on_postgresql(bake, run_in, postgresql_url):
    """The tests that use the database, crash maps and real kills included, on PostgreSQL.

    The others are left out, for time. They would do the same again: they use no database, or one of their own.
    """
    service = bake(ci="none", worked_examples="yes")
    arguments = "tests/redelivery tests/test_health.py onboarding leads payments tests/kills/test_recorder.py"
    environment = {"DATABASE_URL": postgresql_url}
    print(run_in(service, "make", "test", f"ARGS={arguments}", env=environment, timeout=3000))


class TestMakefile:
    """What `make` says and does before anything runs."""

    def test_plain_make_is_help(self, bake):
        """Every target that is meant for people has its line."""
        done = run("make", cwd=(service := bake()))
        text = (service / "Makefile").read_text() + (service / "deploy" / "deploy.mk").read_text()
        targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE)) - {"venv", "deployvenv"}
        assert {line.split()[1] for line in done.stdout.splitlines()} == targets
        assert {"run", "demo", "test", "lint", "help"} <= targets

    @pytest.mark.parametrize("target", ["run", "demo", "test", "lint", "check"])
    def test_python_that_is_not_there(self, bake, target):
        """One sentence names the Python and the cure, and nothing is made."""
        done = run("make", target, "PYTHON=python9.9", cwd=(service := bake()))
        assert done.returncode == 2
        assert done.stdout.splitlines()[0] == (
            "python9.9 is not on the PATH: install Python 3.11 or newer, or say which one to use: "
            "make PYTHON=/path/to/python3."
        )
        assert not (service / ".venv").exists() and not (service / ".env").exists()


class TestMakeVenv:
    """dev/make_venv.py refuses what cannot work, in one sentence, and does nothing twice."""

    def make_venv(self, folder, before="", venv="venv"):
        """Run the script after some lines of Python that change the world that it sees."""
        requirements = folder / "requirements.txt"
        requirements.touch()
        script = str(DEV / "make_venv.py")
        call = f"sys.argv[1:] = {[venv, str(requirements)]}; runpy.run_path({script!r}, run_name='__main__')"
        code = f"import runpy, sys\n{before}\n{call}"
        return run(sys.executable, "-c", code, cwd=folder)

    def test_is_quick_the_second_time(self, tmp_path):
        """Made once; silent when nothing is to do; again when the requirements change."""
        first = self.make_venv(tmp_path)
        assert first.returncode == 0 and first.stdout.startswith("Making venv with Python 3.")
        assert self.make_venv(tmp_path).stdout == ""
        (tmp_path / "requirements.txt").write_text("# another\n")
        assert "Installing" in self.make_venv(tmp_path).stdout

    def test_unfinished_one_is_finished(self, tmp_path):
        """Without its stamp an environment is not taken for complete, and without pip it is made anew."""
        self.make_venv(tmp_path)
        (tmp_path / "venv" / "requirements.stamp").unlink()
        (tmp_path / "venv" / "bin" / "pip").unlink()
        assert self.make_venv(tmp_path).returncode == 0
        assert (tmp_path / "venv" / "requirements.stamp").exists()

    @pytest.mark.parametrize(
        ("before", "says"),
        [
            ("sys.version_info = (3, 10, 4)", "is Python 3.10, and the service needs 3.11 or newer"),
            ("sys.modules['ensurepip'] = None", "-venv; or say which other Python to use"),
            ("sys.modules['venv'] = None", "-venv; or say which other Python to use"),
        ],
        ids=["too old", "Debian without python3-venv", "no venv module"],
    )
    def test_unfit_python(self, tmp_path, before, says):
        """A Python that cannot do it is named, with the cure; no folder is left behind."""
        done = self.make_venv(tmp_path, before)
        assert done.returncode == 1
        assert says in done.stdout and len(done.stdout.splitlines()) == 1
        assert not (tmp_path / "venv").exists()

    def test_folder_that_is_no_environment(self, tmp_path):
        """Somebody's folder is not cleared."""
        (tmp_path / "venv").mkdir()
        (tmp_path / "venv" / "mine").touch()
        done = self.make_venv(tmp_path)
        assert done.returncode == 1 and "not a virtual environment" in done.stdout
        assert (tmp_path / "venv" / "mine").exists()

    def test_environment_of_another_python(self, tmp_path):
        """It is not used and not replaced behind one's back."""
        self.make_venv(tmp_path)
        stamp = tmp_path / "venv" / "requirements.stamp"
        stamp.write_text(re.sub(r"Python \S+,", "Python 3.99,", stamp.read_text()))
        done = self.make_venv(tmp_path)
        assert done.returncode == 1 and "was made with Python 3.99" in done.stdout

    def test_requirement_that_cannot_be_had(self, tmp_path):
        """pip's own words, then one sentence; the next run tries again."""
        (tmp_path / "requirements.txt").write_text("./nowhere --hash=sha256:00\n")
        done = self.make_venv(tmp_path)
        assert done.returncode == 1
        assert done.stdout.splitlines()[-1].endswith(
            "could not be installed into venv; the lines above say why."
        )
        assert not (tmp_path / "venv" / "requirements.stamp").exists()

    def test_old_pythons_can_read_it(self):
        """A Python that is too old must be able to say so."""
        ast.parse((DEV / "make_venv.py").read_text(), feature_version=(3, 6))


class TestMakeEnv:
    """dev/make_env.py never overwrites, never writes half a file, and says what is wrong."""

    def make_env(self, folder):
        """Run the script in a folder."""
        return run(sys.executable, DEV / "make_env.py", ".env.example", ".env", cwd=folder)

    @pytest.mark.parametrize(
        "example",
        ["DEBUG=true\n", "SECRET_KEY=known\n", "SECRET_KEY=\nSECRET_KEY=\n"],
        ids=["none", "filled", "two"],
    )
    def test_example_without_its_one_empty_key(self, tmp_path, example):
        """A key that somebody may know is not taken, and none is drawn twice."""
        (tmp_path / ".env.example").write_text(example)
        done = self.make_env(tmp_path)
        assert done.returncode == 1
        assert done.stdout.startswith(".env.example needs exactly one line 'SECRET_KEY='")
        assert [path.name for path in tmp_path.iterdir()] == [".env.example"]

    def test_no_example(self, tmp_path):
        """One sentence, no traceback."""
        done = self.make_env(tmp_path)
        assert done.returncode == 1
        assert (
            done.stdout
            == ".env cannot be made from .env.example: No such file or directory (.env.example).\n"
        )

    @pytest.mark.parametrize("there", ["file", "dangling link"])
    def test_what_is_there_stays(self, tmp_path, there):
        """A file of one's own, and a link to a place that is not mounted yet."""
        (tmp_path / ".env.example").write_text("SECRET_KEY=\n")
        env = tmp_path / ".env"
        if there == "file":
            env.write_text("mine")
        else:
            env.symlink_to("elsewhere")
        assert self.make_env(tmp_path).returncode == 0
        assert env.is_symlink() if there == "dangling link" else env.read_text() == "mine"
        assert not Path(tmp_path, "elsewhere").exists()

    def test_many_at_once_make_one(self, tmp_path):
        """Of several runs at the same moment one wins, and the others are content."""
        (tmp_path / ".env.example").write_text("SECRET_KEY=\n")
        command = [sys.executable, DEV / "make_env.py", ".env.example", ".env"]
        runs = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(6)]
        outputs = [process.communicate()[0] for process in runs]
        assert [process.returncode for process in runs] == [0] * 6
        assert sum("made from" in output for output in outputs) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [".env", ".env.example"]
