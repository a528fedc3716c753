"""`make update` in every place and state that a repository can be in, with a small template."""

import contextlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from versions import (
    SERVICE,
    TINY_QUESTIONS,
    Repository,
    TemplateRepository,
    environment,
    next_version,
    repository_of,
    tiny_template,
    update,
)

DEV = ROOT / SERVICE / "dev"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The small template at 1.0.0, and the service that it generates, as masters to be copied."""
    folder = tmp_path_factory.mktemp("tiny")
    template = tiny_template(folder / "template", folder / "home", DEV)
    repository_of(template.generate("1.0.0", folder / "service"))
    return folder


@pytest.fixture
def place(tiny, tmp_path):
    """A folder whose path has a space and a quote in it, with copies of both."""
    place = tmp_path / "my projects' folder"
    subprocess.run(["cp", "-a", tiny, place], check=True)
    return place


@pytest.fixture
def template(place):
    """The small template with the versions 1.0.0 and 1.1.0."""
    template = TemplateRepository(place / "template", place / "home")
    template.version("1.1.0", next_version)
    return template


@pytest.fixture
def service(place):
    """A service of version 1.0.0, committed."""
    return Repository(place / "service", place / "home")


def assert_refused(done, service, says, before=None):
    """Exit status 2, one sentence, and nothing changed or left behind."""
    assert done.returncode == 2, done.stdout
    assert says in done.stdout
    assert "Traceback" not in done.stdout
    assert service.left_in_git == []
    if before is not None:
        assert service.files == before


class TestWithoutConflict:
    """What applies is committed, once, in the user's name."""

    def test_unchanged_service_becomes_the_new_version(self, template, service):
        """Every byte and mode is that of a fresh service; one commit; no file is left anywhere."""
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        assert done.stdout.startswith("Updated from 1.0.0 to 1.1.0, 6 files, as one commit")
        fresh = template.generate("1.1.0", service.folder.parent / "fresh")
        assert service.files == fresh.files
        assert service.status == ""
        assert service.git("log", "--format=%an %cn %s").splitlines() == [
            "Ann Ann Update from the template: 1.0.0 to 1.1.0",
            "Ann Ann As generated",
        ]
        assert service.left_in_git == []
        home = {path.name for path in service.home.iterdir()} - {"baking"}
        assert home == {".gitconfig", "tmp"} and list((service.home / "tmp").iterdir()) == []

    def test_second_run_has_nothing_to_do(self, template, service):
        """And says so."""
        update(service, template=template)
        done = update(service, template=template)
        assert done.returncode == 0
        assert done.stdout == "Nothing to do: the service is at 1.1.0, and so is what was asked for.\n"

    def test_edits_renames_and_deletions_survive(self, template, service):
        """An edit beside the template's, an edit of a renamed file, a renamed file with a change, a deleted folder."""
        service.change("numbers.txt", "line 15 of", "my line 15 of")
        service.append("letters.txt", "letter mine\n")
        service.rename("app/tasks.py", "jobs/mine.py")
        service.remove("app/colour.txt")
        service.commit()
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        assert "line three of" in service.read("numbers.txt") and "my line 15" in service.read("numbers.txt")
        assert "letter mine" in service.read("alphabet.txt") and not (service.folder / "letters.txt").exists()
        assert (
            "task_5 = 55" in service.read("jobs/mine.py") and not (service.folder / "app/tasks.py").exists()
        )

    def test_deleted_file_stays_deleted_and_is_named(self, template, service):
        """A deletion is a decision: the template's change of that file is left out, and the user hears of it."""
        service.remove("app/tasks.py")
        service.commit()
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        assert "Deleted here, so that their changes are left out:\n  app/tasks.py\n" in done.stdout
        assert "- app/tasks.py" in service.git("log", "-1", "--format=%b")
        assert not (service.folder / "app" / "tasks.py").exists()
        assert "line three of" in service.read("numbers.txt")

    def test_dry_run_shows_the_difference_and_changes_nothing(self, template, service):
        """Not one object is added to git's database, also with changes that are not committed."""
        service.append("numbers.txt", "not committed\n")
        before = service.files, service.git("count-objects"), service.git("rev-parse", "HEAD")
        done = update(service, "--dry-run", template=template)
        assert done.returncode == 0, done.stdout
        assert "+line three of the numbers\n" in done.stdout and "rename to alphabet.txt" in done.stdout
        assert (
            done.stdout.splitlines()[-1] == "Would update from 1.0.0 to 1.1.0, 6 files, without a conflict."
        )
        assert (service.files, service.git("count-objects"), service.git("rev-parse", "HEAD")) == before
        assert service.left_in_git == []

    def test_json(self, template, service):
        """One object, with all that a script wants to know."""
        done = update(service, "--json", template=template)
        report = json.loads(done.stdout)
        assert (report["status"], report["recorded"], report["wanted"]) == ("updated", "1.0.0", "1.1.0")
        assert report["commit"] == service.git("rev-parse", "HEAD").strip()
        assert "A new/added.txt" in report["changed"]

    def test_upgrade_notes_of_the_versions_between(self, template, service):
        """What a user must do is printed, the oldest first, and nothing that is known already."""
        notes = "# Changelog\n\n## 1.2.0\n\n### Upgrade\n\nMigrate.\n\n## 1.1.0\n\n- More.\n\n"
        notes += "### Upgrade\n\nCall Bob.\n"
        old = "\n## 1.0.0\n\n### Upgrade\n\nNever shown.\n"
        template.version("1.2.0", lambda repository: repository.write("CHANGELOG.md", notes + old))
        done = update(service, template=template)
        assert done.stdout.endswith("version by version:\n\n1.1.0:\nCall Bob.\n\n1.2.0:\nMigrate.\n")
        assert "Never" not in done.stdout

    def test_through_make(self, template, service, service_venv):
        """`make update TEMPLATE=... ARGS=...` of the real Makefile, with a space in the path."""
        service.write("Makefile", (ROOT / SERVICE / "Makefile").read_text())
        service.write("requirements-dev.txt", (ROOT / SERVICE / "requirements-dev.txt").read_text())
        service.write("dev/make_venv.py", (DEV / "make_venv.py").read_text())
        service.commit()
        done = subprocess.run(
            [*("make", "update", f"TEMPLATE={template.folder}", "ARGS=--to 1.1.0"), f"VENV={service_venv}"],
            cwd=service.folder,
            env=environment(service.home),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("Updated from 1.0.0 to 1.1.0")


class TestConflicts:
    """What does not apply is an ordinary conflict of git: status 1, a list, nothing lost."""

    @pytest.fixture
    def edited(self, service):
        """A service with an edit of each kind that conflicts."""
        service.change("numbers.txt", "line 3 of", "my line 3 of")
        service.write("new/added.txt", "mine\n")
        service.commit()
        return service

    def test_list_and_status(self, template, edited):
        """Each file with what happened to it, both versions in it, and what to do next."""
        done = update(edited, template=template)
        assert done.returncode == 1, done.stdout
        assert "  new/added.txt  added here and in the template\n" in done.stdout
        assert "  numbers.txt    changed here and in the template\n" in done.stdout
        assert "git cherry-pick --continue" in done.stdout and "git cherry-pick --abort" in done.stdout
        assert "UU numbers.txt" in edited.status and "AA new/added.txt" in edited.status
        text = edited.read("numbers.txt")
        assert "my line 3 of" in text and "line three of" in text and "<<<<<<<" in text

    def test_abort_restores_everything(self, template, edited):
        """Git's own way back."""
        before, head = edited.files, edited.git("rev-parse", "HEAD")
        update(edited, template=template)
        edited.git("cherry-pick", "--abort")
        assert (edited.files, edited.git("rev-parse", "HEAD"), edited.status) == (before, head, "")

    def test_continue_ends_it(self, template, edited):
        """Resolved and continued, the service is at the new version, and there is nothing more to do."""
        update(edited, template=template)
        edited.write("numbers.txt", "resolved\n")
        edited.write("new/added.txt", "resolved\n")
        edited.git("add", "--all")
        edited.git("-c", "core.editor=true", "cherry-pick", "--continue")
        assert update(edited, template=template).stdout.startswith("Nothing to do")

    def test_dry_run_says_the_same(self, template, edited):
        """Status 1 and the list, and nothing is changed."""
        before = edited.files
        done = update(edited, "--dry-run", template=template)
        assert done.returncode == 1
        assert done.stdout.count("<<<<<<<") == 2 and "2 of them would conflict" in done.stdout
        assert edited.files == before and edited.status == ""

    def test_edited_file_that_the_template_deletes(self, template, service):
        """It stays, as a conflict."""
        template.version("1.2.0", lambda repository: repository.remove(f"{SERVICE}/numbers.txt"))
        service.append("numbers.txt", "mine\n")
        service.commit()
        done = update(service, template=template)
        assert done.returncode == 1
        assert "numbers.txt  changed here, deleted or renamed in the template" in done.stdout
        assert "mine" in service.read("numbers.txt") and "UD numbers.txt" in service.status

    def test_rerere_hides_no_conflict(self, template, edited):
        """A resolution that git has learned is offered, not committed."""
        edited.git("config", "rerere.enabled", "true")
        edited.git("config", "rerere.autoupdate", "true")
        update(edited, template=template)
        edited.write("numbers.txt", "resolved\n")
        edited.write("new/added.txt", "resolved\n")
        edited.git("add", "--all")
        edited.git("-c", "core.editor=true", "cherry-pick", "--continue")
        edited.git("reset", "--hard", "HEAD~1")
        done = update(edited, template=template)
        assert done.returncode == 1 and "UU numbers.txt" in edited.status


class TestAnswers:
    """The recorded answers go along, under the names that the wanted version has for them."""

    def test_new_question_takes_its_default_and_is_named(self, template, service):
        """And is recorded."""

        def ask(repository):
            repository.change("cookiecutter.json", '"size":', '"shape": "round", "size":')
            repository.append(f"{SERVICE}/app/colour.txt", "{{ cookiecutter.shape }}\n")

        template.version("1.2.0", ask)
        done = update(service, template=template)
        assert "New question shape: took its default, 'round'.\n" in done.stdout
        assert 'shape = "round"' in service.read(".template.toml")
        assert service.read("app/colour.txt") == "red\nsmall\nround\n"

    @pytest.fixture
    def renamed(self, template):
        """1.2.0 calls the colour a tint, 1.3.0 calls that a hue, and says `tiny` for `small`; all of it recorded."""

        def call_it_a_tint(repository):
            repository.change("cookiecutter.json", '"colour"', '"tint"')
            repository.change(f"{SERVICE}/app/colour.txt", "cookiecutter.colour", "cookiecutter.tint")

        def call_it_a_hue(repository):
            repository.change("cookiecutter.json", '"tint"', '"hue"')
            repository.change("cookiecutter.json", '["small", "large"]', '["large", "tiny"]')
            repository.change(f"{SERVICE}/app/colour.txt", "cookiecutter.tint", "cookiecutter.hue")
            repository.write(
                "answers.toml",
                '[[renamed]]\nversion = "1.3.0"\nanswer = "tint"\nto = "hue"\n'
                '[[renamed]]\nversion = "1.2.0"\nanswer = "colour"\nto = "tint"\n'
                '[[renamed]]\nversion = "1.3.0"\nanswer = "size"\nvalues = { small = "tiny" }\n'
                '[[renamed]]\nversion = "1.0.0"\nanswer = "size"\nvalues = { small = "never" }\n',
            )

        template.version("1.2.0", call_it_a_tint)
        template.version("1.3.0", call_it_a_hue)
        return template

    def test_renamed_answers_are_followed_through_the_versions(self, renamed, place):
        """A name that changed twice, and a choice that is called otherwise; an older entry is not applied again."""
        service = repository_of(renamed.generate("1.0.0", place / "blue", colour="blue"))
        done = update(service, template=renamed)
        assert done.returncode == 0, done.stdout
        assert "colour is now called hue." in done.stdout and "size is now 'tiny'." in done.stdout
        assert service.read("app/colour.txt") == "blue\ntiny\n"
        assert 'hue = "blue"' in service.read(".template.toml")

    @pytest.mark.parametrize("what", ["question", "choice"])
    def test_what_is_gone_is_named(self, template, service, what):
        """A question that is no longer asked is dropped; a choice that is gone gives way to the default."""

        def drop(repository):
            if what == "question":
                repository.change("cookiecutter.json", '  "size": ["small", "large"],\n', "")
                repository.change(f"{SERVICE}/app/colour.txt", "{{ cookiecutter.size }}\n", "")
            else:
                repository.change("cookiecutter.json", '["small", "large"]', '["large", "huge"]')

        template.version("1.2.0", drop)
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        says = {
            "question": "size is no longer asked.",
            "choice": "size 'small' is no longer one of its choices.\nNew question size: took its default, 'large'.",
        }[what]
        assert says in done.stdout
        assert service.read("app/colour.txt") == {"question": "red\n", "choice": "red\nlarge\n"}[what]

    def test_answer_is_changed(self, template, service):
        """`--set` generates with another answer, also without a new version, and records it."""
        done = update(
            service, "--to", "1.0.0", "--set", "colour=blue", "--set", "size=large", template=template
        )
        assert done.returncode == 0, done.stdout
        assert service.read("app/colour.txt") == "blue\nlarge\n"
        assert 'colour = "blue"' in service.read(".template.toml")
        assert service.read("numbers.txt").count("three") == 0

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("taste=sweet", "names no question: write NAME=ANSWER, NAME out of project_slug, colour, size."),
            ("colour", "names no question"),
            ("size=huge", "is no choice: size is one of small, large."),
            ("colour={{ 7 * 7 }}", "the answer colour holds template code"),
        ],
    )
    def test_change_that_cannot_be(self, template, service, change, says):
        """One sentence, nothing changed."""
        assert_refused(update(service, "--set", change, template=template), service, says, service.files)

    @pytest.mark.parametrize(
        ("before", "after", "says"),
        [
            ('version = "1.0.0"', 'version = "main"', "has no version like '0.1.0' in it"),
            ('version = "1.0.0"', 'version = "0.9.0"', "has no version 0.9.0, which .template.toml records"),
            ("[answers]", "[questions]", "has no [answers]"),
            ("[answers]", "<<<<<<< HEAD\n[answers]", "cannot be read"),
            ('template = ""', "template = 5", "no text as its template"),
            ('"red"', "5", "the answer colour is neither text nor true nor false"),
            ('"red"', "\"{{ ''.__class__ }}\"", "the answer colour holds template code, which would be run"),
            ('"shop"', '"../shop"', "does not generate one folder with these answers"),
        ],
    )
    def test_record_that_cannot_be_used(self, template, service, before, after, says):
        """The sentence names the file and the cure; nothing is changed."""
        service.change(".template.toml", before, after)
        service.commit()
        assert_refused(update(service, template=template), service, says, service.files)


