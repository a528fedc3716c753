#!/usr/bin/env python3
"""What the releases on this host do. Installed as /srv/SLUG/bin/releases, where it finds the slug; run as root.

Usage:
  releases status                     every unit: state, what it says of itself, since when
  releases start RELEASE QUEUE...     start workers and wait until each is ready; prints the units it started
  releases running RELEASE QUEUE...   print which of these workers run, or try to
  releases old RELEASE QUEUE...       print the worker units that run and are not these
  releases stop UNIT...               have workers drain, without waiting for it
  releases drained UNIT...            wait for it, and print what became of their tasks; status 2: one was killed
  releases serves RELEASE             note that it serves now; prints it if it did not before
  releases prune KEEP                 remove releases that nothing runs on, but for the KEEP newest; prints them
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLUG = ROOT.name
UNITS = Path("/etc/systemd/system")
#: What systemd calls these events in the journal (its catalog lists them).
STOPPING, STOPPED = "de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"
#: A task's last line in the log.
ENDED = re.compile(r" redelivered=\S+(?: guard=\S+)? (?:finished|failed: |will be retried: )")
#: Seconds after which the kill of a whole worker is recorded at the latest: its leases run out after 12.
RECORDED_S = 30
#: Seconds by which what a worker says of its stop may stand before what systemd says (measured: less than one).
EARLY_S = 3
LINES = 20
SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 0.001}
ENDED_STATES = ("inactive", "failed")


def run(*command: str) -> str:
    """Run a program and return what it prints; its errors go to the terminal."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def show(unit: str, *names: str) -> dict[str, str]:
    """Properties of a unit."""
    text = run("systemctl", "show", unit, f"--property={','.join(names)}")
    return dict(line.split("=", 1) for line in text.splitlines())


def workers() -> dict[str, str]:
    """The worker units that systemd knows, each with its state: active, activating, deactivating, inactive, failed."""
    lines = run(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", f"{SLUG}-*@*.service"
    ).splitlines()
    return {name: state for name, _, state, *_ in map(str.split, lines)}


def alive() -> list[str]:
    """The worker units that have not ended: those that drain are among them."""
    return [unit for unit, state in workers().items() if state not in ENDED_STATES]


def names(release: str, queues: list[str]) -> list[str]:
    """The units of queues of one release."""
    return [f"{SLUG}-{queue}@{release}.service" for queue in queues]


def status() -> int:
    """Print a line for each unit."""
    for unit in [f"{SLUG}-web.socket", f"{SLUG}-web.service", f"{SLUG}-beat.service", *workers()]:
        facts = show(unit, "ActiveState", "StatusText", "StateChangeTimestamp", "NRestarts")
        link = ROOT / unit.removeprefix(f"{SLUG}-").removesuffix(".service")
        release = f" of release {link.readlink().name}" if link.is_symlink() else ""
        restarts = facts.get("NRestarts", "0")
        more = [f"restarted {restarts} times"] * (restarts != "0") + [facts.get("StatusText", "")]
        more = "; ".join(filter(None, more))
        print(
            f"{unit}{release}: {facts['ActiveState']} since {facts['StateChangeTimestamp']}{more and f' ({more})'}"
        )
    return 0


def start(units: list[str]) -> int:
    """Start units, all at once, and wait until they are ready; print the new ones, or why it failed."""
    known = workers()
    new = [unit for unit in units if known.get(unit) != "active"]
    run("systemctl", "daemon-reload")
    if shorter := [unit for unit in units if stop_s(unit) < declared_stop_s(unit)]:
        print(
            f"{', '.join(shorter)}: another drop-in makes TimeoutStopSec shorter than the policy wants, so that a stop "
            "would kill: `systemctl cat` shows which one."
        )
        return 1
    if units and subprocess.run(["systemctl", "enable", "--now", "--quiet", *units]).returncode:
        for unit in units:
            if show(unit, "ActiveState")["ActiveState"] != "active":
                said = run("journalctl", "--output=cat", f"--lines={LINES}", f"--unit={unit}")
                print(f"{unit} did not start. What it said:\n{said}")
        return 1
    print(*new, sep="\n")
    return 0


def stop_s(unit: str) -> float:
    """How long systemd lets a stop take, which any drop-in may have changed; in seconds."""
    text = show(unit, "TimeoutStopUSec")["TimeoutStopUSec"]
    if text == "infinity":
        return float("inf")
    return sum(
        float(number) * SECONDS[name] for number, name in re.findall(r"([\d.]+)(d|h|min|ms|s)\b", text)
    )


def declared_stop_s(unit: str) -> float:
    """How long the policy of the unit's own release wants it to be."""
    text = (UNITS / f"{unit}.d" / "stop.conf").read_text()
    return float(re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE).group(1))


def running(units: list[str]) -> int:
    """Print the units among `units` that have not ended."""
    print(*(unit for unit in alive() if unit in units), sep="\n")
    return 0


def old(units: list[str]) -> int:
    """Print the worker units that have not ended and are not among `units`."""
    print(*(unit for unit in alive() if unit not in units), sep="\n")
    return 0


def stop(units: list[str]) -> int:
    """Have units drain side by side, and not start at the next boot.

    `systemctl stop`, not a signal: systemd then knows that they are meant to end, and does not start them again.
    """
    if units:
        run("systemctl", "disable", "--quiet", *units)
        run("systemctl", "stop", "--no-block", *units)
    return 0


