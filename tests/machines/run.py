"""`make test-host`: boot hosts, deploy the generated service to them, and print what was seen as a table.

Usage: python tests/machines/run.py [--short] [--only ROW ...] [--json FILE] [--docs] [--limit SECONDS] [--if-possible]
Needs root, systemd-container, debootstrap and an SSH client. Exit status 1: a row does not hold; 3: no host can
be booted.
"""

import argparse
import json
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import image
import rows
from lab import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploys.md"
HEAD = ("| row | shows | holds | figure | s |", "|---|---|---|---|---|")
VERDICTS = {True: "yes", False: "**no**", None: "skipped"}
BETWEEN = re.compile(r"(?<=<!-- hosts -->\n).*?(?=<!-- end of hosts -->)", re.DOTALL)


class TimeIsUp(Exception):
    """The run has taken as long as it may."""


def main() -> int:
    """Run the rows and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--short", action="store_true", help="one host, the control experiment, one deploy under load"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as JSON, too")
    parser.add_argument("--docs", action="store_true", help="write the rows into docs/deploys.md, too")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="only these rows, after the first one")
    parser.add_argument(
        "--if-possible", action="store_true", help="exit status 0 where no host can be booted, or not in time"
    )
    parser.add_argument("--limit", type=int, metavar="SECONDS", help="give up then")
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    options = parser.parse_args()
    lanes = rows.SHORT if options.short else rows.FULL
    if options.only:
        lanes = [only(lane, options.only) for lane in lanes]
    begin, found, reason = time.monotonic(), [], ""
    try:
        with time_limit(options.limit):
            image.look_for_tools()
            play([lane for lane in lanes if lane], found, options.keep)
    except image.NotHere as why:
        reason = f"no host can be booted here: {why}"
    except TimeIsUp:
        reason = f"not done within {options.limit} s; {len(found)} rows were"
    seconds = round(time.monotonic() - begin)
    if options.json and not reason:
        options.json.write_text(json.dumps({"seconds": seconds, "rows": found}, indent=2) + "\n")
    if options.docs and not reason:
        asked = [row for row in found if not options.only or row["row"] in options.only]
        write_page(asked, seconds, not options.only)
    counts = [sum(row["holds"] is value for row in found) for value in (True, False, None)]
    if found:
        print(f"\n{len(found)} rows in {seconds} s:")
        print("{} passed, {} failed, {} skipped".format(*counts))
    if reason:
        print(f"Hosts: skipped, because {reason}.", file=sys.stderr)
    if counts[1]:
        return 1
    return 3 * (not options.if_possible) if reason else 0


def write_page(found: list[dict], seconds: int, whole: bool) -> None:
    """Put the rows into the page, in place of those of an earlier run; a run of some rows leaves the others."""
    page = PAGE.read_text()
    by_itself = "" if whole else f" (by itself, {date.today()})"
    lines = {}
    for row in found:
        text = " ".join(row["figure"].split()).replace("|", "\\|")
        shows = row["shows"].replace("|", "\\|")
        figure = text[:600] + by_itself
        cells = [f"`{row['row']}`", shows, VERDICTS[row["holds"]], figure, f"{row['seconds']:.0f}"]
        lines[row["row"]] = f"| {' | '.join(cells)} |"
    if whole:
        took = f"{len(found)} rows in {seconds // 60} min {seconds % 60} s"
        head = [f"{took}, on {date.today()}; {rows.load_of_this_machine()}.", "", *HEAD]
        page = BETWEEN.sub(lambda _: "\n".join([*head, *lines.values(), ""]), page)
    for name, line in lines.items():
        page = re.sub(rf"^\| `{name}` \|.*$", lambda _, line=line: line, page, flags=re.MULTILINE)
    PAGE.write_text(page)


@contextmanager
def time_limit(seconds: int | None):
    """Raise TimeIsUp after so many seconds; SIGTERM takes the hosts down, too."""

    def give_up(*_):
        raise TimeIsUp

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds or 0)
    try:
        yield
    finally:
        signal.alarm(0)


def only(lane: tuple, names: list[str]) -> list:
    """The groups of a lane with these rows, after the first, without which there is nothing to look at."""
    groups = [[row for row in group if row.__name__ in names] for group in lane]
    groups = [group for group in groups if group]
    first = list(lane[0])
    return groups and (groups if groups[0] == first else [first, *groups])


def play(lanes: list, found: list[dict], keep: bool) -> None:
    """Boot a host for each lane and run its rows; `found` gets what each has shown."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    labs = []
    try:
        for number in range(1, len(lanes) + 1):
            (place := folder / f"lane-{number}").mkdir()
            labs.append(Lab(place))
            labs[-1].add_host("one")
        print(f"Booted. Logs: {folder}", flush=True)
        if len(lanes) == 1:
            run_lane(lanes[0], labs[0], found)
        else:
            with ThreadPoolExecutor(len(lanes)) as threads:
                shown = list(threads.map(lambda lane, lab: run_lane(lane, lab, []), lanes, labs))
            found += [row for lane in shown for row in lane]
    finally:
        for host in [host for lab in labs for host in lab.hosts]:
            host.destroy()
        if not keep and all(row["holds"] is not False for row in found):
            shutil.rmtree(folder, ignore_errors=True)


def run_lane(lane: tuple, lab: Lab, found: list[dict]) -> list[dict]:
    """Run the groups of one lane; `found` gets, row by row, what each has shown."""
    for group in lane:
        if len(group) == 1:
            found.append(one(group[0], lab))
        else:
            with ThreadPoolExecutor(len(group)) as threads:
                found += threads.map(one, group, [lab] * len(group))
        if found[0]["holds"] is False:
            break  # there is nothing to look at
    return found


def one(row, lab: Lab) -> dict:
    """Run one row and print its line."""
    name, begin = row.__name__, time.monotonic()
    try:
        figure, holds = row(lab), True
    except (TimeIsUp, image.NotHere):
        raise
    except rows.Skipped as reason:
        figure, holds = str(reason), None
    except Exception as error:
        figure, holds = f"{type(error).__name__}: {error}", False
        (lab.folder / f"{name}.txt").write_text(traceback.format_exc())
    seconds = time.monotonic() - begin
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "skipped"}[holds]
    print(f"{name:<22} {verdict:<14} {seconds:>5.0f} s  {figure[:4000]}", flush=True)
    return {"row": name, "shows": row.__doc__, "holds": holds, "figure": figure, "seconds": round(seconds, 1)}


if __name__ == "__main__":
    sys.exit(main())
