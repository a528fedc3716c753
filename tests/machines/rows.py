"""The rows of the proof: each shows one thing on booted hosts, and raises AssertionError when it does not hold.

A row gets the `Lab`, whose service is deployed, and returns its figure, in words.
"""

import json
import re
import secrets
import signal
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from os import cpu_count, getloadavg, killpg
from pathlib import Path

from lab import ODD, SLUG, Lab


class Skipped(Exception):
    """A row that this machine cannot show; the text says why."""


def check(holds: bool, *facts) -> None:
    """Raise AssertionError with facts unless something holds."""
    if not holds:
        raise AssertionError(" ".join(map(str, facts)))


def provisioned(lab: Lab) -> str:
    """A bare host is provisioned and deployed to over SSH."""
    with lab.packages:
        first = lab.play("provision")
    would = lab.play("deploy", "--check", "--diff")
    deploy = lab.play("deploy")
    check(healthy(lab), "web does not answer")
    said = f"provision {first.seconds:.0f} s; deploy {deploy.seconds:.0f} s"
    return f"{said}, of which a dry run said before that it would change {would.changed}"


def again(lab: Lab) -> str:
    """Second runs change nothing, and dry runs work."""
    plays = {
        f"{name} {' '.join(options)}".strip(): lab.play(name, *options)
        for name in ("provision", "deploy")
        for options in ((), ("--check", "--diff"))
    }
    check(not sum(play.changed for play in plays.values()), *(play.output for play in plays.values()))
    return "changed=0: " + ", ".join(f"{name} ({play.seconds:.0f} s)" for name, play in plays.items())


def verified(lab: Lab) -> str:
    """`systemd-analyze verify` says nothing about any rendered unit; the sandbox has a good score."""
    release = lab.release()
    units = [
        lab.unit("long", release),
        f"{SLUG}-web.service",
        f"{SLUG}-web.socket",
        f"{SLUG}-beat.service",
        f"{SLUG}.target",
    ]
    status, output = lab.host.try_run(f"systemd-analyze verify {' '.join(units)}")
    ours = [line for line in output.splitlines() if SLUG in line]
    check(status == 0 and not ours, output)
    override = f"/etc/needrestart/conf.d/{SLUG}.conf"
    perl = (
        f"our %nrconf; do '{override}'; exit !grep {{ '{units[0]}' =~ $_ }} keys %{{$nrconf{{override_rc}}}};"
    )
    check(lab.host.try_run("perl", perl)[0] == 0, "needrestart's override does not name the units")
    scores = {}
    for unit in (units[0], units[1], units[3]):
        text = lab.host.run(f"systemd-analyze security --no-pager {unit} | tail -n 1")
        scores[unit.partition("@")[0]] = float(re.search(r": ([\d.]+) ", text).group(1))
    check(max(scores.values()) < 2, scores)
    return f"{len(units)} units clean; exposure " + ", ".join(
        f"{unit} {score}" for unit, score in scores.items()
    )


def unchanged(lab: Lab) -> str:
    """Values of the environment with every odd character arrive unchanged, and the file is root's alone."""
    pid = lab.host.show(lab.unit("long"), "MainPID")["MainPID"]
    environment = dict(
        entry.split("=", 1) for entry in lab.host.run(f"cat /proc/{pid}/environ").split("\0") if "=" in entry
    )
    check(environment["ODD"] == ODD, repr(environment["ODD"]), repr(ODD))
    check("NOTIFY_SOCKET" in environment, "the worker is not told where systemd listens")
    child = lab.host.run(f"pgrep --parent {pid} | head -n 1")
    check(lab.host.run(f"cat /proc/{pid}/cmdline").count("celery") > 0, "ExecStart is not Celery")
    mode = lab.host.run(f"stat -c '%a %U' /srv/{SLUG}/current/environment")
    check(mode == "600 root", mode)
    found = [secret for secret in (ODD, ODD * 2) if secret in lab.host.run("journalctl --no-pager -o cat")]
    check(not found, "a secret stands in the journal")
    plays = (lab.folder / "plays.log").read_text()
    check(
        ODD * 2 not in plays and json.dumps(ODD * 2)[1:-1] not in plays, "a secret stands in a play's output"
    )
    return (
        f"{len(ODD)} characters equal in pid {pid} (pool child {child}); environment file {mode}; not in logs"
    )


