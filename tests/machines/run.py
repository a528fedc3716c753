"""`make test-host`: boot hosts, deploy the generated service to them, and print what was seen as a table.

Usage: python tests/machines/run.py [--short] [--json FILE] [--only ROW ...] [--keep] [--if-possible]
Needs root, systemd-container, debootstrap and an SSH client. Exit status 1: a row does not hold; 3: no host can
be booted.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import image
import rows
from lab import Lab


def main() -> int:
    """Run the rows and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--short", action="store_true", help="one host, the control experiment, one deploy under load"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as JSON, too")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="only these rows, after the first one")
    parser.add_argument(
        "--if-possible", action="store_true", help="exit status 0 where no host can be booted"
    )
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are taken down
    try:
        image.look_for_tools()
    except image.NotHere as reason:
        print(f"No host can be booted here: {reason}.", file=sys.stderr)
        return 0 if options.if_possible else 3
    groups = rows.SHORT if options.short else rows.FULL
    if options.only:
        names = {"provisioned", *options.only}
        groups = tuple(tuple(row for row in group if row.__name__ in names) for group in groups)
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    begin, found, lab = time.monotonic(), [], None
    try:
        lab = Lab(folder)
        lab.add_host("one")
        print(f"Booted. Logs: {folder}", flush=True)
        for group in filter(None, groups):
            with ThreadPoolExecutor(len(group)) as threads:
                found += threads.map(one, group, [lab] * len(group))
            if found[0]["holds"] is False:
                break  # there is nothing to look at
    except image.NotHere as reason:
        print(f"No host can be booted here: {reason}.", file=sys.stderr)
        return 0 if options.if_possible else 3
    finally:
        for host in lab.hosts if lab else ():
            host.destroy()
        failed = [row for row in found if row["holds"] is False]
        if not options.keep and not failed and folder.exists():
            shutil.rmtree(folder)
    passed, skipped = (sum(row["holds"] is value for row in found) for value in (True, None))
    if options.json:
        options.json.write_text(
            json.dumps({"seconds": round(time.monotonic() - begin), "rows": found}, indent=2) + "\n"
        )
    print(f"\n{len(found)} rows in {time.monotonic() - begin:.0f} s:")
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed or not found else 0


def one(row, lab: Lab) -> dict:
    """Run one row and print its line."""
    name, begin = row.__name__, time.monotonic()
    try:
        figure, holds = row(lab), True
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
