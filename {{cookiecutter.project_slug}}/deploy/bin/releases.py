#!/usr/bin/env python3
"""What the releases on this host do. Installed as /srv/SLUG/bin/releases, where it finds the slug; run as root.

Usage:
  releases status                     every unit: state, what it says of itself, since when
  releases install RELEASE QUEUE...   write the units of workers, with stop timeouts of their own policy; prints them
  releases start RELEASE QUEUE...     start workers and wait until each is ready; prints the units it started
  releases live RELEASE QUEUE...      ask these workers whether their policy is in force; status 1: it is not
  releases running RELEASE QUEUE...   print which of these workers run, or try to
  releases retire RELEASE QUEUE...    have all other workers drain, without waiting for it; prints them
  releases stop UNIT...               have workers drain, without waiting for it
  releases drained UNIT...            wait for it, and print what became of their tasks; status 2: one was killed
  releases same NAME RELEASE          status 0 when web (or beat) runs already what it would run of this release
  releases started NAME RELEASE       note that it runs that now
  releases serves RELEASE             note that it serves now; prints it if it did not before
  releases prune KEEP                 remove releases that nothing runs on, but for the KEEP newest; prints them
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
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
STOP = """\
# Written by a deploy from the policy of release {release}: the longest hard limit of the queue and a margin.
[Service]
TimeoutStopSec={seconds}
"""


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


def manage(release: str) -> list[str]:
    """The command line that runs manage.py of a release, which may not serve yet."""
    return ["env", f"RELEASE={release}", f"{ROOT}/bin/manage"]


def nodes(units: list[str]) -> list[str]:
    """What the workers of units are called among Celery's."""
    host = run("uname", "--nodename").strip()
    workers = (unit.removeprefix(f"{SLUG}-").removesuffix(".service") for unit in units)
    return [f"{worker.replace('@', '-')}@{host}" for worker in workers]


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


def install(release: str, queues: list[str]) -> int:
    """Write the template unit and the drop-in of each queue, from the release's own folder; print what is new."""
    unit = (ROOT / "releases" / release / "code/deploy/systemd/worker@.service").read_text()
    policy = json.loads(run(*manage(release), "ack_policy", "--json"))["queues"] if queues else {}
    for queue in queues:
        place = UNITS / f"{SLUG}-{queue}@{release}.service.d"
        place.mkdir(mode=0o755, exist_ok=True)
        text = STOP.format(release=release, seconds=policy[queue]["stop_timeout_s"])
        for file, content in ((UNITS / f"{SLUG}-{queue}@.service", unit), (place / "stop.conf", text)):
            if not file.exists() or file.read_text() != content:
                file.write_text(content)
                file.chmod(0o644)
                print(file)
    return 0


def start(units: list[str]) -> int:
    """Start units and wait until they are ready; print the new ones, or why it failed.

    As many at once as there are processors: the tasks of the old ones run meanwhile.
    """
    known = workers()
    new = [unit for unit in units if known.get(unit) != "active"]
    run("systemctl", "daemon-reload")
    if shorter := [unit for unit in units if stop_s(unit) < declared_stop_s(unit)]:
        print(
            f"{', '.join(shorter)}: another drop-in makes TimeoutStopSec shorter than the policy wants, so that a stop "
            "would kill: `systemctl cat` shows which one."
        )
        return 1
    at_once = os.cpu_count() or 1
    for some in (units[place : place + at_once] for place in range(0, len(units), at_once)):
        if subprocess.run(["systemctl", "enable", "--now", "--quiet", *some]).returncode:
            for unit in some:
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


def live(release: str, queues: list[str]) -> int:
    """Have the release's own manage.py ask the workers, each by name."""
    command = [*manage(release), "ack_policy", "--live", "--timeout", "5", "--destination"]
    return subprocess.run([*command, *nodes(names(release, queues))]).returncode


def running(units: list[str]) -> int:
    """Print the units among `units` that have not ended."""
    print(*(unit for unit in alive() if unit in units), sep="\n")
    return 0


def retire(units: list[str]) -> int:
    """Stop the worker units that are not among `units`; print them, also those that drain already."""
    old = [unit for unit in alive() if unit not in units]
    print(*old, sep="\n")
    return stop(old)


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
    stops = [Stop.last(unit) for unit in units]
    quiet = all(stop.warm for stop in stops) and not kills(stops)
    killed = 0
    for stop in stops:
        lost = 0 if quiet else stop.killed()
        killed += lost
        print(stop.report(lost))
    return 2 if killed else 0