def control(lab: Lab) -> str:
    """Control experiment: with systemd's default KillMode a deploy kills the running task, and the play says so."""
    unit = lab.unit("long")
    with_dropin(lab, unit, "KillMode=control-group")
    number = lab.publish(lab.longer_than_a_deploy_s)
    lab.run_begins(number)
    lab.change_code()
    play = lab.play("deploy", expect=2)
    killed = {name: killed for name, _, _, killed, _ in play.report}
    check(killed.get(unit) == 1, play.output[-3000:])
    check("were killed" in play.output, play.output[-3000:])
    cut, again = lab.runs(number) if wait_for_runs(lab, number, 2) else (["", "", "x"], [])
    check(not cut[2], "the first run was not cut off")
    return f"killed 1 of 1, second run on the new release {float(again[1]) - float(cut[1]):.1f} s after the first began"


def deploys_under_load(lab: Lab, times: int = 3, longest_s: float = 60) -> str:
    """Deploys in a row and a rollback under load: nothing lost, killed or run twice; no request fails."""
    stops, longest, before = [], [], invocations(lab)
    with lab.under_load(longest=longest_s) as load:
        for name in ["deploy"] * times + ["rollback"] * (times > 1):
            lab.change_code()
            longest.append(lab.publish(longest_s))
            lab.run_begins(longest[-1])
            began = time.time()
            stops += drains(load, lab.play(name), began)
            after = invocations(lab)
            check(
                all(after[unit] != before[unit] for unit in before),
                "code changed, not restarted:",
                before,
                after,
            )
            before = after
    figures = load.figures()
    lab.pauses.append(figures["longest pause s"])
    for number in longest:
        check(len(lab.runs(number)) == 1, "the longest task:", lab.runs(number))
    check(
        figures["lost"] == figures["cut off"] == figures["run twice"] == figures["failed requests"] == 0,
        figures,
    )
    check(not sum(killed for *_, killed, _ in stops), stops)
    text = ", ".join(f"{name} {value}" for name, value in figures.items())
    return f"{text}; {len(stops)} stops, killed 0, {sum(stop[1] for stop in stops)} tasks finished meanwhile"


def one_deploy_under_load(lab: Lab) -> str:
    """One deploy under load: nothing lost, killed or run twice; no request fails."""
    return deploys_under_load(lab, 1, 30)


def drains(load, play, began: float) -> list[tuple]:
    """The stops of a play; notes in `lab.late` how much longer than its longest task each took, in seconds."""
    for unit, *_, seconds in play.report:
        entries = load.lab.host.journal(unit=unit, since=began - 1)
        stops = [entry for entry in entries if entry.get("MESSAGE_ID") == "de5b426a63be47a7b6ac3eaac82e2f6f"]
        if stops:
            stopping = int(stops[-1]["__REALTIME_TIMESTAMP"]) / 1e6
            queue, release = unit.removeprefix(f"{SLUG}-").removesuffix(".service").split("@")
            ends = [
                end for worker, end in load.began_before(stopping) if worker.startswith(f"{queue}-{release}@")
            ]
            load.lab.late.append(seconds - max([end - stopping for end in ends], default=0))
    return play.report


def short_pause(lab: Lab) -> str:
    """In none of the deploys under load was there a second in which no worker began a task (20 messages a second)."""
    if not lab.pauses:
        raise Skipped("no deploy under load has run")
    said = f"longest pause {max(lab.pauses):.2f} s; {load_of_this_machine()}"
    check(max(lab.pauses) < 1, said)
    return said


def prompt_stops(lab: Lab) -> str:
    """Of the stops under load, 19 in 20 lasted no longer than the rest of the unit's longest task, and 2 s."""
    if not lab.late:
        raise Skipped("no deploy under load has run")
    late = sorted(lab.late)
    within = sum(seconds <= 2 for seconds in late)
    said = f"{within} of {len(late)}; the stop ended {late[len(late) // 2]:.1f} s after that in the median, "
    said += f"{late[-1]:.1f} s at most; {load_of_this_machine()}"
    check(within >= len(late) * 19 / 20, said)
    return said


