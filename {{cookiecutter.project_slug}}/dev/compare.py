"""`make compare`: the same scenarios with stock kombu, this service's transport and celery-redis-plus, as one table.

Minutes of kills, drains and restarts; the table is what docs/redis_transport.md shows (`--write` puts it there).
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dev")]

import storm  # noqa: E402
from transports import variants  # noqa: E402
from transports.report import Progress, interruptible, machine, made_by, markdown, write_between  # noqa: E402
from transports.scenarios import SCENARIOS, Seen, Stage  # noqa: E402

HEADINGS = {
    "stock": "stock kombu",
    "policy": "stock kombu under the policy",
    "ours": "this service's",
    "crp": "celery-redis-plus",
}


def play(options: argparse.Namespace, progress: Progress) -> dict[str, dict[str, Seen]]:
    """Play every scenario with every variant: scenario -> variant -> what was seen."""
    seen: dict[str, dict[str, Seen]] = {}
    for name in options.scenarios:
        words, scenario = SCENARIOS[name]
        progress.begin(f"{name}: {words}")
        seen[name] = {}
        for variant in options.chosen:
            seen[name][variant.name] = scenario(Stage(variant, options.repeats))
            progress.line(f"{variant.name}: {seen[name][variant.name].cell}")
    if options.kills:
        arguments = [
            "--kills",
            str(options.kills),
            "--variants",
            ",".join(one.name for one in options.chosen),
        ]
        tolls = storm.storm(storm.parse(arguments), progress)
        seen["storm"] = {
            toll.variant: Seen(
                f"{toll.lost} lost, {toll.run_twice} twice, longest wait {toll.longest_wait_s:.0f} s",
                {"lost": toll.lost, "run_twice": toll.run_twice, "sent": toll.sent, "held": toll.held},
            )
            for toll in tolls
        }
    return seen


def words_of(name: str, options: argparse.Namespace) -> str:
    """Return how the table calls a scenario."""
    if name == "storm":
        return f"{options.kills} SIGKILLs of workers under 50 messages/s, visibility of the others 10 s"
    return SCENARIOS[name][0]


def show(seen: dict[str, dict[str, Seen]], options: argparse.Namespace) -> str:
    """Return the table in Markdown, with what it was made by and with."""
    names = [variant.name for variant in options.chosen]
    rows = [("", *(HEADINGS[name] for name in names))]
    rows += [
        (words_of(scenario, options), *(row[name].cell for name in names)) for scenario, row in seen.items()
    ]
    made = made_by("compare", options.arguments, variants.python_of("crp", names))
    lines = [markdown(rows), "", f"By {made}; {options.machine}."]
    lines += [f"{HEADINGS[name]} was skipped: {why}." for name, why in options.skipped.items()]
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options, with `chosen`, `skipped` and `scenarios`."""
    parser = argparse.ArgumentParser(
        prog="make compare ARGS=", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument(
        "--only", default=",".join(SCENARIOS), help=f"some of {','.join(SCENARIOS)} (default all of them)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of what is timed (default 3)")
    parser.add_argument(
        "--kills", type=int, default=50, help="of the storm at the end; 0 leaves it out (default 50)"
    )
    parser.add_argument(
        "--variants",
        default="stock,ours,crp",
        help=f"which ones: {', '.join(variants.VARIANTS)} (default stock,ours,crp; what is not installed is skipped)",
    )
    parser.add_argument("--write", type=Path, help="put the table into this file, between its marks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.kills < 0:
        parser.error("--repeats must be 1 or more, --kills 0 or more")
    if options.write and not options.write.is_file():
        parser.error(f"--write: {options.write} is not a file")
    options.scenarios = [name for name in options.only.split(",") if name]
    if unknown := set(options.scenarios) - SCENARIOS.keys():
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; choose from {', '.join(SCENARIOS)}")
    options.arguments, options.machine = arguments, machine()
    try:
        options.chosen, options.skipped = variants.chosen(options.variants)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Play the scenarios, print the table, and return the exit status."""
    options = parse()
    begun = time.monotonic()
    seen = play(options, Progress())
    text = show(seen, options)
    if options.json:
        figures = {
            name: {variant: {"cell": one.cell, **one.figures} for variant, one in row.items()}
            for name, row in seen.items()
        }
        print(json.dumps({"seen": figures, "skipped": options.skipped, "machine": options.machine}, indent=1))
    else:
        print(text)
        print(f"\n({time.monotonic() - begun:.0f} s)")
    if options.write:
        write_between(options.write, "comparison", text)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(interruptible(main, "compare"))