@dataclass
class Stop:
    """The last stop of one worker: from the journal. Times are seconds since the epoch.

    Neither exit status nor systemd's Result tell what became of the tasks: a stop that kills every pool process is a
    success to both.
    """

    unit: str
    begin: float = 0.0
    end: float = 0.0
    running: int = 0  # tasks, when it was told to stop
    returned: int = 0  # messages that had not started, then
    ended: int = 0  # tasks that said so afterwards
    said: bool = True  # whether it said so
    warm: bool = False  # whether it said that it has drained
    why: str = " (it was not stopped)"

    @classmethod
    def last(cls, unit: str) -> "Stop":
        """Read it in the journal."""
        entries, begin, end = last_stop(unit)
        if not entries:
            return cls(unit, warm=True)
        texts = [entry["MESSAGE"] for entry in entries if isinstance(entry.get("MESSAGE"), str)]
        said = first(r"draining: (\d+) running, (\d+) returned", texts)
        running, returned = map(int, said or (0, 0))
        ended = sum(bool(ENDED.search(text)) for text in texts)
        warm = first(r"drained in ", texts) is not None
        result = next((entry["UNIT_RESULT"] for entry in entries if "UNIT_RESULT" in entry), "")
        why = {"": "", "timeout": " (its stop timeout was over)"}.get(result, f" (systemd says: {result})")
        return cls(unit, begin, end, running, returned, ended, said is not None, warm, why)

    def killed(self) -> int:
        """How many of its tasks were killed. The record of a kill may come when the worker has long gone."""
        patience_s = 0 if self.warm or (self.said and not self.running) else RECORDED_S
        until = time.monotonic() + patience_s
        while not (count := kills([self])) and time.monotonic() < until:
            time.sleep(1)
        return count if self.warm else max(count, self.running - self.ended)

    def report(self, killed: int) -> str:
        """One line."""
        finished = max(self.running - killed, 0)
        counts = f"{finished} finished, {self.returned} returned, {killed} killed"
        return f"{self.unit}: {counts}, {self.end - self.begin:.1f} s{self.why}"


def kills(stops: list[Stop]) -> int:
    """How many kills are recorded of these workers, from the first of these stops on."""
    begin = min((stop.begin for stop in stops if stop.begin), default=time.time()) - EARLY_S
    workers = [f"--worker={node}" for node in nodes([stop.unit for stop in stops])]
    text = run(f"{ROOT}/bin/manage", "kills", "--json", *workers, "--since", f"{begin:.3f}")
    return sum(row["kills"] for row in json.loads(text)["kills"])


def last_stop(unit: str) -> tuple[list[dict], float, float]:
    """The journal of a unit's last stop, and when that began and ended, as seconds since the epoch.

    The worker's own first line about it may stand before systemd's, so the journal begins there.
    """
    told = journal(unit, "--lines=1", f"MESSAGE_ID={STOPPING}")
    if not told:
        return [], 0.0, 0.0
    begin = when(told[0])
    entries = journal(unit, f"--since=@{begin - EARLY_S:.6f}")
    place = next(place for place, entry in enumerate(entries) if entry["__CURSOR"] == told[0]["__CURSOR"])
    ends = (after for after in range(place, len(entries)) if entries[after].get("MESSAGE_ID") == STOPPED)
    end = next(ends, len(entries) - 1)
    draining = [early for early in range(place) if "draining: " in str(entries[early].get("MESSAGE"))]
    return entries[min([*draining[-1:], place]) : end + 1], begin, when(entries[end])


def journal(unit: str, *options: str) -> list[dict]:
    """Entries of the journal about a unit, its own and systemd's, oldest first."""
    lines = run("journalctl", "--output=json", "--no-pager", f"--unit={unit}", *options).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def when(entry: dict) -> float:
    """The time of an entry, as seconds since the epoch."""
    return int(entry["__REALTIME_TIMESTAMP"]) / 1e6


def first(pattern: str, texts: list[str]) -> tuple[str, ...] | None:
    """The groups of the first match in any text."""
    return next((match.groups() for match in map(re.compile(pattern).search, texts) if match), None)


def wanted(name: str, release: str) -> str:
    """The id that the deploy has noted of what web or beat run on, in a release: code, environment, and unit."""
    return json.loads((ROOT / "releases" / release / "ids").read_text())[name]


def same(name: str, release: str) -> int:
    """Compare it with what web or beat was started with."""
    note = ROOT / f"{name}.id"
    return 0 if note.exists() and note.read_text() == wanted(name, release) else 1


def started(name: str, release: str) -> int:
    """Note what web or beat was started with."""
    (ROOT / f"{name}.id").write_text(wanted(name, release))
    return 0


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
        case ["install", release, *queues]:
            return install(release, queues)
        case ["live", release, *queues]:
            return live(release, queues)
        case ["start", release, *queues]:
            return start(names(release, queues))
        case ["running", release, *queues]:
            return running(names(release, queues))
        case ["retire", release, *queues]:
            return retire(names(release, queues))
        case ["stop", *units]:
            return stop(units)
        case ["drained", *units]:
            return drained(units)
        case ["same", "web" | "beat" as name, release]:
            return same(name, release)
        case ["started", "web" | "beat" as name, release]:
            return started(name, release)
        case ["serves", release]:
            return serves(release)
        case ["prune", keep] if keep.isdecimal():
            return prune(int(keep))
    print(__doc__, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
