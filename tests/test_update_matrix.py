"""Updates of real services: from every earlier version, with edits of every kind, by every route."""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib

import pytest
from conftest import ROOT
from update_matrix import (
    ANOTHER_REGION,
    DELETED,
    EDITED,
    MOVED,
    OWN,
    RENAMED,
    ROUTES,
    SAME_LINE,
    SAME_PATH,
    SLUG,
    TOGETHER,
    Cruft,
    MakeUpdate,
    column,
    column_of_page,
)
from versions import EARLIER, Repository, TemplateRepository, real_template, repository_of, update

needs_cruft = pytest.mark.skipif(
    importlib.util.find_spec("cruft") is None, reason="cruft is not installed (make test installs it)"
)
KEPT_OR_FLAGGED = re.compile(r"(kept|flagged) \[\d\](, refused)?")
TAGS = [
    tag
    for tag in subprocess.run(["git", "-C", ROOT, "tag"], capture_output=True, text=True).stdout.split()
    if re.fullmatch(r"v?\d+\.\d+\.\d+", tag)
]


@pytest.fixture(scope="session")
def versions(template, tmp_path_factory):
    """A repository of the template with three earlier versions."""
    folder = tmp_path_factory.mktemp("versions")
    return real_template(template, folder / "template", folder / "home")


@pytest.fixture
def newest(versions):
    """The version that the template has now."""
    return json.loads(versions.read("cookiecutter.json"))["_version"]


@pytest.mark.parametrize(
    "route", [pytest.param(route, marks=needs_cruft if route is Cruft else ()) for route in ROUTES]
)
def test_page_says_what_each_route_does(versions, tmp_path, route):
    """Kept, flagged, missed or lost, and the exit status; `make update` loses nothing in any cell."""
    measured = column(route(versions, tmp_path))
    assert measured == column_of_page(route), "make matrix"
    if route is MakeUpdate:
        assert all(map(KEPT_OR_FLAGGED.fullmatch, measured))


@pytest.mark.parametrize("version", EARLIER[:-1])
@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        pytest.param(
            TOGETHER, ["flagged [1]", "flagged [1]", "kept [1]", "flagged [1]", "kept [1]"], id="conflicts"
        ),
        pytest.param((ANOTHER_REGION, RENAMED, OWN), ["kept [0]"] * 3, id="no conflict"),
        pytest.param((DELETED, RENAMED), ["kept [0]"] * 2, id="deleted"),
        pytest.param((MOVED, OWN), ["kept [0]"] * 2, id="renamed"),
    ],
)
def test_edits_survive_from_older_versions_too(versions, tmp_path, version, edits, expected):
    """The same from two and three versions back."""
    assert MakeUpdate(versions, tmp_path).measured(edits, version) == expected


@pytest.mark.parametrize("version", EARLIER)
@pytest.mark.parametrize(
    "answers", [{}, {"ci": "gitlab", "worked_examples": "no", "author": 'Zoë "Zo" O\'Neill'}]
)
def test_unchanged_service_becomes_a_fresh_one(versions, newest, tmp_path, version, answers):
    """Byte by byte and mode by mode; a question that the old version did not ask has its default."""
    service = repository_of(versions.generate(version, tmp_path / SLUG, project_slug=SLUG, **answers))
    done = update(service, template=versions)
    assert done.returncode == 0, done.stdout
    new = "author" not in tomllib.loads(service.git("show", "HEAD~1:.template.toml"))["answers"]
    assert ("New question author: took its default, 'Your Name'." in done.stdout) == new
    answers = {name: answer for name, answer in answers.items() if name != "author" or not new}
    fresh = versions.generate(newest, tmp_path / "fresh", project_slug=SLUG, **answers)
    assert service.files == fresh.files and service.status == ""


@pytest.mark.parametrize("tag", TAGS)
def test_from_every_tag(template, tmp_path, tag):
    """From each version that was ever published, with additions of one's own, to what the template is now."""
    versions = clone_of_this(tmp_path)
    if ".template.toml" not in versions.git("ls-tree", "-r", "--name-only", tag):
        pytest.skip(f"{tag} is older than `make update`")
    shutil.copytree(template, versions.folder, dirs_exist_ok=True)
    now = versions.commit("As it is")
    service = repository_of(versions.generate(tag, tmp_path / SLUG, project_slug=SLUG))
    OWN.do(service)
    service.commit("Own")
    done = update(service, "--to", now, template=versions)
    assert done.returncode == 0, done.stdout
    assert OWN.kept(service) and service.read(".template.toml") == versions.generate(
        now, tmp_path / "fresh", project_slug=SLUG
    ).read(".template.toml")


def clone_of_this(tmp_path) -> TemplateRepository:
    """Return a clone of this repository."""
    versions = TemplateRepository(tmp_path / "template", tmp_path / "home")
    versions.folder.mkdir()
    versions.git("clone", "--quiet", ROOT, ".")
    return versions


def wrong_versions(repository: Repository) -> list[str]:
    """Return what is wrong with the tags that are versions, and with `_version` in cookiecutter.json now."""

    def version_at(revision: str) -> str:
        text = repository.git("show", f"{revision}:cookiecutter.json", check=False)
        return json.loads(text)["_version"] if text else ""

    def number(version: str) -> list[int]:
        return [int(part) for part in version.removeprefix("v").split(".")]

    tags = [tag for tag in repository.git("tag").split() if re.fullmatch(r"v?\d+\.\d+\.\d+", tag)]
    wrong = [
        f"{tag} calls itself {version_at(tag)}" for tag in tags if version_at(tag) != tag.removeprefix("v")
    ]
    # The first version was called so from the beginning, before there was anything to take.
    later = sorted(tags, key=number)[1:]
    wrong += [
        f"{tag} is not where its version begins" for tag in later if version_at(f"{tag}~1") == version_at(tag)
    ]
    now = json.loads(repository.read("cookiecutter.json"))["_version"]
    wrong += [f"{now} is older than {tag}" for tag in tags if number(now) < number(tag)]
    return wrong


