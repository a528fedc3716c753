"""What every combination of answers must give: the exact files, clean by its own tools, twice the same."""

import ast
import hashlib
import itertools
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from conftest import CI_KINDS, ROOT

EXPECTED_FILES = Path(__file__).with_name("expected_files.txt")


def combination(ci, examples):
    """Answers in which every pair of them occurs, without a third factor of two."""
    ansible = "yes" if (examples == "yes") == (ci != "gitlab") else "no"
    answers = {"ci": ci, "worked_examples": examples, "ansible": ansible}
    return pytest.param(answers, id=f"{ci}, examples {examples}, ansible {ansible}")


COMBINATIONS = list(itertools.starmap(combination, itertools.product(CI_KINDS, ("yes", "no"))))

ODD_BUT_LEGAL = {
    "project_name": "Søn & O'Neill's 100 % #1 <b>shop</b> 日本",
    "project_slug": "a" + "1" * 31,
    "description": """It's "100 %" safe: \"""really\""", costs $5, {braces}, #tags, <i>html</i> and 🚲""",
    "author": 'Zoë O\'Neill "Zo"',
    "domain": "xn--bcher-kva.example",
}

PRODUCTION = {
    "DEBUG": "false",
    "SECRET_KEY": "x9_" + "Qw7-" * 16,
    "DATABASE_URL": "postgres://shop:secret@db.example.com:5432/shop",
    "CACHE_URL": "redis://cache.example.com:6379/0",
    "EMAIL_URL": "smtp+tls://shop:secret@mail.example.com:587",
    "HSTS_SECONDS": "31536000",
    "HSTS_INCLUDE_SUBDOMAINS": "true",
    "HSTS_PRELOAD": "true",
    "PAYMENT_PROVIDER": "stripe",
    "STRIPE_API_KEY": "sk_live_of_nobody",
}

CHECK_DEPLOY = """
import os, subprocess, sys
from redelivery.testing.servers import redis_server

with redis_server() as broker:
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    sys.exit(subprocess.call(command, env={**os.environ, "BROKER_URL": broker.url()}))
"""

OWN_BELOW = "# The service's own, below this line: the template adds above it, and git merges both."
URL_HOST = re.compile(r"https?://(?:[^/@\s]*@)?([a-z0-9][a-z0-9.-]*)")
HARMLESS_HOST = re.compile(r"(127\.0\.0\.1|localhost|secret|(.*\.)?example(\.com|\.org)?)")
MACHINE_PATHS = ("/home/", "/root/", "/opt/", "/usr/local/", "file://")