def load_of_this_machine() -> str:
    """What else was going on, as far as one can tell from outside."""
    return f"load average {getloadavg()[1]:.1f} on {cpu_count()} processors"


def too_long(lab: Lab) -> str:
    """A task that takes longer than the stop allows is killed and recorded, and runs on the new release within 20 s."""
    unit = lab.unit("long")
    with_dropin(lab, unit, "TimeoutStopSec=5")
    number = lab.publish(2 * lab.longer_than_a_deploy_s)
    lab.run_begins(number)
    lab.change_code()
    play = lab.play("deploy", expect=2)
    killed = {name: killed for name, _, _, killed, _ in play.report}
    check(killed.get(unit) == 1, play.output[-3000:])
    wait_for_runs(lab, number, 2)
    second = lab.runs(number)[1]
    stopped = [e for e in lab.host.journal(unit=unit) if e.get("UNIT_RESULT") == "timeout"]
    waited = float(second[1]) - int(stopped[-1]["__REALTIME_TIMESTAMP"]) / 1e6
    check(lab.release() in second[0] and waited < 20, waited, second)
    causes = {row["cause"] for row in json.loads(lab.manage("kills --since 1h --json"))["kills"]}
    check("drain timeout" in causes, causes)
    return (
        f"killed 1, recorded as {sorted(causes)}, again after {waited:.1f} s on {second[0]}; the play fails"
    )


def broken_release(lab: Lab) -> str:
    """A release whose workers do not start is taken back: the old one goes on, and no message waits for it."""
    before = lab.release()
    with lab.under_load(long=0) as load:
        lab.edit(
            "service/celery.py",
            "app.autodiscover_tasks()",
            'app.autodiscover_tasks()\nraise SystemExit("broken")',
        )
        lab.commit("Break it")
        checked = lab.play("deploy", expect=2)
        lab.edit("service/celery.py", '\nraise SystemExit("broken")', "")
        text = "\n\n@worker_init.connect\ndef broken(**kwargs) -> None:\n    raise SystemExit(4)\n"
        lab.edit(
            "service/celery.py", "WORKER_SOCKET_TIMEOUT_S = 10\n", f"WORKER_SOCKET_TIMEOUT_S = 10\n{text}"
        )
        lab.commit("Break only its workers")
        started = lab.play("deploy", expect=2)
    lab.edit("service/celery.py", text, "")
    lab.commit("Repair it")
    figures = load.figures()
    check(lab.release() == before, lab.release(), before)
    check("the old one goes on" in started.output, started.output[-3000:])
    check(figures["lost"] == figures["run twice"] == figures["failed requests"] == 0, figures)
    left = lab.host.run(
        f"systemctl list-units --plain --no-legend --state=active,activating '{SLUG}-*@*.service'"
    )
    check(all(before in line for line in left.splitlines()), left)
    said = f"refused before it started ({checked.seconds:.0f} s), and taken back ({started.seconds:.0f} s)"
    return f"{said}; longest pause meanwhile {figures['longest pause s']} s"


def redis_down(lab: Lab) -> str:
    """Redis is down for 20 s in the middle of a deploy: workers live on, the new ones wait, nothing is lost."""
    number = lab.publish(lab.longer_than_a_deploy_s)
    lab.run_begins(number)
    before = lab.host.show(lab.unit("long"), "MainPID", "NRestarts")
    lab.change_code()
    process = lab.start_play("deploy")
    unit = f"{SLUG}-long@"
    is_new = f"systemctl list-units --plain --no-legend --state=activating '{unit}*' | wc -l"
    lab.host.run("true")
    lab.host.wait_until(
        lambda: lab.host.run(is_new) == "1" or process.poll() is not None, 240, "new workers start"
    )
    lab.host.run("systemctl stop redis-server@broker")
    time.sleep(20)
    lab.host.run("systemctl start redis-server@broker")
    output = process.communicate()[0]
    if process.returncode:  # the outage fell onto a moment in which the play asks Redis: it is run again
        output = lab.play("deploy").output
    wait_for_end(lab, number)
    runs = lab.runs(number)
    check(len(runs) == 1 and runs[0][2], runs, output[-2000:])
    again = "" if process.returncode == 0 else "; the play failed and was run again"
    return f"the task that ran meanwhile ran once, in process {before['MainPID']} of the old release{again}"


