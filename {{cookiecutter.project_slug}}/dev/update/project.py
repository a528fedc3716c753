"""The service's repository: what must hold before an update, the two temporary commits, and the merge."""

import fcntl
import os
import shlex
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dev.update import record
from dev.update.git import Git, GitFailed, Refused, said

IN_PROGRESS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "sequencer": "cherry-pick or revert",
    "BISECT_LOG": "bisect",
}

# The same for the merge that is tried and the one that is made, whatever the user's configuration says.
MERGE = ("merge.renames=true", "merge.directoryRenames=conflict", "merge.renameLimit=20000")
# Temporary commits run no hook of the user's, and see their files as they lie there.
QUIET = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.fileMode=true",
    "core.safecrlf=false",
    "core.sparseCheckout=false",
)
NOBODY = {
    f"GIT_{role}_{part}": text
    for role in ("AUTHOR", "COMMITTER")
    for part, text in (("NAME", "make update"), ("EMAIL", "update@example.com"))
}

KINDS = {
    (1, 2, 3): "changed here and in the template",
    (2, 3): "added here and in the template",
    (1, 2): "changed here, deleted or renamed in the template",
    (1, 3): "deleted or renamed here, changed in the template",
    (1,): "renamed here and in the template",
    (2,): "renamed here, or in the way of a folder",
    (3,): "renamed or added in the template",
}


def options(settings: tuple[str, ...]) -> list[str]:
    """Return settings as `-c` options of git."""
    return [word for setting in settings for word in ("-c", setting)]


