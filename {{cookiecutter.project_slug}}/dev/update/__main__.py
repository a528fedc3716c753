"""Usage: make update [TEMPLATE=URL_OR_FOLDER] [ARGS="--to VERSION --dry-run"].

Exit status: 0 updated, or nothing to do; 1 conflicts are left to be resolved, or would be (--dry-run); 2 refused, with
one sentence, and nothing was changed. `make` itself makes 2 of every status but 0.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from dev.update import project, record
from dev.update.git import GitFailed, Refused, refuse_old_git
from dev.update.project import Merge, Project
from dev.update.report import Report
from dev.update.template import Template, Version

FOLDER = Path(__file__).resolve().parents[2]


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make update", description="Take over a newer version of the template."
    )
    add = parser.add_argument
    add("--template", default="", help="git URL or folder of the template; a URL is recorded")
    add(
        "--to", metavar="VERSION", help="a version, or another tag, branch or commit; else the newest version"
    )
    add("--from", metavar="COMMIT", dest="since", help="what the service comes from, if not as recorded")
    add("--set", metavar="NAME=ANSWER", action="append", default=[], help="change an answer")
    add("--dry-run", action="store_true", help="show the difference, and change nothing")
    add("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def update(options: argparse.Namespace, report: Report) -> None:
    """Do all of it, and write down in the report what was done. Raises Refused."""
    refuse_old_git()
    service = Project(FOLDER)
    with service.locked(keep_objects=not options.dry_run):
        if not options.dry_run:
            service.refuse_unless_ready()
        known = record.read(FOLDER)
        template = Template(source(options, known), service.scratch)
        since = template.wanted(options.since) if options.since else template.recorded(known.version)
        old, new = template.version(since), template.version(template.wanted(options.to))
        report.recorded, report.wanted = known.version, new.name
        if not options.since and known.version not in template.tags():
            report.taken_for = since
        merge = merged(options, report, service, known, old, new)
        if merge is None:
            return
        report.changed, report.left_out = service.changes(merge), merge.left_out
        report.conflicts = service.described(merge.conflicts)
        report.upgrade_notes = new.notes_since(known.version)
        report.in_the_way = service.in_the_way(merge)
        if options.dry_run:
            report.status = "would conflict" if merge.conflicts else "would update"
            report.diff = service.git("diff", "--no-color", "--no-ext-diff", service.head, merge.tree)
        elif report.in_the_way:
            raise Refused(
                "These files are not committed and would be overwritten; move them away, or commit them:"
            )
        else:
            apply(service, merge, report)


def source(options: argparse.Namespace, known: record.Record) -> str:
    """Return where the template lives."""
    if found := options.template or known.template:
        return found
    raise Refused(
        "Where the template lives is not known: make update TEMPLATE=URL_OR_FOLDER "
        f"(a URL is kept as `template` in {record.FILE})."
    )


def merged(
    options: argparse.Namespace,
    report: Report,
    service: Project,
    known: record.Record,
    old: Version,
    new: Version,
) -> Merge | None:
    """Generate both versions and try the merge; None when there is nothing to do."""
    before = {name: answer for name, answer in known.answers.items() if name in old.questions}
    mapped = record.mapped(known, new.questions, new.renames())
    wanted = record.with_changes(mapped.answers, options.set, new.questions)
    report.renamed_answers, report.dropped_answers = mapped.renamed, mapped.dropped
    asked = options.to or options.set
    if (old.commit == new.commit and wanted == before) or (is_older(new.name, known.version) and not asked):
        return None
    old_service = old.generate(before, service.scratch / "bake-recorded")
    new_service = new.generate(wanted, service.scratch / "bake-wanted")
    if not (new_service / record.FILE).exists():
        raise Refused(
            f"Version {new.name} of the template writes no {record.FILE}: it is older than `make update`."
        )
    if options.template and not known.template and record.may_be_recorded(options.template):
        record.remember(options.template, new_service)
    now = record.read(new_service).answers
    report.new_answers = {name: now[name] for name in now if name not in wanted}
    report.changed_answers = {name: now[name] for name in now if name in before and now[name] != before[name]}
    message = f"Update from the template: {known.version} to {new.name}\n\n"
    message += "".join(f"- {line}\n" for line in report.about_answers())
    merge = service.merge(old_service, new_service, message, project.NOBODY if options.dry_run else {})
    nothing = merge.tree == service.git.line("rev-parse", "HEAD^{tree}") and not merge.conflicts
    return None if nothing else merge


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before another."""
    return (record.numbers(version) or (0,)) < (record.numbers(than) or (0,))


def apply(service: Project, merge: Merge, report: Report) -> None:
    """Cherry-pick, and write down what came of it. Ctrl-C and the like wait until this program ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    report.reason = service.apply(merge) or ""
    report.commit = service.git.line("rev-parse", "HEAD")
    report.status = "not committed" if report.reason else "conflicts" if merge.conflicts else "updated"


def stopped(number: int, frame: object) -> None:
    """End as Ctrl-C does: what is temporary is removed on the way out."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Update, print what was done, and return the exit status."""
    options = parsed(arguments)
    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(name, stopped)
    report = Report(has_cruft=(FOLDER / ".cruft.json").exists())
    try:
        update(options, report)
    except (Refused, GitFailed, OSError) as error:
        report.status, report.reason = "refused", str(error)
    except KeyboardInterrupt:
        report.status, report.reason = "refused", "Interrupted: nothing was changed."
    sys.stdout.reconfigure(errors="backslashreplace")  # a file may have a name in no encoding
    try:
        print(report.as_json() if options.json else report.as_text(), end="", flush=True)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return report.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