class TestWhereTheTemplateIs:
    """A folder, a URL, a recorded URL, or nowhere."""

    URL = "https://template.example.com/t.git"

    @pytest.fixture
    def online(self, template):
        """The template at a URL that git takes for its folder."""
        with (template.home / ".gitconfig").open("a") as config:
            config.write(f'[url "file://{template.folder}"]\n    insteadOf = {self.URL}\n')
            config.write(f"    insteadOf = {self.URL.replace('//', '//ann:hunter2@')}\n")
        return template

    def test_url_is_remembered(self, online, service):
        """Named once; the next update finds it in .template.toml."""
        assert update(service, "--to", "1.0.0", "--set", "colour=blue", template=self.URL).returncode == 0
        assert f'template = "{self.URL}"' in service.read(".template.toml")
        done = update(service)
        assert done.returncode == 0 and done.stdout.startswith("Updated from 1.0.0 to 1.1.0"), done.stdout
        assert f'template = "{self.URL}"' in service.read(".template.toml")

    def test_short_form_of_cookiecutter(self, online, service):
        """`gh:owner/name` is a URL."""
        with (online.home / ".gitconfig").open("a") as config:
            config.write(
                f'[url "file://{online.folder}"]\n    insteadOf = https://github.com/ann/template.git\n'
            )
        assert update(service, template="gh:ann/template").returncode == 0
        assert 'template = "gh:ann/template"' in service.read(".template.toml")

    def test_folder_and_password_are_not_remembered(self, online, service):
        """Neither in a file, nor in the history, nor in the output."""
        done = update(service, template=self.URL.replace("//", "//ann:hunter2@"))
        assert done.returncode == 0, done.stdout
        assert 'template = ""' in service.read(".template.toml")
        assert "hunter2" not in done.stdout + service.git("log", "-p")
        assert str(online.folder) not in service.git("log", "-p")

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            (None, "Where the template lives is not known: make update TEMPLATE=URL_OR_FOLDER"),
            ("/nowhere", "The template cannot be had from /nowhere: "),
            ("https://ann:hunter2@127.0.0.1:1/t", "The template cannot be had from https://127.0.0.1:1/t: "),
            (".", "What is at . is no cookiecutter template: it has no cookiecutter.json."),
        ],
        ids=["not known", "no folder", "no server", "no template"],
    )
    def test_template_that_is_not_there(self, template, service, source, says):
        """One clear sentence."""
        done = update(service, template=source)
        assert_refused(done, service, says, service.files)
        assert "hunter2" not in done.stdout and len(done.stdout.splitlines()) == 1

    def test_version_that_is_not_there(self, template, service):
        """The sentence lists what there is."""
        done = update(service, "--to", "9.9.9", template=template)
        assert_refused(done, service, "has no '9.9.9'. Its versions: 1.0.0, 1.1.0.", service.files)

    def test_branch_and_way_back(self, template, service):
        """`--to` takes any commit, and an older version as well."""
        template.version(
            "1.2.0", lambda repository: repository.write(f"{SERVICE}/more.txt", "more\n"), tag=False
        )
        assert update(service, template=template).stdout.startswith("Updated from 1.0.0 to 1.1.0")
        assert update(service, "--to", "main", template=template).stdout.startswith(
            "Updated from 1.1.0 to 1.2.0"
        )
        # The newest tag is older than what the service has.
        assert update(service, template=template).stdout.startswith("Nothing to do")
        assert update(service, "--to", "1.0.0", template=template).stdout.startswith(
            "Updated from 1.2.0 to 1.0.0"
        )
        assert service.git("diff", "HEAD~3").strip() == ""

    def test_template_without_tags(self, template, place):
        """The first commit that called itself so and wrote a record is what the service is taken to come from."""
        first = TemplateRepository(place / "untagged", place / "home")
        first.folder.mkdir()
        first.write("cookiecutter.json", TINY_QUESTIONS)
        repository_of(first)
        shutil.copytree(
            template.folder, first.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git")
        )
        first.change("cookiecutter.json", "1.1.0", "1.0.0")
        recording = first.commit("The first that can be generated")
        service = repository_of(first.generate("HEAD", place / "of no tag"))
        first.write(f"{SERVICE}/more.txt", "more\n")
        first.commit("More, without a version")
        done = update(service, template=first)
        assert done.returncode == 0, done.stdout
        assert f"no tag 1.0.0: taken to be {recording[:10]}, the first commit of it." in done.stdout
        assert service.read("more.txt") == "more\n"
        assert update(service, template=first).stdout.startswith("Nothing to do")

    def test_tag_with_a_v_and_one_that_is_no_version(self, template, service):
        """1.10.0 is newer than 1.9.0 and v1.8.0; `zebra` and a release candidate are not taken by themselves."""
        template.version("1.8.0", tag=False)
        template.git("tag", "v1.8.0")
        template.version("1.9.0")
        template.version("1.10.0", lambda repository: repository.write(f"{SERVICE}/ten.txt", "10\n"))
        template.version("2.0.0", lambda repository: repository.write(f"{SERVICE}/two.txt", "2\n"), tag=False)
        template.git("tag", "2.0.0rc1")
        template.git("tag", "zebra")
        assert update(service, "--to", "1.8.0", template=template).stdout.startswith(
            "Updated from 1.0.0 to 1.8.0"
        )
        assert update(service, template=template).stdout.startswith("Updated from 1.8.0 to 1.10.0")
        assert (service.folder / "ten.txt").exists() and not (service.folder / "two.txt").exists()

    def test_commit_that_the_service_comes_from(self, template, service):
        """`--from` helps where the record does not."""
        service.change(".template.toml", '"1.0.0"', '"0.9.0"')
        service.commit()
        done = update(service, "--from", "1.0.0", template=template)
        assert done.returncode == 1 and "Conflicts:\n  .template.toml" in done.stdout, done.stdout
        assert "line three" in service.read("numbers.txt")