def remove(folder: Path) -> None:
    """Remove a folder in which a git whose parent was interrupted may still write, for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


@dataclass
class Merge:
    """What the difference between two versions does to the service."""

    commit: str  # holds the wanted version; its parent holds the recorded one
    tree: str  # the merged files, markers in those that conflict
    conflicts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # path -> stages in the index
    left_out: list[str] = field(
        default_factory=list
    )  # changed in the template, deleted here: they stay deleted


class Project:
    """The service as git sees it. Paths in messages are those of the service's own folder."""

    def __init__(self, folder: Path):
        self.git = Git(folder, GIT_LITERAL_PATHSPECS="1")
        try:
            inside = self.git.line("rev-parse", "--is-inside-work-tree") == "true"
        except GitFailed as error:
            if "not a git repository" not in str(error):
                raise Refused(f"git cannot be used here: {error}.") from None
            inside = False
        if not inside:
            raise Refused(
                "The service is in no git repository, and git keeps your edits: git init, add and commit."
            )
        if self.git.run("rev-parse", "--verify", "--quiet", "HEAD").returncode != 0:
            raise Refused(
                "The repository has no commit yet, and an update builds on one: commit the service first."
            )
        self.folder = folder
        self.prefix = self.git.line("rev-parse", "--show-prefix")
        self.top = Path(self.git.line("rev-parse", "--show-toplevel"))
        self.git_dir = Path(self.git.line("rev-parse", "--absolute-git-dir"))
        self.head = self.git.line("rev-parse", "HEAD")
        self.scratch = self.git_dir  # a folder of its own while locked
        self.interrupted = self.git_dir / "template-update-interrupted"

    def shown(self, path: str) -> str:
        """Return a path of the repository as it is called in the service's folder."""
        return os.path.relpath(path, self.prefix or ".")

    def described(self, conflicts: dict[str, tuple[int, ...]]) -> dict[str, str]:
        """Return path -> what happened on both sides."""
        return {self.shown(path): KINDS[stages] for path, stages in sorted(conflicts.items())}

    @contextmanager
    def locked(self, keep_objects: bool):
        """Let no second update in, and leave no temporary file behind; those of a killed one go as well.

        Arguments: keep_objects, whether what is written to git's database is to stay there.
        """
        lock = os.open(self.git_dir, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Refused("Another update of this service is running: wait for its end.") from None
            for left in self.git_dir.glob("template-update.*"):
                shutil.rmtree(left, ignore_errors=True)
            self.scratch = Path(tempfile.mkdtemp(prefix="template-update.", dir=self.git_dir))
            if not keep_objects:
                objects = (self.folder / self.git.line("rev-parse", "--git-path", "objects")).resolve()
                (self.scratch / "objects").mkdir()
                self.git = self.git.having(
                    GIT_OBJECT_DIRECTORY=str(self.scratch / "objects"),
                    GIT_ALTERNATE_OBJECT_DIRECTORIES=str(objects),
                )
            yield
        finally:
            if self.scratch != self.git_dir:
                remove(self.scratch)
            os.close(lock)

    def refuse_unless_ready(self) -> None:
        """Raise Refused when git is in the middle of something, has changes to lose, or does not know its user."""
        if self.interrupted.exists():
            if (
                self.git_dir / "index.lock"
            ).exists():  # so it was git that was killed, and not only this program
                raise Refused(self.interrupted.read_text(encoding="utf-8"))
            self.interrupted.unlink()
        for name, operation in IN_PROGRESS.items():
            if self.has(name):
                raise Refused(f"A {operation} is in progress: end it first (git status says how).")
        changed = self.git.fields(
            "status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=dirty"
        )
        if changed:
            raise Refused(
                f"There are changes that are not committed, as in {changed[0][3:]}: commit or stash them."
            )
        if not self.git("ls-files", "--", record.FILE):
            raise Refused(
                f"{record.FILE} is not committed, and an update changes it: git add it, and commit."
            )
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
            if self.git.run("var", who).returncode != 0:
                raise Refused(
                    "git does not know who you are, and an update is a commit: set user.name and user.email."
                )

    def has(self, name: str) -> bool:
        """Whether git's folder has such a file, or git such a reference."""
        if (self.folder / self.git.line("rev-parse", "--git-path", name)).exists():
            return True
        return (
            name.endswith("_HEAD") and self.git.run("rev-parse", "--verify", "--quiet", name).returncode == 0
        )

    def tree_with(self, service: Path, name: str) -> str:
        """Return the tree of HEAD with the files of a generated service in the place of this one's.

        git adds them as it added the service's own, by the same attributes and filters. Where a committed file
        has CRLF at the ends of its lines, the generated one gets them too.
        """
        (place := self.scratch / name / self.prefix).parent.mkdir(parents=True, exist_ok=True)
        service.rename(place)
        for entry in self.git.fields("ls-files", "--eol", "-z", "--", "."):
            described, _, path = entry.partition("\t")
            file = place / path
            if (
                described.startswith("i/crlf ")
                and file.is_file()
                and b"\r\n" not in (text := file.read_bytes())
            ):
                file.write_bytes(text.replace(b"\n", b"\r\n"))
        git = self.git.having(
            *("-C", str(self.scratch / name), *options(QUIET)),
            GIT_DIR=str(self.git_dir),
            GIT_WORK_TREE=str(self.scratch / name),
            GIT_INDEX_FILE=str(self.scratch / f"{name}.index"),
        )
        git("read-tree", self.head)
        attributes = [path for path in self.entries(self.head) if Path(path).name == ".gitattributes"]
        git("checkout-index", "--quiet", "--", *attributes)  # what is there stays
        git("add", "--all", "--force", "--", self.prefix or ".")
        return git.line("write-tree")

    def commit_of(self, tree: str, message: str, *parents: str, **identity: str) -> str:
        """Make a commit that is on no branch; no hook runs, and nothing is signed."""
        ancestry = [word for parent in parents for word in ("-p", parent)]
        return self.git.having(**identity).line("commit-tree", tree, *ancestry, "-F", "-", text=message)

    def merge(self, old: Path, new: Path, message: str, identity: dict[str, str]) -> Merge:
        """Try what the difference between two generated services does here, and touch no file of the service.

        A file that is deleted here and changed in the template stays deleted; it is named in the result.
        """
        base, theirs = self.tree_with(old, "recorded"), self.tree_with(new, "wanted")
        base_commit = self.commit_of(base, "The recorded version\n", **NOBODY)
        here = self.commit_of(f"{self.head}^{{tree}}", "The service\n", base_commit, **NOBODY)
        left_out: list[str] = []
        while True:
            commit = self.commit_of(theirs, message_with(message, left_out), base_commit, **identity)
            merge = self.tried(here, commit)
            entries = self.entries(base)
            deleted = [
                path for path, stages in merge.conflicts.items() if stages == (1, 3) and path in entries
            ]
            if not deleted:
                merge.left_out = sorted(self.shown(path) for path in left_out)
                return merge
            left_out += deleted
            theirs = self.replaced(theirs, {path: entries[path] for path in deleted})

    def tried(self, here: str, theirs: str) -> Merge:
        """Merge two commits without touching a file."""
        merger = self.git.having("-C", str(self.top), *options(MERGE))
        done = merger.run("merge-tree", "--write-tree", "-z", "--no-messages", here, theirs)
        if done.returncode not in (0, 1):
            raise Refused(f"git could not merge the two versions: {said(done)}.")
        tree, *entries = os.fsdecode(done.stdout).split("\0")[:-1]
        stages: dict[str, tuple[int, ...]] = {}
        for entry in filter(None, entries):
            described, _, path = entry.partition("\t")
            stages[path] = (*stages.get(path, ()), int(described.split()[2]))
        return Merge(theirs, tree, stages)

    def changes(self, merge: Merge) -> list[str]:
        """Return "A path", "M path" or "D path" of each file that the merge changes."""
        listing = self.git.fields(
            "diff-tree", "-r", "-z", "--name-status", "--no-renames", self.head, merge.tree
        )
        return [f"{kind} {self.shown(path)}" for kind, path in zip(listing[::2], listing[1::2], strict=True)]

    def entries(self, tree: str) -> dict[str, str]:
        """Return path -> "mode type id" of the files of a tree."""
        listing = (
            entry.partition("\t") for entry in self.git.fields("ls-tree", "-r", "-z", "--full-tree", tree)
        )
        return {path: described for described, _, path in listing}

    def replaced(self, tree: str, entries: dict[str, str]) -> str:
        """Return a tree with some files as given."""
        git = self.git.having(GIT_INDEX_FILE=str(self.scratch / "replaced.index"))
        git("read-tree", tree)
        lines = "".join(f"{described}\t{path}\0" for path, described in entries.items())
        git("update-index", "-z", "--index-info", text=lines)
        return git.line("write-tree")

    def in_the_way(self, merge: Merge) -> list[str]:
        """Return the files whose content the merge would overwrite and git would not miss.

        Those are files that it does not track (of ignored ones git itself says no word), and changed ones that it
        was told not to look at.
        """
        tracked = set(self.entries(self.head))
        added = set(self.entries(merge.tree)) - tracked
        obstacles = {self.obstacle(path, tracked) for path in added} - {None}
        return sorted(self.shown(path) for path in obstacles | self.hidden_edits(merge))

    def obstacle(self, path: str, tracked: set[str]) -> str | None:
        """Return what lies where a new file is to be written, or None."""
        for place in (*map(str, reversed(Path(path).parents[:-1])), path):
            there = self.top / place
            if place in tracked or not os.path.lexists(there):
                return None
            if there.is_symlink() or not there.is_dir() or (place == path and any(there.iterdir())):
                return place
        return None

    def hidden_edits(self, merge: Merge) -> set[str]:
        """Return the changed files that git was told not to look at (update-index --assume-unchanged and the like)."""
        touched = set(
            self.git.fields("diff-tree", "-r", "-z", "--name-only", "--no-renames", self.head, merge.tree)
        )
        edits = set()
        for entry in self.git.fields("ls-files", "-v", "-z", "--full-name", "--", self.top):
            flag, path = entry[0], entry[2:]
            file = self.top / path
            if path in touched and (flag.islower() or flag == "S") and file.is_file():
                committed = self.git.line("rev-parse", f"{self.head}:{path}")
                if self.git.line("hash-object", "--", file) != committed:
                    edits.add(path)
        return edits

    def apply(self, merge: Merge) -> str | None:
        """Cherry-pick the difference. Returns None, or what kept git from committing although nothing conflicts.

        Signals are best blocked meanwhile, for git as well: killed while it writes files, it cannot go back. For
        the one that cannot be blocked, the way back is written down first.
        """
        self.refuse_unless_ready()
        if self.git.line("rev-parse", "HEAD") != self.head:
            raise Refused("HEAD has moved while the versions were generated: update again.")
        self.interrupted.write_text(self.way_back(merge), encoding="utf-8")
        done = Git(self.folder, options(MERGE)).run(
            "cherry-pick", "--strategy=ort", "--no-rerere-autoupdate", merge.commit
        )
        self.interrupted.unlink()
        if done.returncode == 0 or self.git("ls-files", "--unmerged", "-z", "--", self.top):
            return None
        if not self.has("CHERRY_PICK_HEAD"):
            raise Refused(f"git did not start the update: {said(done)}")
        return said(done)

    def way_back(self, merge: Merge) -> str:
        """Return what to do when git is killed while it writes the files of the merge."""
        added = sorted(set(self.entries(merge.tree)) - set(self.entries(self.head)))
        lock, note = self.git_dir / "index.lock", self.interrupted
        commands = [
            ["rm", "-f", lock],
            ["git", "cherry-pick", "--quit"],
            ["git", "reset", "--hard", self.head],
        ]
        if added:
            commands.append(["git", "-C", self.top, "clean", "-f", "--", *added])
        commands.append(["rm", note])
        lines = "".join(f"  {shlex.join(map(str, command))}\n" for command in commands)
        return f"An update was killed while git wrote its files. Take back what was changed since:\n{lines}"


def message_with(message: str, left_out: list[str]) -> str:
    """Return the message of the commit, with the files that stay deleted."""
    if not left_out:
        return message
    return (
        message
        + "\nDeleted here, so that their changes are left out:\n"
        + "".join(f"- {p}\n" for p in left_out)
    )
