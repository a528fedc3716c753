"""What an update did, or would do, as text for people or as JSON."""

import json
from dataclasses import asdict, dataclass, field

from dev.update.record import Answers

NEXT = """
What to do next:
  1. Edit each file: what differs stands between <<<<<<< and >>>>>>>. A file that one side deleted or renamed is
     whole: keep it with `git add`, or remove it with `git rm`. requirements*.txt: take either side, then `make lock`.
  2. git add the files, git cherry-pick --continue, make check, make test.
  To take all of it back instead: git cherry-pick --abort
"""
NOT_COMMITTED = """
The update is complete and staged, but git could not commit it: {reason}
Mend that, then: git cherry-pick --continue. To take it back: git cherry-pick --abort
"""
UNTAGGED = """\
The template has no tag {recorded}: taken to be {commit}, the first commit of it. Another is named with --from COMMIT.
"""
CRUFT = """
.cruft.json still names the version before. To use cruft again, let it know: cruft link --checkout {wanted} TEMPLATE
"""


@dataclass
class Report:
    """Facts about one update. Paths are those of the service's folder."""

    # or: updated, conflicts, not committed, would update, would conflict, refused
    status: str = "up to date"
    recorded: str = ""  # the version that the service had
    wanted: str = ""  # the version that it was to get
    taken_for: str = ""  # the template's commit that the recorded version was taken for, having no tag
    commit: str = ""  # HEAD afterwards
    changed: list[str] = field(default_factory=list)  # "M path", "A path", "D path"
    conflicts: dict[str, str] = field(default_factory=dict)  # path -> what happened on both sides
    left_out: list[str] = field(default_factory=list)  # changed in the template, deleted here
    new_answers: Answers = field(default_factory=dict)
    changed_answers: Answers = field(default_factory=dict)
    renamed_answers: dict[str, str] = field(default_factory=dict)
    dropped_answers: dict[str, str] = field(default_factory=dict)  # name -> why
    upgrade_notes: list[str] = field(default_factory=list)
    in_the_way: list[str] = field(default_factory=list)  # not committed, and would be overwritten
    reason: str = ""
    diff: str = ""
    has_cruft: bool = False

    @property
    def exit_status(self) -> int:
        """0 done or nothing to do, 1 something is left to be done, 2 refused."""
        return {"up to date": 0, "updated": 0, "would update": 0, "refused": 2}.get(self.status, 1)

    def as_json(self) -> str:
        """Return all facts as one JSON object."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def about_answers(self) -> list[str]:
        """Return one sentence for each question whose answer is not simply the recorded one."""
        return [
            *(f"{name} is now called {now}." for name, now in self.renamed_answers.items()),
            *(f"{name} {why}." for name, why in self.dropped_answers.items()),
            *(
                f"New question {name}: took its default, {answer!r}."
                for name, answer in self.new_answers.items()
            ),
            *(f"{name} is now {answer!r}." for name, answer in self.changed_answers.items()),
        ]

    def as_text(self) -> str:
        """Return what a person reads."""
        if self.status == "refused":
            return self.reason.rstrip() + "\n" + "".join(f"  {path}\n" for path in self.in_the_way)
        if self.status == "up to date":
            return f"Nothing to do: the service is at {self.recorded}, and so is what was asked for.\n"
        parts = [self.diff, self.headline(), *(f"{line}\n" for line in self.about_answers())]
        if self.taken_for:
            parts.append(UNTAGGED.format(recorded=self.recorded, commit=self.taken_for[:10]))
        if self.left_out:
            parts += [
                "Deleted here, so that their changes are left out:\n",
                *(f"  {p}\n" for p in self.left_out),
            ]
        if self.in_the_way:
            parts += ["Not committed, and in the way:\n", *(f"  {path}\n" for path in self.in_the_way)]
        if self.conflicts:
            width = max(map(len, self.conflicts))
            parts += [
                "Conflicts:\n",
                *(f"  {path:<{width}}  {kind}\n" for path, kind in self.conflicts.items()),
            ]
        if self.upgrade_notes:
            parts += [
                "\nTo be done by hand, version by version:\n",
                *(f"\n{note}\n" for note in self.upgrade_notes),
            ]
        if self.status == "conflicts":
            parts.append(NEXT)
        if self.status == "not committed":
            parts.append(NOT_COMMITTED.format(reason=self.reason))
        if self.has_cruft:
            parts.append(CRUFT.format(wanted=self.wanted))
        return "".join(parts)

    def headline(self) -> str:
        """Return the first line: from where to where, and how much."""
        way = f"{self.recorded} to {self.wanted}, {len(self.changed)} files"
        return {
            "updated": f"Updated from {way}, as one commit: git show --stat\n",
            "conflicts": f"Updating from {way}; {len(self.conflicts)} of them conflict with changes of this service.\n",
            "would update": f"Would update from {way}, without a conflict.\n",
            "would conflict": f"Would update from {way}; {len(self.conflicts)} of them would conflict.\n",
        }.get(self.status, f"Updated from {way}, and not committed.\n")