class TestWhereTheServiceIs:
    """Subfolders, clones, worktrees, branches: an update needs none of its own history."""

    def test_subfolder_of_a_larger_repository(self, template, service, place):
        """Files of the same content elsewhere are not touched, nor taken for renamed ones."""
        outer = Repository(place / "outer", place / "home")
        (inner := place / "outer" / "services" / "the shop").parent.mkdir(parents=True)
        (service.folder / ".git").rename(place / "unused")
        service.folder.rename(inner)
        inside = Repository(inner, place / "home")
        outer.write("elsewhere/numbers.txt", inside.read("numbers.txt"))
        outer.write("elsewhere/added.txt", "added\n")
        inside.remove("numbers.txt")
        repository_of(outer)
        elsewhere = outer.read("elsewhere/numbers.txt")
        done = update(inside, template=template)
        assert done.returncode == 0, done.stdout
        assert "are left out:\n  numbers.txt\n" in done.stdout
        assert outer.read("elsewhere/numbers.txt") == elsewhere
        assert "task_5 = 55" in inside.read("app/tasks.py")
        assert all(path.startswith("services/the shop/") for path in changed_by_last_commit(outer))

    def test_after_a_squash_merge_and_from_a_fresh_clone(self, template, service, place):
        """The second update is clean although the first one's commit is not in the history."""
        service.change("numbers.txt", "line 15 of", "my line 15 of")
        service.commit()
        service.git("switch", "--quiet", "--create", "update")
        update(service, template=template)
        service.git("switch", "--quiet", "main")
        service.git("merge", "--quiet", "--squash", "update")
        service.commit("Update, squashed")
        service.git("branch", "-D", "update")
        template.version(
            "1.2.0",
            lambda repository: repository.change(f"{SERVICE}/numbers.txt", "line three", "line 3 again"),
        )
        service.git("clone", "--quiet", service.folder, place / "clone")
        clone = Repository(place / "clone", place / "home")
        done = update(clone, template=template)
        assert done.returncode == 0, done.stdout
        assert "line 3 again" in clone.read("numbers.txt") and "my line 15" in clone.read("numbers.txt")
        assert clone.git("branch", "--format=%(refname)").split() == ["refs/heads/main"]

    def test_first_commit_was_reformatted(self, template, place):
        """No commit needs to be what was generated."""
        service = template.generate("1.0.0", place / "formatted")
        service.write(
            "app/tasks.py", service.read("app/tasks.py").replace(" = ", "=").replace("task_5=5", "task_5 = 5")
        )
        repository_of(service)
        done = update(service, template=template)
        assert done.returncode == 1, (
            done.stdout
        )  # the formatter was at the lines beside the one that is changed
        assert "app/tasks.py  changed here and in the template" in done.stdout
        assert "line three" in service.read("numbers.txt")

    def test_worktree_and_detached_head(self, template, service, place):
        """A linked worktree has a git folder of its own; the commit goes onto its HEAD."""
        service.git("worktree", "add", "--quiet", "--detach", place / "linked")
        linked = Repository(place / "linked", place / "home")
        before = service.git("rev-parse", "HEAD")
        done = update(linked, template=template)
        assert done.returncode == 0, done.stdout
        assert "line three" in linked.read("numbers.txt") and linked.left_in_git == []
        assert service.git("rev-parse", "HEAD") == before and "line 3 of" in service.read("numbers.txt")

    def test_submodules(self, template, service, place):
        """One inside of the service stays as it is, dirty or not; and a service can be one itself."""
        library = Repository(place / "library", place / "home")
        library.write("code.txt", "code\n")
        repository_of(library)
        allow = ("-c", "protocol.file.allow=always")
        service.git(*allow, "submodule", "--quiet", "add", library.folder, "vendor/library")
        service.commit()
        service.append("vendor/library/code.txt", "dirty\n")
        outer = repository_of_empty(place / "outer", place / "home")
        outer.git(*allow, "submodule", "--quiet", "add", service.folder, "shop")
        for each in (service, Repository(outer.folder / "shop", place / "home")):
            done = update(each, template=template)
            assert done.returncode == 0, done.stdout
            assert "line three" in each.read("numbers.txt") and each.left_in_git == []
        assert service.read("vendor/library/code.txt") == "code\ndirty\n"
        assert service.git("ls-files", "-s", "vendor").startswith("160000")

    def test_variables_of_a_hook_do_not_lead_elsewhere(self, template, service, place):
        """Run from a hook of another repository, the update still finds its own."""
        other = repository_of_empty(place / "other", place / "home")
        names = {
            "GIT_DIR": other.folder / ".git",
            "GIT_WORK_TREE": other.folder,
            "GIT_INDEX_FILE": place / "index",
        }
        done = update(service, template=template, **{name: str(path) for name, path in names.items()})
        assert done.returncode == 0, done.stdout
        assert (
            "line three" in service.read("numbers.txt") and len(other.git("log", "--format=%h").split()) == 1
        )