def play_again(lab: Lab) -> str:
    """The deploying machine dies in the middle of a deploy; the play, run again, finishes it."""
    number = lab.publish(25)
    lab.run_begins(number)
    lab.change_code()
    process = lab.start_play("deploy")
    before = lab.release()
    listed = f"systemctl list-units --plain --no-legend '{SLUG}-short@*' | grep -vc {before}"
    lab.host.wait_until(
        lambda: lab.host.try_run(listed)[1].strip() not in ("", "0") or process.poll() is not None,
        240,
        "it starts",
    )
    killpg(process.pid, signal.SIGKILL)
    process.communicate()
    lab.play("deploy")
    wait_for_end(lab, number)
    check(len(lab.runs(number)) == 1, lab.runs(number))
    active = lab.host.run(f"systemctl list-units --plain --no-legend --state=active '{SLUG}-short@*' | wc -l")
    check(active == "1" and lab.release() != before, active, lab.release())
    return "finished by the second run; one release is active; the running task ran once"


def reboot(lab: Lab) -> str:
    """The host is shut down with tasks running, and boots: tasks end before Redis does, and everything runs again."""
    number = lab.publish(12)
    lab.run_begins(number)
    later = [lab.publish(1) for _ in range(3)]
    seconds = lab.host.shut_down()
    lab.host.boot()
    units = [lab.unit("long"), lab.unit("short"), f"{SLUG}-web.service", f"{SLUG}-beat.service"]
    lab.host.wait_until(
        lambda: lab.host.try_run(f"systemctl is-active {' '.join(units)}")[0] == 0, 90, "all units are active"
    )
    for one in (number, *later):
        wait_for_end(lab, one)
        check(len(lab.runs(one)) == 1, one, lab.runs(one))
    said = f"shutdown took {seconds:.1f} s with a task of 12 s; after the boot all is active"
    return f"{said}; {len(later) + 1} tasks ran once"


def main_killed(lab: Lab) -> str:
    """SIGKILL of a worker's main process: systemd starts it again, and the task is delivered again within 20 s."""
    unit = lab.unit("long")
    number = lab.publish(20)
    lab.run_begins(number)
    begin = time.time()
    lab.host.run(f"systemctl kill --kill-whom=main --signal=KILL {unit}")
    wait_for_runs(lab, number, 2)
    waited = float(lab.runs(number)[1][1]) - begin
    check(waited < 20, waited)
    wait_for_end(lab, number)
    return f"delivered again after {waited:.1f} s; NRestarts {lab.host.show(unit, 'NRestarts')['NRestarts']}"