def drained(units: list[str]) -> int:
    """Wait until units have ended, at the latest when their stop timeouts are over, and print what became of them."""
    while any(show(unit, "ActiveState")["ActiveState"] not in ENDED_STATES for unit in units):
        time.sleep(0.5)
    killed = 0
    for unit in units:
        report = drain(unit)
        killed += report["killed"]
        print(
            unit
            + ": {finished} finished, {returned} returned, {killed} killed, {seconds:.1f} s{why}".format(
                **report
            )
        )
    return 2 if killed else 0


def drain(unit: str) -> dict:
    """What became of the tasks of one worker in its last stop: from the journal, and from the records of kills.

    Neither exit status nor systemd's Result tell: a stop that kills every pool process is a success to both.
    """
    entries, begin, end = last_stop(unit)
    if not entries:
        return {"finished": 0, "returned": 0, "killed": 0, "seconds": 0.0, "why": " (it was not stopped)"}
    texts = [entry["MESSAGE"] for entry in entries if isinstance(entry.get("MESSAGE"), str)]
    said = first(r"draining: (\d+) running, (\d+) returned", texts)
    running, returned = map(int, said or ("0", "0"))
    warm = first(r"drained in ", texts) is not None
    killed = kills(unit, begin - EARLY_S, 0 if warm or (said and not running) else RECORDED_S)
    if not warm:
        killed = max(killed, running - sum(bool(ENDED.search(text)) for text in texts))
    result = next((entry["UNIT_RESULT"] for entry in entries if "UNIT_RESULT" in entry), "")
    why = {"": "", "timeout": " (its stop timeout was over)"}.get(result, f" (systemd says: {result})")
    finished = max(running - killed, 0)
    return {
        "finished": finished,
        "returned": returned,
        "killed": killed,
        "seconds": end - begin,
        "why": why,
    }


def last_stop(unit: str) -> tuple[list[dict], float, float]:
    """The journal of a unit's last stop, and when that began and ended, as seconds since the epoch.

    The worker's own first line about it may stand before systemd's, so the journal begins there.
    """
    lines = run("journalctl", "--output=json", "--no-pager", f"--unit={unit}", "--lines=20000").splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    times = [int(entry["__REALTIME_TIMESTAMP"]) / 1e6 for entry in entries]
    stops = [place for place, entry in enumerate(entries) if entry.get("MESSAGE_ID") == STOPPING]
    if not stops:
        return [], 0.0, 0.0
    ends = [place for place, entry in enumerate(entries) if entry.get("MESSAGE_ID") == STOPPED]
    end = next((place for place in ends if place > stops[-1]), len(entries) - 1)
    early = [place for place in range(stops[-1]) if times[place] > times[stops[-1]] - EARLY_S]
    draining = [place for place in early if "draining: " in str(entries[place].get("MESSAGE"))]
    return entries[min([*draining[-1:], stops[-1]]) : end + 1], times[stops[-1]], times[end]


def first(pattern: str, texts: list[str]) -> tuple[str, ...] | None:
    """The groups of the first match in any text."""
    return next((match.groups() for match in map(re.compile(pattern).search, texts) if match), None)


def kills(unit: str, since: float, patience_s: float) -> int:
    """How many kills of a worker are recorded from a time on; waits for the first one as long as `patience_s`."""
    queue, release = unit.removeprefix(f"{SLUG}-").removesuffix(".service").split("@")
    node = f"{queue}-{release}@{run('uname', '--nodename').strip()}"
    end = time.monotonic() + patience_s
    while True:
        text = run(f"{ROOT}/bin/manage", "kills", "--json", "--worker", node, "--since", f"{since:.3f}")
        count = sum(row["kills"] for row in json.loads(text)["kills"])
        if count or time.monotonic() > end:
            return count
        time.sleep(1)


def serves(release: str) -> int:
    """Note which release serves, for a rollback and for bin/manage."""
    history, link = ROOT / "history", ROOT / "current"
    before = history.read_text().split() if history.exists() else []
    if before[-1:] != [release]:
        history.write_text("\n".join([*before, release, ""]))
        print(release)
    draft = link.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(f"releases/{release}")
    draft.replace(link)
    return 0


def prune(keep: int) -> int:
    """Remove releases that are neither among the newest nor used by a unit that has not ended."""
    history = [line for line in (ROOT / "history").read_text().split() if (ROOT / "releases" / line).exists()]
    kept = set(list(dict.fromkeys(reversed(history)))[:keep])
    kept |= {
        link.readlink().name for link in map(ROOT.joinpath, ("web", "beat", "current")) if link.is_symlink()
    }
    kept |= {unit.partition("@")[2].removesuffix(".service") for unit in alive()}
    for folder in sorted((ROOT / "releases").iterdir()):
        if folder.name not in kept:
            for used in (folder, *UNITS.glob(f"{SLUG}-*@{folder.name}.service.d")):
                shutil.rmtree(used)
            forget = ["systemctl", "reset-failed", f"{SLUG}-*@{folder.name}.service"]
            subprocess.run(forget, check=False, stderr=subprocess.DEVNULL)
            print(folder.name)
    run("systemctl", "daemon-reload")
    return 0


def main(arguments: list[str]) -> int:
    """Do what the first argument says."""
    match arguments:
        case ["status"]:
            return status()
        case ["start", release, *queues]:
            return start(names(release, queues))
        case ["running", release, *queues]:
            return running(names(release, queues))
        case ["old", release, *queues]:
            return old(names(release, queues))
        case ["stop", *units]:
            return stop(units)
        case ["drained", *units]:
            return drained(units)
        case ["serves", release]:
            return serves(release)
        case ["prune", keep] if keep.isdecimal():
            return prune(int(keep))
    print(__doc__, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