class TestFilesOfAllKinds:
    """Line ends, modes, filters."""

    @pytest.mark.parametrize("how", ["autocrlf", "committed with CRLF", "attributes"])
    def test_line_ends(self, template, place, how):
        """Where lines end with CRLF, an update changes the lines that it changes, and they end so as well."""
        service = template.generate("1.0.0", place / "crlf")
        service.git("init", "--quiet")
        if how == "autocrlf":
            service.git("config", "core.autocrlf", "true")
        elif how == "attributes":
            service.write(".gitattributes", "*.txt text eol=crlf\n")
        text = (service.folder / "numbers.txt").read_bytes().replace(b"\n", b"\r\n")
        (service.folder / "numbers.txt").write_bytes(text.replace(b"line 15", b"my line 15"))
        service.commit("With CRLF")
        service.change("numbers.txt", "line 12", "my line 12") if how == "autocrlf" else None
        service.commit("Edited")
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        text = (service.folder / "numbers.txt").read_bytes()
        assert b"line three of the numbers\r\n" in text and text.count(b"\n") == text.count(b"\r\n") == 20
        assert len(changed_by_last_commit(service, "numbers.txt", lines=True)) == 2
        assert service.status == ""

    def test_modes(self, template, service):
        """A file that is to be run can be run; a mode that the user gave stays."""

        def make_a_script(repository):
            repository.write(f"{SERVICE}/run.sh", "#!/bin/sh\n")
            os.chmod(repository.folder / SERVICE / "run.sh", 0o755)
            repository.change(f"{SERVICE}/app/tasks.py", "task_9 = 9", "task_9 = 99")

        template.version("1.2.0", make_a_script)
        os.chmod(service.folder / "app" / "tasks.py", 0o755)
        service.commit()
        assert update(service, template=template).returncode == 0
        for name in ("run.sh", "app/tasks.py"):
            assert (service.folder / name).stat().st_mode & stat.S_IXUSR, name
        assert "task_9 = 99" in service.read("app/tasks.py")

    def test_filter_of_the_users(self, template, place):
        """A clean filter is applied to what is generated, as to everything that is added (git LFS works so)."""
        service = template.generate("1.0.0", place / "filtered")
        service.git("init", "--quiet")
        service.git("config", "filter.loud.clean", "tr a-z A-Z")
        service.git("config", "filter.loud.smudge", "tr A-Z a-z")
        service.write(".gitattributes", "numbers.txt filter=loud\n")
        service.commit()
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        assert "LINE THREE OF" in service.git("show", "HEAD:numbers.txt")
        assert "line three of" in service.read("numbers.txt") and service.status == ""