def restarts(lab: Lab, times: int = 20) -> str:
    """`systemctl restart` by hand, again and again, under 2 s tasks: each ends, none runs twice. Two units at once."""

    def restart(queue: str) -> tuple[list[int], set[str], list[float]]:
        unit, numbers, pids, seconds = lab.unit(queue), [], set(), []
        for _ in range(times // 2):
            numbers.append(lab.publish(2, queue))
            lab.run_begins(numbers[-1])
            begin = time.monotonic()
            lab.host.run(f"systemctl restart {unit}")
            seconds.append(time.monotonic() - begin)
            pids.add(lab.host.show(unit, "MainPID")["MainPID"])
        return numbers, pids, seconds

    with ThreadPoolExecutor() as threads:
        results = list(threads.map(restart, ("long", "short")))
    numbers = [number for numbers, *_ in results for number in numbers]
    for number in numbers:
        wait_for_end(lab, number)
        check(len(lab.runs(number)) == 1, number, lab.runs(number))
    processes = sum(len(pids) for _, pids, _ in results)
    check(processes == times, processes)
    slowest = max(seconds for *_, times in results for seconds in times)
    return f"{times} restarts, {processes} processes, {len(numbers)} tasks ran once; slowest restart {slowest:.1f} s"


def smaller_limit(lab: Lab) -> str:
    """A release with a smaller limit does not shorten the stop of the old one that still drains."""
    old = lab.unit("long")
    before = lab.host.show(old, "TimeoutStopUSec")["TimeoutStopUSec"]
    number = lab.publish(lab.longer_than_a_deploy_s + 15)
    lab.run_begins(number)
    lab.limits["long"] = ("long", 60)
    lab.policy()
    lab.commit("Lower the limit")
    process = lab.start_play("deploy")
    lab.host.wait_until(
        lambda: lab.host.show(old, "ActiveState")["ActiveState"] == "deactivating", 240, "the old one drains"
    )
    during = lab.host.show(old, "TimeoutStopUSec", "StatusText")
    output = process.communicate()[0]
    check(process.returncode == 0, output[-3000:])
    new = lab.host.show(lab.unit("long"), "TimeoutStopUSec")["TimeoutStopUSec"]
    check(before == during["TimeoutStopUSec"] != new, before, during, new)
    check(during["StatusText"].startswith("draining: 1 task"), during)
    check(len(lab.runs(number)) == 1, lab.runs(number))
    lab.limits["long"] = ("long", 600)  # in the next release
    lab.policy()
    lab.commit("Put the limit back")
    return f"old {before} before and while it drains, new {new}; status {during['StatusText']!r}"


def only_what_must(lab: Lab) -> str:
    """Only the environment or a unit changed: each deploy restarts exactly what runs on it (code: everything)."""
    said = []

    def compare(what: str, *expected: str):
        before = invocations(lab)
        lab.play("deploy")
        after = invocations(lab)
        restarted = {name for name in after if after[name] != before[name]}
        check(restarted == set(expected), what, restarted)
        said.append(f"{what}: {'+'.join(sorted(restarted)) or 'nothing'}")

    lab.extra["EXTRA"] = str(time.time())
    lab.inventory()
    compare("environment", "worker", "web", "beat")
    for unit, restarted in (("worker@.service", "worker"), ("web.service", "web"), ("beat.service", "beat")):
        lab.edit(f"deploy/systemd/{unit}", "RestartSec=2", "RestartSec=3")
        lab.commit(f"Change {unit}")
        compare(unit, restarted)
    return "; ".join(said)


def redis_away(lab: Lab, seconds: int = 120) -> str:
    """Redis is away for two minutes under a 90 s task: the main process lives on, and the task runs once."""
    unit = lab.unit("long")
    before = lab.host.show(unit, "MainPID")["MainPID"]
    number = lab.publish(90)
    lab.run_begins(number)
    lab.host.run("systemctl stop redis-server@broker")
    said = set()
    for _ in range(seconds):
        time.sleep(1)
        said.add(re.sub(r"\d+", "N", lab.host.show(unit, "StatusText")["StatusText"]))
    lab.host.run("systemctl start redis-server@broker")
    after = lab.publish(1)
    wait_for_end(lab, after)
    wait_for_end(lab, number)
    time.sleep(15)
    check(lab.host.show(unit, "MainPID")["MainPID"] == before, "the main process is another one")
    check(len(lab.runs(number)) == 1, lab.runs(number))
    return f"same main process, run once; it said {sorted(said)}"


def stuck(lab: Lab) -> str:
    """A main process that stands still is killed by the watchdog and started again."""
    unit = lab.unit("email")
    before = lab.host.show(unit, "MainPID")["MainPID"]
    begin = time.monotonic()
    lab.host.run(f"kill -STOP {before}")
    lab.host.wait_until(
        lambda: (
            lab.host.show(unit, "MainPID", "ActiveState")
            not in ({"MainPID": before, "ActiveState": "active"},)
        ),
        90,
        "it is killed",
    )
    lab.host.wait_until(
        lambda: lab.host.show(unit, "ActiveState")["ActiveState"] == "active", 60, "it runs again"
    )
    return f"running again after {time.monotonic() - begin:.0f} s (WatchdogSec=30)"


def two_beats(lab: Lab) -> str:
    """Two beats at once: each lead that is overdue is published once, since the sweeps claim their rows. No pidfile."""
    unit, leads = f"{SLUG}-beat.service", 20
    lab.host.run(f"systemctl kill --kill-whom=main --signal=KILL {unit}")
    lab.host.wait_until(
        lambda: lab.host.show(unit, "NRestarts")["NRestarts"] != "0", 10, "beat is started again"
    )
    lab.host.wait_until(
        lambda: lab.host.show(unit, "ActiveState")["ActiveState"] == "active", 10, "beat runs again"
    )
    begin = time.time()
    lab.host.run(
        f"/srv/{SLUG}/bin/manage shell",
        text="from django.utils import timezone\nfrom leads.models import Lead\n"
        f"for n in range({leads}):\n"
        "    Lead.objects.create(name='n', email='a@example.com', alert_due_at=timezone.now())\n\n",
    )
    lab.host.run(
        f"systemd-run --quiet --unit=beat2 --uid={SLUG} --working-directory=/srv/{SLUG}/current/code"
        f" --property=PrivateTmp=yes --property=EnvironmentFile=/srv/{SLUG}/current/environment"
        f" /srv/{SLUG}/current/venv/bin/celery -A service beat --pidfile= --schedule=/tmp/schedule"
    )
    time.sleep(75)
    lab.host.run("systemctl stop beat2")
    texts = [str(entry.get("MESSAGE")) for entry in lab.host.journal(unit=lab.unit("periodic"), since=begin)]
    sweeps = sum("publish_overdue_alerts[" in text and text.endswith("finished") for text in texts)
    published = sum(
        int(match[1])
        for match in (re.search(r"published (\d+) alerts again", text) for text in texts)
        if match
    )
    check(sweeps >= 2 and published == leads, sweeps, published)
    said = f"{sweeps} sweeps of two beats published {leads} overdue leads {published} times"
    return f"killed and active again; then {said}"


def destructive(lab: Lab) -> str:
    """A migration that takes a column away is refused, and nothing was started; told otherwise, it goes through."""
    before = lab.release()
    text = (
        "from django.db import migrations\n\n\nclass Migration(migrations.Migration):\n"
        '    dependencies = [("load", "0001_initial")]\n'
        '    operations = [migrations.RemoveField("sent", "at")]\n'
    )
    path = lab.service / "load/migrations/0002_remove.py"
    path.write_text(text)
    lab.edit("load/models.py", "    at = models.DateTimeField(auto_now_add=True)\n", "")
    lab.commit("Take a column away")
    play = lab.play("deploy", expect=2)
    check("load.0002_remove" in play.output and "takes away" in play.output, play.output[-3000:])
    check(lab.release() == before, lab.release())
    lab.play("deploy", "-e", "service_allow_destructive_migrations=true")
    check(lab.release() != before, lab.release())
    return "refused, with the operation named; allowed when told so"


def out_of_memory(lab: Lab) -> str:
    """A pool process that the kernel kills for its memory takes neither its neighbours nor the worker with it."""
    controllers = lab.host.run("cat /sys/fs/cgroup/cgroup.controllers").split()
    if "memory" not in controllers:
        raise Skipped(
            f"this machine gives its hosts no memory controller (only: {' '.join(controllers) or 'none'})"
        )
    unit = lab.unit("short")
    with_dropin(lab, unit, "MemoryMax=400M\nMemorySwapMax=0")
    lab.host.run(f"systemctl restart {unit}")
    pid = lab.host.show(unit, "MainPID")["MainPID"]
    lab.manage("load --hog 2000")
    time.sleep(10)
    check(lab.host.show(unit, "MainPID")["MainPID"] == pid, "the worker was stopped")
    return f"main process {pid} unchanged"


def two_hosts(lab: Lab) -> str:
    """Two hosts, one after the other, one queue on both: nothing lost, killed or run twice."""
    second = lab.add_host("two")
    lab.play("provision", "--limit", "two")
    lab.play("deploy")
    with lab.under_load(long=0.2, longest=20) as load:
        lab.change_code()
        play = lab.play("deploy", "-e", "service_batch=1")
    figures = load.figures()
    check(
        figures["lost"] == figures["cut off"] == figures["run twice"] == figures["failed requests"] == 0,
        figures,
    )
    releases = {host.run(f"basename $(readlink /srv/{SLUG}/current)") for host in lab.deployed}
    check(len(releases) == 1, releases)
    nodes = lab.sql(
        f"SELECT count(DISTINCT split_part(worker, '@', 2)) FROM load_run WHERE number >= {load.first}"
    )
    check(nodes == "2", nodes)
    lab.pauses.append(figures["longest pause s"])
    second.run(f"systemctl stop {SLUG}.target")
    text = ", ".join(f"{name} {value}" for name, value in figures.items())
    return f"{text}; {len(play.report)} stops, killed {sum(stop[3] for stop in play.report)}"


def stop_drains(lab: Lab) -> str:
    """A stop by hand: the task that runs, as long as its limit allows, is finished, and the report says so."""
    limit = lab.limits["medium"][1]
    unit, seconds = lab.unit("medium"), limit * 7 // 8  # the soft limit is nine tenths
    number = lab.publish(seconds, "medium")
    lab.run_begins(number)
    status, report = lab.host.try_run(
        f"/srv/{SLUG}/bin/releases stop {unit} && /srv/{SLUG}/bin/releases drained {unit}"
    )
    lab.host.run(f"systemctl enable --quiet --now {unit}")
    check(status == 0 and "1 finished, 0 returned, 0 killed" in report, status, report)
    check(len(lab.runs(number)) == 1, lab.runs(number))
    return f"task of {seconds} s (limit {limit} s): {report.strip()}"


def without_kill_mode(lab: Lab) -> str:
    """Mutation: without `KillMode=mixed` in the unit, `stop_drains` does not hold."""
    return mutation(lab, f"/etc/systemd/system/{SLUG}-medium@.service", "/^KillMode=mixed$/d")


def with_half_the_stop(lab: Lab) -> str:
    """Mutation: with half of `TimeoutStopSec` in the drop-in, `stop_drains` does not hold."""
    stop_s = json.loads(lab.manage("ack_policy --json"))["queues"]["medium"]["stop_timeout_s"]
    place = f"/etc/systemd/system/{lab.unit('medium')}.d/stop.conf"
    return mutation(lab, place, f"s/TimeoutStopSec={stop_s}/TimeoutStopSec={stop_s // 2}/")


def mutation(lab: Lab, file: str, script: str) -> str:
    """Change a file of the host with sed, and see `stop_drains` fail for a task that was killed."""
    text = lab.host.run(f"cat {file}")
    lab.host.run(f"sed -i '{script}' {file} && systemctl daemon-reload")
    check(lab.host.run(f"cat {file}") != text, "the mutation changes nothing:", script)
    red = ""
    try:
        stop_drains(lab)
    except AssertionError as error:
        red = str(error)
    finally:
        lab.host.run(f"cat > {file}", text=text + "\n")
        lab.host.run("systemctl daemon-reload")
    check(red.startswith("2 ") and ", 1 killed" in red, "the mutation was not seen:", red)
    return f"stop_drains is red: {red[2:].strip()}"


def newcomer(lab: Lab) -> str:
    """A newcomer follows "Deploy to your first host" in the README of a service, word by word, on a bare host."""
    busy = [port for port in (5432, 6379, 6380, 8000) if listens(port)]
    if busy:
        raise Skipped(f"the README's host needs 127.0.0.1:{busy[0]}, where something of this machine listens")
    service = lab.folder / "newcomer" / "my_service"
    lab.bake(service)
    host = lab.boot("newcomer")
    environment = {
        "DEPLOY_VENV": str(lab.tools),
        "PYTHON": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
        # That the host can be reached over SSH is where the section begins.
        "ANSIBLE_PRIVATE_KEY_FILE": str(lab.key),
        "ANSIBLE_SSH_COMMON_ARGS": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        **{
            f"GIT_{who}_{what}": "ann@example.com"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    section = (
        (service / "README.md")
        .read_text()
        .partition("## Deploy to your first host\n")[2]
        .partition("\n## ")[0]
    )
    commands = section.split("```")[1].strip().splitlines()
    output = ""
    for command in commands:
        with lab.packages if "provision" in command else nullcontext():
            done = lab.shell(command, service, environment)
        check(done.returncode == 0, command, done.stdout[-3000:])
        output += done.stdout
        if command.startswith("cp deploy/inventory"):
            edit(service / "deploy/inventory.yml", "192.0.2.10", host.address)
        if command.startswith("cp deploy/vault"):
            vault = service / "deploy/vault.yml"
            edit(vault, 'email_url: ""', 'email_url: "smtp://127.0.0.1:9"')
            # As the file says.
            vault.write_text(
                re.sub(r'(?<=: )""', lambda _: f'"{secrets.token_urlsafe(48)}"', vault.read_text())
            )
    check(re.search(r"my_service-email@[0-9a-f]{12}.service: active", output), output[-3000:])
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/healthz').status)"
    check(host.run(f'python3 -c "{asked}"') == "200", "web does not answer")
    admin = host.run("/srv/my_service/bin/manage createsuperuser --help")
    check("--username" in admin, admin)
    host.shut_down()
    return f"{len(commands)} commands, as they stand there; web answers, workers consume"


# What rows share ------------------------------------------------------------------------------------------


def invocations(lab: Lab) -> dict[str, str]:
    """What systemd calls the run that a worker, web and beat are in: another one after each start."""
    units = {"worker": lab.unit("long"), "web": f"{SLUG}-web.service", "beat": f"{SLUG}-beat.service"}
    return {name: lab.host.show(unit, "InvocationID")["InvocationID"] for name, unit in units.items()}


def with_dropin(lab: Lab, unit: str, lines: str) -> None:
    """Override lines of one instance, as an operator might."""
    lab.host.run(f"mkdir -p /etc/systemd/system/{unit}.d")
    lab.host.run(f"cat > /etc/systemd/system/{unit}.d/zz-override.conf", text=f"[Service]\n{lines}\n")
    lab.host.run("systemctl daemon-reload")


def wait_for_runs(lab: Lab, number: int, count: int) -> bool:
    """Wait until a task has begun so often."""
    lab.host.wait_until(lambda: len(lab.runs(number)) >= count, 60, f"task {number} has begun {count} times")
    return True


def wait_for_end(lab: Lab, number: int) -> None:
    """Wait until a task has ended."""
    lab.host.wait_until(lambda: any(end for *_, end in lab.runs(number)), 150, f"task {number} has ended")


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text in a file; it must be there."""
    text = file.read_text()
    check(old in text, f"{file} does not hold {old!r}")
    file.write_text(text.replace(old, new))


def listens(port: int) -> bool:
    """Whether something takes connections on this port of 127.0.0.1."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def healthy(lab: Lab) -> bool:
    """Whether web answers."""
    request = urllib.request.Request(f"http://{lab.host.address}:8000/healthz", headers={"Host": "localhost"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status == 200


#: A lane has a service and a host of its own; a run with several plays them side by side. Its groups come one after the
#: other; the rows of one group run at once: each has units of its own, and mostly waits.
SHORT = (((provisioned,), (verified,), (control,), (one_deploy_under_load,)),)
FULL = (
    (
        (provisioned,),
        (again,),
        (verified,),
        (unchanged,),
        (stop_drains, two_beats, stuck, main_killed),
        (with_half_the_stop, restarts),
        (without_kill_mode,),
        (control,),
        (deploys_under_load,),
        (too_long,),
        (broken_release,),
        (out_of_memory,),
        (reboot,),
        (short_pause,),
        (prompt_stops,),
    ),
    (
        (provisioned,),
        (redis_away, newcomer),
        (redis_down,),
        (smaller_limit,),
        (play_again,),
        (only_what_must,),
        (destructive,),
        (two_hosts,),
    ),
)