def files_of(folder) -> dict[str, bytes]:
    """Return path and content of every file, and of every empty folder with None."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.is_file() or not any(path.iterdir())
    }


def expected_files(ci, worked_examples, ansible) -> set[str]:
    """Read the list of files for these answers."""
    expected = set()
    for line in EXPECTED_FILES.read_text().splitlines():
        needs, _, name = line.rpartition(": ")
        if line and not line.startswith("#") and needs in ("", ci, ansible == "yes" and "ansible"):
            expected.add(name.replace("<apps>/", "" if worked_examples == "yes" else "examples/"))
    return expected


def text_files(folder):
    """Yield (path, text) of all files that git would keep."""
    listing = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(
        None, subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    ):
        path = Path(folder, name)
        if path.is_file() and b"\0" not in path.read_bytes():
            yield path, path.read_text(encoding="utf-8")


@pytest.fixture(params=COMBINATIONS)
def answers(request):
    """Each combination of the answers that choose files."""
    return request.param


@pytest.fixture
def service(bake, answers):
    """A service of each combination."""
    return bake(**answers)


def test_exactly_the_expected_files(service, answers):
    """Not one more, not one less, and no empty folder."""
    assert set(files_of(service)) == expected_files(**answers)


def test_same_answers_same_bytes(service, bake, answers, tmp_path):
    """A second bake is equal, byte for byte: nothing is drawn, and nothing depends on time or place."""
    assert files_of(bake(sandbox=tmp_path / "again", **answers)) == files_of(service)


def test_style_and_format_are_clean(service, run_in):
    """The generated service passes its own `make lint`, and the formatter would change nothing."""
    run_in(service, "make", "lint")
    assert not (service / ".env").exists()


def test_passes_the_checks_for_production(service, run_in):
    """`check --deploy` finds nothing, not even a warning, with the settings of production."""
    output = run_in(service, "python", "-c", CHECK_DEPLOY, env=PRODUCTION)
    assert "no issues" in output


def test_migrations_are_complete(service, run_in):
    """`makemigrations` has nothing to add."""
    environment = PRODUCTION | {"DATABASE_URL": "sqlite:///db.sqlite3", "BROKER_URL": "redis://127.0.0.1:1/0"}
    run_in(service, "python", "manage.py", "makemigrations", "--check", "--dry-run", env=environment)


def test_bake_stays_offline_and_starts_only_the_hook(cookiecutter, answers):
    """No connection, no name looked up, no program but the validating hook."""
    run = cookiecutter("project_slug=shop", *(f"{name}={answer}" for name, answer in answers.items()))
    assert run.returncode == 0, run.stderr
    assert [event for event, _ in run.events] == ["subprocess.Popen"]
    assert "tmp" in run.events[0][1] and run.stderr == ""


def test_folder_with_spaces(bake, run_in, tmp_path):
    """A service works in a folder whose path has a space and a quote in it."""
    service = bake(sandbox=tmp_path / "my projects' folder")
    run_in(service, "make", "lint")
    run_in(service, "make", "check")
    assert (service / ".env").exists()


def test_config_file_is_as_good_as_arguments(cookiecutter, bake, tmp_path):
    """The answers of a config file give the same service."""
    answers = {"project_slug": "shop", "author": "Zoë O'Neill", "ci": "gitlab", "worked_examples": False}
    run = cookiecutter(config=answers)
    assert run.returncode == 0, run.stderr
    assert files_of(run.sandbox / "out" / "shop") == files_of(bake(sandbox=tmp_path / "arguments", **answers))


def test_git_url_is_as_good_as_a_folder(cookiecutter, bake, template, tmp_path):
    """`cookiecutter <git URL>` generates the same service as `cookiecutter <path>`."""
    repository = tmp_path / "template.git"
    git = ["git", "-C", template, "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-q", "--message", "As it is"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", template, repository], check=True)
    run = cookiecutter("project_slug=shop", source=f"file://{repository}")
    assert run.returncode == 0, run.stderr
    assert files_of(run.sandbox / "out" / "shop") == files_of(bake(sandbox=tmp_path / "folder"))


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        ("https://git.example.com/t.git", "https://git.example.com/t.git"),
        ("git@git.example.com:t.git", "git@git.example.com:t.git"),
        ("https://ann:word-of-ann@git.example.com/t.git", ""),
    ],
)
def test_url_is_recorded_without_a_password(cookiecutter, template, home, tmp_path, url, recorded):
    """An update finds the template at its URL; a secret in it goes nowhere, and neither does a folder."""
    repository = shutil.copytree(template, tmp_path / "t")
    git = ["git", "-C", repository, "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    for command in (
        ("init", "-q"),
        ("add", "--all"),
        ("commit", "-q", "--allow-empty", "--message", "As it is"),
    ):
        subprocess.run([*git, *command], check=True)
    (home / ".gitconfig").write_text(f'[url "file://{repository}"]\n    insteadOf = {url}\n')
    run = cookiecutter("project_slug=shop", source=url)
    (home / ".gitconfig").unlink()
    assert run.returncode == 0, run.stderr
    service = run.sandbox / "out" / "shop"
    assert tomllib.loads((service / ".template.toml").read_text())["template"] == recorded
    assert not any(b"word-of-ann" in (text or b"") for text in files_of(service).values())


def test_own_settings_win(bake, run_in):
    """service/settings/own.py is read last."""
    service = bake()
    run_in(service, "make", ".env")
    with (service / "service" / "settings" / "own.py").open("a") as own:
        own.write("\nfrom service.settings.web import MIDDLEWARE as COMMON\n\nMIDDLEWARE = COMMON[:1]\n")
        own.write('LANGUAGE_CODE = "de"\n')
    show = "from service import settings; print(settings.LANGUAGE_CODE, len(settings.MIDDLEWARE))"
    assert run_in(service, "python", "-c", show) == "de 1\n"


class TestOddButLegalAnswers:
    """Quotes, percent signs, markup and letters of other scripts come through as they are."""

    @pytest.fixture
    def odd(self, bake):
        """A service with odd answers."""
        return bake(**ODD_BUT_LEGAL)

    def test_project_file_is_valid(self, odd):
        """pyproject.toml says what was answered."""
        project = tomllib.loads((odd / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["name"] == ODD_BUT_LEGAL["project_slug"]
        assert project["description"] == ODD_BUT_LEGAL["description"]
        assert project["authors"] == [{"name": ODD_BUT_LEGAL["author"]}]

    def test_record_says_what_was_answered(self, odd):
        """An update reads the same answers that were given."""
        recorded = tomllib.loads((odd / ".template.toml").read_text(encoding="utf-8"))["answers"]
        assert recorded == ODD_BUT_LEGAL | {"ci": "github", "worked_examples": True, "ansible": True}

    def test_environment_reads_the_same_everywhere(self, odd, run_in):
        """django-environ and a shell read the same name from .env."""
        run_in(odd, "make", ".env")
        show = "import environ; environ.Env.read_env('.env'); import os; print(os.environ['SERVICE_NAME'])"
        assert run_in(odd, "python", "-X", "utf8", "-c", show).rstrip("\n") == ODD_BUT_LEGAL["project_name"]
        shell = subprocess.run(
            ["sh", "-c", '. ./.env; printf %s "$SERVICE_NAME"'], cwd=odd, capture_output=True, check=True
        )
        assert shell.stdout.decode() == ODD_BUT_LEGAL["project_name"]

    def test_readme_begins_with_the_name(self, odd):
        """The heading of the README is the name."""
        assert (
            (odd / "README.md").read_text(encoding="utf-8").startswith(f"# {ODD_BUT_LEGAL['project_name']}\n")
        )

    def test_checks_pass(self, odd, run_in):
        """Style, checks and migrations are clean, as with plain answers."""
        run_in(odd, "make", "lint")
        run_in(odd, "make", "check")


class TestSecrets:
    """No secret is drawn at generation; `make` draws one, once, into a file that git ignores."""

    def test_first_commit_has_no_secret(self, bake, run_in):
        """`git add --all` after `make .env` takes .env.example and leaves .env."""
        service = bake()
        assert re.search(r"^SECRET_KEY=$", (service / ".env.example").read_text(), re.MULTILINE)
        run_in(service, "make", ".env")
        subprocess.run(["git", "init", "-q"], cwd=service, check=True)
        subprocess.run(["git", "add", "--all"], cwd=service, check=True)
        added = subprocess.run(
            ["git", "ls-files"], cwd=service, check=True, capture_output=True, text=True
        ).stdout.split()
        assert ".env.example" in added
        assert ".env" not in added

    def test_env_is_private_and_made_once(self, bake, run_in):
        """Mode 0600, a key out of A-Z a-z 0-9 _ - that is fit for production, and never made again."""
        service = bake()
        run_in(service, "make", ".env")
        env = service / ".env"
        assert env.stat().st_mode & 0o777 == 0o600
        (key,) = re.findall(r"^SECRET_KEY=([A-Za-z0-9_-]{64})$", env.read_text(), re.MULTILINE)
        deploy = ("manage.py", "check", "--deploy", "--tag", "security", "--fail-level", "WARNING")
        run_in(service, "python", *deploy, env=PRODUCTION | {"SECRET_KEY": key})
        before = env.read_text()
        run_in(service, "make", ".env")
        run_in(service, "python", "dev/make_env.py", ".env.example", ".env")
        assert env.read_text() == before
        assert [
            path.name for path in service.glob(".env*") if path.name not in (".env", ".env.example")
        ] == []
        assert key not in (service / ".env.example").read_text()

    def test_two_services_have_two_keys(self, bake, run_in, tmp_path):
        """The key is drawn, not derived."""
        keys = set()
        for place in ("one", "two"):
            service = bake(sandbox=tmp_path / place)
            run_in(service, "make", ".env")
            keys.add(hashlib.sha256((service / ".env").read_bytes()).digest())
        assert len(keys) == 2


class TestEveryFile:
    """Rules about the text of all files, of the template and of what it generates."""

    def test_no_jinja_in_python_and_html(self):
        """The service's code is plain Python, and its pages are Django's templates, not cookiecutter's."""
        for path, text in text_files(ROOT / "{{cookiecutter.project_slug}}"):
            if path.name.endswith((".py", ".html", ".py{% endif %}")):
                assert not re.search(r"\{\{[^}]*cookiecutter", text), path
            if path.name.endswith((".py", ".py{% endif %}")):
                assert not re.search(r"\{%|\{#", text), path
                ast.parse(text, filename=str(path))

    def test_no_registry_and_no_path_of_a_machine(self, bake):
        """No file names a package registry, an image registry or a folder of somebody's machine."""
        subprocess.run(["git", "init", "-q"], cwd=(service := bake()), check=True)
        for path, text in itertools.chain(text_files(ROOT), text_files(service)):
            if path.is_relative_to(ROOT / "tests"):
                continue
            for forbidden in ("index-url", "find-links", *MACHINE_PATHS):
                assert forbidden not in text, f"{path} holds {forbidden}"
            for host in URL_HOST.findall(text):
                assert HARMLESS_HOST.fullmatch(host), f"{path} names the host {host}"

    def test_no_name_to_look_up(self):
        """A bare machine has no /etc/hosts, and redis-py's default host is a name: then each test waits for DNS."""
        for path, text in text_files(ROOT / "{{cookiecutter.project_slug}}"):
            assert not re.search(r"Redis\((port=|db=|\))", text), path

    def test_every_requirement_has_a_hash(self):
        """Each pinned requirement is followed by its hashes."""
        for path in (
            *ROOT.glob("requirements*.txt"),
            *ROOT.glob("*cookiecutter.project_slug*/**/requirements*.txt"),
        ):
            entries = re.split(r"\n(?=\S)", path.read_text())
            pinned = [entry for entry in entries if "==" in entry.partition("\n")[0]]
            assert len(pinned) > 10
            assert all("--hash=sha256:" in entry for entry in pinned), path

    def test_both_sides_add_to_a_file_at_places_of_their_own(self, bake):
        """What a service adds to follows a comment as the last line, so that git merges what the template adds."""
        service = bake()
        for name in (
            ".env.example",
            ".gitignore",
            "ack_policy.toml",
            "requirements.in",
            "requirements-dev.in",
        ):
            last = (service / name).read_text().splitlines()[-1]
            assert last == OWN_BELOW, name
        assert (service / "service" / "own.py").read_text().count(f"    {OWN_BELOW}\n") == 5

    def test_version_is_the_newest_of_the_changelog(self):
        """`_version` in cookiecutter.json has an entry in CHANGELOG.md, and it is the first one."""
        version = re.search(r'"_version": "([^"]+)"', (ROOT / "cookiecutter.json").read_text()).group(1)
        assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == version