class TestVersions:
    """The version in cookiecutter.json and the tag are the same, on the commit that changes the version."""

    def test_of_this_repository(self, tmp_path):
        """Whatever tags there are."""
        assert wrong_versions(clone_of_this(tmp_path)) == []

    def test_wrong_ones_are_found(self, versions, tmp_path):
        """A tag of another name, one that is set too late, and a version that goes back."""
        copy = Repository(shutil.copytree(versions.folder, tmp_path / "copy"), versions.home)
        assert wrong_versions(copy) == []
        copy.commit("Later")
        copy.git("tag", "v99.0.0", "0.0.3")
        now = json.loads(copy.read("cookiecutter.json"))["_version"]
        copy.git("tag", f"v{now}")
        wrong = [
            "v99.0.0 calls itself 0.0.3",
            f"v{now} is not where its version begins",
            f"{now} is older than v99.0.0",
        ]
        assert wrong_versions(copy) == wrong

    def test_renamed_answers_lead_somewhere(self):
        """Each entry of answers.toml has a version, a name before, and a question that is asked now."""
        questions = json.loads((ROOT / "cookiecutter.json").read_text())
        assert_renames_lead_somewhere(tomllib.loads((ROOT / "answers.toml").read_text()), questions)
        example = re.sub(r"^# ?(?=\[\[|\w+ +=)", "", (ROOT / "answers.toml").read_text(), flags=re.MULTILINE)
        with pytest.raises(AssertionError, match="host"):
            assert_renames_lead_somewhere(tomllib.loads(example), questions)


def assert_renames_lead_somewhere(answers: dict, questions: dict) -> None:
    """Assert it of the content of an answers.toml."""
    renamed = answers.get("renamed", [])
    names = {entry["answer"] for entry in renamed}
    for entry in renamed:
        assert set(entry) <= {"version", "answer", "to", "values"}, entry
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"]), entry
        now = entry.get("to", entry["answer"])
        assert now in questions or now in names, now


@needs_cruft
class TestCruft:
    """cruft works with this template."""

    @pytest.fixture
    def cruft(self, versions, tmp_path):
        """The route, and a service that cruft made of the newest version, committed."""
        route = Cruft(versions, tmp_path)
        service = route.generate("main", tmp_path / SLUG)
        return route, repository_of(service)

    def test_makes_what_cookiecutter_makes(self, cruft, versions, tmp_path):
        """All files, but for .cruft.json."""
        _, service = cruft
        fresh = versions.generate("main", tmp_path / "fresh", project_slug=SLUG)
        assert service.files.keys() - fresh.files.keys() == {".cruft.json"}
        assert {name: service.files[name] for name in fresh.files} == fresh.files
        assert str(versions.folder) not in service.read(".template.toml")

    def test_check_and_diff_find_nothing_on_a_fresh_service(self, cruft):
        """`cruft check` and `cruft diff --exit-code` end with 0."""
        route, service = cruft
        for command in (("check", "--checkout", "main"), ("diff", "--exit-code", "--checkout", "main")):
            done = route.run(*command, cwd=service.folder)
            assert done.returncode == 0, done.stdout + done.stderr

    def test_link(self, versions, tmp_path):
        """A service that cookiecutter made is linked, and then updated without a difference to a fresh one."""
        route = Cruft(versions, tmp_path)
        service = repository_of(versions.generate(EARLIER[-1], tmp_path / SLUG, project_slug=SLUG))
        extra = json.dumps({"project_slug": SLUG})
        link = ("link", versions.folder, "--checkout", EARLIER[-1], "--extra-context", extra, "--no-input")
        done = route.run(*link, cwd=service.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        service.commit("Linked")
        assert route.take_over(service) == 0
        fresh = versions.generate("main", tmp_path / "fresh", project_slug=SLUG)
        assert {name: service.files[name] for name in service.files if name != ".cruft.json"} == fresh.files

    def test_make_update_says_that_cruft_must_be_told(self, versions, tmp_path):
        """Both in one service: what the one does, the other does not know."""
        service = repository_of(Cruft(versions, tmp_path).generate(EARLIER[-1], tmp_path / SLUG))
        done = update(service, template=versions)
        assert done.returncode == 0, done.stdout
        assert "cruft link --checkout" in done.stdout


@pytest.mark.slow
def test_own_tests_pass_once_conflicts_are_resolved(versions, tmp_path, run_in):
    """From three versions back, with edits that conflict and a task of one's own: resolved as the output says."""
    service = repository_of(versions.generate(EARLIER[0], tmp_path / SLUG, project_slug=SLUG))
    for edit in (SAME_LINE, EDITED, RENAMED, SAME_PATH, OWN):
        edit.do(service)
    service.commit("Edits")
    assert update(service, template=versions).returncode == 1
    service.git("rm", "--quiet", "service/legacy.py")
    service.git("checkout", "--theirs", "--", "gunicorn.conf.py", "service/publishing.py")
    service.git("add", "--all")
    service.git("-c", "core.editor=true", "cherry-pick", "--continue")
    run_in(service.folder, "make", "lint")
    run_in(service.folder, "make", "check")
    # Those of what was edited and of what came new; all else is that of a fresh service, byte by byte.
    tests = "leads onboarding tests/test_publishing.py tests/test_mail.py tests/test_logs.py"
    print(run_in(service.folder, "make", "test", f"ARGS={tests}", timeout=1800))