class TestSurroundings:
    """What the user has configured, named or piped changes nothing."""

    CONFIG = """
[column]
    ui = always
[color]
    ui = always
[log]
    showSignature = true
[safe]
    bareRepository = explicit
[merge]
    renames = false
[diff]
    noprefix = true
    external = false
[status]
    short = true
    showUntrackedFiles = all
[core]
    quotePath = true
    fileMode = false
    abbrev = 40
[commit]
    template = /nowhere
[tag]
    sort = version:refname
"""

    def test_configuration_of_the_user(self, template, service):
        """Output in columns and colours, renames off, bare repositories refused."""
        with (service.home / ".gitconfig").open("a") as config:
            config.write(self.CONFIG)
        service.append("letters.txt", "letter mine\n")
        service.commit()
        template.git("tag", "--delete", "1.0.0")
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout
        assert "letter mine" in service.read("alphabet.txt") and "line three" in service.read("numbers.txt")

    def test_modules_of_the_service(self, template, service):
        """A service may have a package that is called as one of cookiecutter's."""
        service.write("jinja2/__init__.py", "raise SystemExit('of the service')\n")
        service.commit()
        done = update(service, template=template)
        assert done.returncode == 0, done.stdout

    def test_file_whose_name_is_in_no_encoding(self, template, service):
        """Listed as well as it can be."""
        name = os.fsdecode(b"caf\xe9 \n.txt")
        template.version("1.2.0", lambda repository: repository.write(f"{SERVICE}/{name}", "new\n"))
        service.write(name, "mine\n")
        service.commit()
        for form in ((), ("--json",)):
            done = update(service, *form, template=template)
            assert done.returncode == 1 and r"caf\udce9" in done.stdout, done.stdout
            service.git("cherry-pick", "--abort")

    def test_reader_that_stops_reading(self, template, service):
        """`make update ARGS=--dry-run | head` prints no traceback."""
        command = shlex.join(
            [sys.executable, "-m", "dev.update", "--dry-run", "--template", str(template.folder)]
        )
        done = subprocess.run(
            ["sh", "-c", f"{command} | true"],
            cwd=service.folder,
            env=environment(service.home),
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""


class TestNotReady:
    """What could lose an edit is refused before anything happens: status 2, one sentence, nothing changed."""

    def test_changes_that_are_not_committed(self, template, service):
        """Changed, staged, or both."""
        service.append("numbers.txt", "mine\n")
        says = "There are changes that are not committed, as in numbers.txt: commit or stash them."
        assert_refused(update(service, template=template), service, says, service.files)
        service.git("add", "--all")
        assert_refused(update(service, template=template), service, says, service.files)

    def test_untracked_file_elsewhere_is_no_hindrance(self, template, service):
        """It is not in the way."""
        service.write("notes.txt", "mine\n")
        assert update(service, template=template).returncode == 0
        assert service.read("notes.txt") == "mine\n"

    @pytest.mark.parametrize(
        "what", ["untracked", "ignored", "a file for a folder", "a folder", "a dangling link"]
    )
    def test_file_in_the_way(self, template, service, what):
        """Git itself overwrites an ignored file without a word."""
        name = "new/added.txt"
        if what == "a file for a folder":
            service.write("new", "mine\n")
            name = "new"
        elif what == "a folder":
            service.write("new/added.txt/mine", "mine\n")
        elif what == "a dangling link":
            (service.folder / "new").mkdir()
            (service.folder / name).symlink_to("nowhere")
        else:
            service.write(name, "mine\n")
            if what == "ignored":
                service.write(".git/info/exclude", "added.txt\n")
        says = f"would be overwritten; move them away, or commit them:\n  {name}\n"
        assert_refused(update(service, template=template), service, says, service.files)
        assert f"in the way:\n  {name}\n" in update(service, "--dry-run", template=template).stdout

    @pytest.mark.parametrize("bit", ["--assume-unchanged", "--skip-worktree"])
    def test_edit_that_git_was_told_not_to_see(self, template, service, bit):
        """`git update-index` can hide an edit from git status, and git would overwrite it."""
        service.git("update-index", bit, "numbers.txt")
        service.append("numbers.txt", "mine\n")
        assert service.status == ""
        assert_refused(
            update(service, template=template), service, "commit them:\n  numbers.txt\n", service.files
        )

    @pytest.mark.parametrize("operation", ["merge", "rebase", "cherry-pick", "revert", "bisect"])
    def test_in_the_middle_of_something(self, template, service, operation):
        """It is named."""
        service.git("switch", "--quiet", "--create", "other")
        service.append("letters.txt", "theirs\n")
        service.commit()
        service.git("switch", "--quiet", "main")
        service.append("letters.txt", "mine\n")
        service.commit()
        if operation == "bisect":
            service.git("bisect", "start")
        elif operation == "revert":
            service.append("letters.txt", "more\n")
            service.commit()
            service.git("revert", "HEAD~1", check=False)
        else:
            service.git(operation, "other", check=False)
        assert_refused(
            update(service, template=template), service, f"A {operation} is in progress", service.files
        )

    def test_second_update_in_the_middle_of_the_first(self, template, service):
        """Conflicts of an update are resolved before the next one."""
        service.change("numbers.txt", "line 3 of", "my line 3 of")
        service.commit()
        assert update(service, template=template).returncode == 1
        says = "A cherry-pick is in progress: end it first (git status says how)."
        assert_refused(update(service, template=template), service, says, service.files)

    def test_no_repository_no_commit_no_record(self, template, service):
        """Each has its sentence."""
        service.git("rm", "--quiet", "--cached", ".template.toml")
        service.git("commit", "--quiet", "--message", "Not recorded")
        assert_refused(update(service, template=template), service, ".template.toml is not committed")
        service.remove(".template.toml")
        service.git("update-ref", "-d", "HEAD")
        assert_refused(update(service, template=template), service, "The repository has no commit yet")
        service.remove(".git")
        done = update(service, template=template, GIT_CEILING_DIRECTORIES=str(service.folder.parent))
        assert done.returncode == 2 and "The service is in no git repository" in done.stdout

    def test_nobody_is_configured(self, template, service):
        """Git would not commit; said before, not after. Looking is allowed."""
        (service.home / ".gitconfig").write_text("[user]\n    useConfigOnly = true\n")
        assert_refused(
            update(service, template=template), service, "git does not know who you are", service.files
        )
        assert update(service, "--dry-run", template=template).returncode == 0

    def test_index_is_locked(self, template, service):
        """Another git at work, or one that was killed: git's own sentence names the file."""
        (service.folder / ".git" / "index.lock").touch()
        before = service.files
        done = update(service, template=template)
        (service.folder / ".git" / "index.lock").unlink()
        assert_refused(done, service, "index.lock", before)
        assert update(service, template=template).returncode == 0

    def test_git_is_too_old(self, template, service, place):
        """It is named, with what is needed."""
        folder = fake_git(place, 'if [ "$1" = --version ]; then echo git version 2.34.1; exit; fi')
        done = update(service, template=template, PATH=folder)
        assert_refused(done, service, "git 2.34.1 is too old for an update: install 2.38 or newer.")


class TestHooksAndSignatures:
    """The two temporary commits are nobody's: only the commit that stays runs hooks and is signed."""

    @pytest.fixture
    def watched(self, service):
        """A service whose git runs a hook for everything, and signs, and writes each down."""
        log = service.folder.parent / "log"
        at_commits = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit")
        for name in (*at_commits, "post-checkout", "post-merge", "post-index-change"):
            service.write(f".git/hooks/{name}", f"#!/bin/sh\necho {name} >> {shlex.quote(str(log))}\n")
            os.chmod(service.folder / ".git" / "hooks" / name, 0o755)
        signer = service.folder.parent / "signer"
        # It reads the commit, as gpg does: git takes a pipe that nobody reads for a failure.
        signer.write_text(
            f"#!/bin/sh\ncat > /dev/null\necho signed >> {shlex.quote(str(log))}\n"
            "echo '[GNUPG:] SIG_CREATED ' >&2\necho signature\n"
        )
        signer.chmod(0o755)
        service.git("config", "gpg.program", signer)
        service.git("config", "commit.gpgSign", "true")
        log.write_text("")
        return service

    def test_each_runs_once(self, template, watched):
        """Nothing before the merge, and one signature."""
        log = watched.folder.parent / "log"
        assert update(watched, "--dry-run", template=template).returncode == 0
        assert log.read_text() == ""
        assert update(watched, template=template).returncode == 0
        lines = log.read_text().split()
        assert (
            lines.count("signed") == 1 and lines.count("commit-msg") <= 1 and lines.count("post-commit") == 1
        )
        assert "signature" in watched.git("cat-file", "commit", "HEAD")
        assert "signature" not in watched.git("cat-file", "commit", "HEAD~1")

    @pytest.mark.parametrize("what", ["commit-msg", "signature"])
    def test_commit_that_git_does_not_make(self, template, watched, what):
        """A hook that says no, or a key that is not there: all is staged, said with status 1, and can be taken back."""
        before, head = watched.files, watched.git("rev-parse", "HEAD")
        name = ".git/hooks/prepare-commit-msg" if what == "commit-msg" else "../signer"
        watched.write(name, "#!/bin/sh\necho No, thanks. >&2\nexit 1\n")
        done = update(watched, template=template)
        assert done.returncode == 1, done.stdout
        assert "could not commit it" in done.stdout and watched.git("rev-parse", "HEAD") == head
        assert "line three" in watched.read("numbers.txt")
        watched.git("cherry-pick", "--abort")
        assert (watched.files, watched.status) == (before, "")


# Moments of an update, each by a word in the call of git that begins then.
KILLS = [
    *(("KILL", moment) for moment in ("status", "clone", "--all", "merge-tree", "cherry-pick")),
    *(("INT", moment) for moment in ("clone", "merge-tree", "cherry-pick")),
    ("TERM", "cherry-pick"),
    ("HUP", "write-tree"),
]


class TestKilled:
    """Killed at any moment, the service is as it was or updated, and the next run finds nothing in its way."""

    @pytest.mark.parametrize(("name", "moment"), KILLS)
    def test_killed_before_a_call_of_git(self, template, service, place, name, moment):
        """The call itself still runs, as when only the parent is killed; Ctrl-C never leaves half a tree."""
        # Not while the parent is still starting this: it would not know yet that there is something to end.
        sleeps = 'until read -r _ _ state _ < /proc/$PPID/stat; [ "$state" = S ]; do sleep 0.01; done'
        once = f'[ -e "$0.done" ] || {{ : > "$0.done"; {sleeps}; kill -{name} $PPID; sleep 0.3; }}'
        folder = fake_git(place, f'case " $* " in *" {moment} "*) {once};; esac')
        before, head = service.files, service.git("rev-parse", "HEAD")
        done = update(service, template=template, PATH=folder)
        wait_for_orphans(service)
        if service.git("rev-parse", "HEAD") == head:
            assert service.files == before and service.status == ""
            assert done.returncode != 0
            if name != "KILL":
                assert done.stdout == "Interrupted: nothing was changed.\n" and service.left_in_git == []
        else:
            assert moment == "cherry-pick" and service.status == ""
        again = update(service, template=template)
        assert again.returncode == 0, again.stdout
        assert "line three" in service.read("numbers.txt") and service.left_in_git == []

    def test_git_killed_while_it_writes_files(self, template, service, place):
        """The one state that git cannot leave by itself: the next run says how, and that restores every byte."""
        half = "echo half > numbers.txt; mkdir new; echo added > new/added.txt; : > .git/index.lock"
        half += "; kill -KILL $PPID; exit 1"
        folder = fake_git(place, f'case " $* " in *" cherry-pick "*) {half};; esac')
        service.write("untracked.txt", "mine\n")
        before = service.files
        update(service, template=template, PATH=folder)
        assert service.files != before
        done = update(service, template=template)
        assert done.returncode == 2
        assert done.stdout.startswith("An update was killed while git wrote its files.")
        commands = "\n".join(line for line in done.stdout.splitlines() if line.startswith("  "))
        subprocess.run(["sh", "-c", commands], cwd=service.folder, env=environment(service.home), check=True)
        assert service.files == before
        assert update(service, template=template).returncode == 0

    def test_folder_that_a_git_still_fills_is_removed(self, service):
        """The children of a git that was interrupted write for a moment more."""
        (filled := service.folder / "filled").mkdir()
        program = """
import pathlib, shutil, sys
remove_tree, calls = shutil.rmtree, []

def fails_twice(folder, ignore_errors):
    calls.append(folder)
    if len(calls) > 2:
        remove_tree(folder, ignore_errors)

shutil.rmtree = fails_twice
from dev.update.project import remove
remove(pathlib.Path(sys.argv[1]))
"""
        subprocess.run([sys.executable, "-c", program, filled], cwd=service.folder, check=True)
        assert not filled.exists()

    def test_two_at_once(self, template, service, place):
        """The second one is refused at once, and the first one ends well."""
        waiting, go_on = place / "waiting", place / "go on"
        begun, ended = shlex.quote(str(waiting)), shlex.quote(str(go_on))
        waits = f": > {begun}; until [ -e {ended} ]; do sleep 0.05; done"
        folder = fake_git(place, f'case " $* " in *" clone "*) {waits};; esac')
        first = subprocess.Popen(
            [sys.executable, "-m", "dev.update", "--template", template.folder],
            cwd=service.folder,
            env=environment(service.home, PATH=folder),
            stdout=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 30
        while not waiting.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        second = update(service, template=template)
        go_on.touch()
        assert second.returncode == 2 and second.stdout.startswith(
            "Another update of this service is running"
        )
        assert first.communicate(timeout=60)[0].startswith("Updated from") and first.returncode == 0


def changed_by_last_commit(repository, *paths, lines=False) -> list[str]:
    """Return the paths that the last commit changed, or the lines that it removed and added."""
    if not lines:
        return repository.git("diff", "--name-only", "-z", "HEAD~1", "--", *paths).split("\0")[:-1]
    diff = repository.git("diff", "-U0", "HEAD~1", "--", *paths).splitlines()
    return [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def repository_of_empty(folder, home) -> Repository:
    """Make a repository with one empty commit."""
    folder.mkdir()
    return repository_of(Repository(folder, home))


def fake_git(place, script: str) -> str:
    """Return a PATH whose git first runs some lines of shell, and then the real git."""
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    (folder := place / "bin").mkdir(exist_ok=True)
    (folder / "git").write_text(f'#!/bin/sh\n{script}\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def wait_for_orphans(service) -> None:
    """Wait until what a killed update has started is at its end: its home folder is this test's alone.

    Three looks in a row must find nothing: a process that begins to run another program has no variables for a moment.
    """
    mark = f"HOME={service.home}\0".encode()
    deadline = time.monotonic() + 60
    looks = 0
    while looks < 3:
        looks = 0 if any(mark in variables for variables in variables_of_processes()) else looks + 1
        if time.monotonic() > deadline:
            pytest.fail("an orphan does not end")
        time.sleep(0.02)


def variables_of_processes() -> Iterator[bytes]:
    """Yield what each process of this user was given as its environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            yield path.read_bytes()
