"""The crash map on every kind of code: exact counts where they follow from it, clear words where there is no map."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from redelivery.policy import TaskPolicy, load
from redelivery.testing import children, drawing, processes, promises, report
from redelivery.testing.crashmap import CrashMap, Kill
from redelivery.testing.drawing import Drawn, cores, merge, own_core
from redelivery.testing.evidence import Experiment
from redelivery.testing.messages import Message
from redelivery.testing.points import Point

KINDS = Path(__file__).parent / "kinds"
ROOT = Path(__file__).parents[2]
SOURCE = (KINDS / "tasks.py").read_text().splitlines()
COMMAND = [sys.executable, "-m", "django", "crashmap"]
ENVIRONMENT = {
    **os.environ,
    "DJANGO_SETTINGS_MODULE": "tests.redelivery.kinds.settings",
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="session")
def kinds():
    """What one `crashmap` command says of all kinds, by the last part of the task's name."""
    experiment = Experiment(
        ["-m", "django", "crashmap", "--json", "--duplicates"], "tests.redelivery.kinds.settings"
    )
    yield {found["task"].rpartition(".")[2]: found for found in experiment.result}
    experiment.stop()


@pytest.fixture
def drawn(kinds):
    """Give a map that could be drawn."""

    def drawn(name: str) -> dict:
        assert "error" not in kinds[name], kinds[name]["error"]
        return kinds[name]

    return drawn


def line(text: str, after: str) -> int:
    """Return the number of the first line with a text, from the line with another one on."""
    start = next(n for n, each in enumerate(SOURCE) if after in each)
    return next(n for n, each in enumerate(SOURCE[start:], start=start + 1) if text in each)


def counts(crash_map: dict, number: int) -> set[int]:
    """Return the counts seen on one line."""
    return {point["redelivered"] for point in crash_map["points"] if point["line"] == number}


def stretches(crash_map: dict, what: str = "redelivered") -> list[int]:
    """Return the counts in the order of the path, each as long as it lasts once."""
    found = [point[what] for point in crash_map["points"]]
    return [count for n, count in enumerate(found) if n == 0 or found[n - 1] != count]


ONE_EFFECT = [
    "in_transaction",
    "other_database",
    "over_http",
    "failing_send",
    "in_a_thread",
    "in_a_pool",
    "in_a_coroutine",
    "in_a_generator",
    "with_finally",
    "raising",
    "bound",
    "retrying",
    "tally",
    "renamed",
    "handing_on",
    "in_a_subprocess",
    "leaves_a_subprocess",
    "leaves_a_daemon",
    "leaves_a_loop",
    "forking",
    "printing",
    "remembering",
    "exiting",
]


@pytest.mark.parametrize("name", ONE_EFFECT)
def test_one_effect_before_and_two_after(drawn, name):
    """Without a guard a kill before the effect leads to one, a kill after it to two, and the effect stays."""
    crash_map = drawn(name)
    assert crash_map["once"] == 1
    if name != "handing_on":  # its effect is another task's, which is delivered later
        assert stretches(crash_map, "killed") == [0, 1]
    if name == "other_database":  # has a marker
        assert (stretches(crash_map), crash_map["completed"]) == ([1, 2, 1], 1)
    else:
        assert (stretches(crash_map), crash_map["completed"]) == ([1, 2], 2)


@pytest.mark.parametrize("name", sorted({*ONE_EFFECT} - {"other_database"}))
def test_two_deliveries_without_a_kill(drawn, name):
    """Without a guard each of them acts, also where one waits for the other's lock, whatever a process remembers."""
    assert drawn(name)["duplicates"] == {"twins": 2, "second_message": 2, "flushed_cache": 2}


def test_the_second_cache_is_flushed_too(drawn):
    """A marker in a cache other than the default one."""
    assert drawn("other_database")["duplicates"] == {"twins": 2, "second_message": 1, "flushed_cache": 2}


def test_a_transaction_takes_back_what_was_not_committed(drawn):
    """Both rows are written before the commit, which is at the line of the `with`."""
    crash_map, start = drawn("in_transaction"), line("with transaction", "def in_transaction")
    assert counts(crash_map, start) == {1, 2}
    assert counts(crash_map, start + 1) == counts(crash_map, start + 2) == {1}
    assert counts(crash_map, start + 3) == {2}


def test_kills_within_a_thread(drawn):
    """A thread's own opcodes are points, with the thread's name."""
    crash_map = drawn("in_a_thread")
    inside = [p for p in crash_map["points"] if p["thread"] != "MainThread"]
    assert {p["function"] for p in inside} == {"act"}
    assert {p["redelivered"] for p in inside} == {1, 2}
    assert counts(crash_map, line("thread.start", "def in_a_thread")) == {1}
    assert counts(crash_map, line("thread.join", "def in_a_thread")) == {1, 2}


def test_threads_side_by_side_take_turns(drawn):
    """The first one's effect is whole before the second one begins, in each of the runs; their names are told apart."""
    crash_map = drawn("two_threads")
    assert (crash_map["once"], crash_map["completed"]) == (2, 4)
    assert stretches(crash_map, "killed") == [0, 1, 2]
    assert stretches(crash_map) == [2, 3, 4]
    assert {p["thread"] for p in crash_map["points"]} == {"MainThread", "twin", "twin (2)"}


def test_a_thread_that_outlives_the_task_can_be_lost(drawn):
    """When the task has returned its message is acknowledged: what the thread has not done by then never happens."""
    points = drawn("leaves_a_thread")["points"]
    assert {p["redelivered"] for p in points if not p["returned"]} == {1}
    assert stretches({"points": [p for p in points if p["returned"]]}) == [0, 1]


def test_kills_in_the_run_that_a_retry_causes(drawn):
    """The effect takes place in the second run, and so does the gap after it."""
    points = drawn("retrying")["points"]
    assert {p["redelivered"] for p in points if p["run"] == 0} == {1}
    assert stretches({"points": [p for p in points if p["run"] == 1]}) == [1, 2]


def test_a_task_that_acts_and_then_retries(drawn):
    """Two effects unharmed, three after a kill behind either of them."""
    crash_map = drawn("autoretrying")
    assert (crash_map["once"], crash_map["completed"]) == (2, 3)
    assert stretches(crash_map) == [2, 3, 2, 3]


def test_a_process_that_ends_by_itself_is_a_lost_worker(drawn):
    """Its message comes back, as it does from a worker; the second delivery finds the row."""
    crash_map = drawn("exiting_hard")
    assert (crash_map["once"], crash_map["completed"]) == (1, 1)
    assert stretches(crash_map) == [1]
    assert {p["run"] for p in crash_map["points"]} == {0, 1}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sleeping", r"did not end within 2 s; it was last at .*tasks\.py:\d+ in sleeping"),
        ("sleeping_later", r"did not end within 2 s"),
        ("killing_its_parent", r"at opcode \d+ .* in killing_its_parent, this time it ended as DIED"),
        ("looping", r"more than 20000 opcodes; it was last at .*tasks\.py:\d+ in looping"),
        ("spinning_threads", r"more than 20000 opcodes; it was last at .*tasks\.py:\d+ in spinning_threads"),
        ("always_retrying", r"still comes back after 50 deliveries; the last one ended as RETRY"),
        ("killing_itself", r"still comes back after 50 deliveries; the last one ended as DIED"),
        ("at_random", r"path differs from run to run: .* in at_random"),
        ("without_effect", r"no effect that without_effect\.effects\(\) counts; it ended as SUCCESS"),
        (
            "BadPrepare",
            r"BadPrepare\.prepare\(\) failed \(line \d+ of .*redelivery_case\.py\): ZeroDivisionError",
        ),
        ("BadArguments", r"BadArguments\.prepare\(\): JSON cannot carry the arguments"),
        ("BadEffects", r"BadEffects\.effects\(\) failed .*KeyError"),
        ("BadNumber", r"BadNumber\.effects\(\): it must return a whole number, not None"),
    ],
)
def test_no_map_but_the_reason(kinds, name, words):
    """What cannot be mapped is said in one sentence that names the task and the place; the other maps are drawn."""
    found = next(each for each in kinds.values() if name in each.get("error", ""))
    assert found["error"].startswith(f"{found['task']}: ")
    assert re.search(words, found["error"]), found["error"]
    assert "Traceback" not in found["error"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no way to choose a core")
def test_each_part_stays_on_a_core_and_twins_have_all(monkeypatch):
    """Parts of one map are on different cores; what starts two deliveries at once may use as many as the parent."""
    stand_in = SimpleNamespace(draw=lambda *arguments: cores(), close=lambda: None)
    monkeypatch.setattr(drawing, "Killer", lambda case, world: stand_in)
    monkeypatch.setattr(drawing, "deliver_twice", lambda killer, crash_map: cores())
    monkeypatch.setattr(drawing, "sandbox", nullcontext)
    monkeypatch.setattr(drawing, "merge", list)
    mine = cores()
    assert {own_core(part) for part in range(len(mine))} == set(mine)
    for one, other in drawing.draw([SimpleNamespace(task="x")] * 2, duplicates=True, jobs=2):
        assert len(one.crash_map) == len(other.crash_map) == 1
        assert one.crash_map != other.crash_map or len(mine) == 1
        assert one.duplicates == mine
    assert cores() == mine


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run `crashmap` on the kinds' project."""
    return subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "'nonsense' is no task of the policy: "),
        (["--jobs", "0"], "argument --jobs"),
        (["--jobs", "-1"], "argument --jobs"),
        (["--jobs", "99"], "argument --jobs"),
        (["--html", "no/such/folder/map.html"], "--html no/such/folder/map.html: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_arguments_that_cannot_be(arguments, words):
    """Said before anything is started."""
    done = command(*arguments)
    assert done.returncode
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_folders_with_spaces_that_are_read_only(tmp_path):
    """The project is only read; the page is written where it was asked for."""
    project, page = tmp_path / "a project", tmp_path / "a page <&>.html"
    (project / "tests").mkdir(parents=True)
    for part in ("redelivery", "tests/redelivery", "tests/__init__.py"):
        if (ROOT / part).exists():
            (project / part).symlink_to(ROOT / part)
    project.chmod(0o555)
    done = command("in_a_generator", "--html", str(page), "--jobs", "1", cwd=project)
    project.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "yield &quot;before&quot;" in page.read_text()


def started_by(pid: int) -> set[int]:
    """Return the processes below a process."""
    parents = []
    for each in (int(entry.name) for entry in Path("/proc").glob("[0-9]*")):
        with suppress(OSError):
            parents.append((each, int(processes.stat_fields(each)[1])))
    below = {pid}
    while more := {child for child, parent in parents if parent in below} - below:
        below |= more
    return below - {pid}


def sandboxes_below(pid: int) -> list[Path]:
    """Return the folders of sandboxes, as the SMTP sinks below a process have them on their command lines."""
    found = []
    for below in started_by(pid):
        with suppress(OSError):
            arguments = Path(f"/proc/{below}/cmdline").read_text().split("\0")
            found += [Path(one).parent for one in arguments if one.endswith("/mails.jsonl")]
    return found


ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")


@ONLY_LINUX
def test_parent_that_has_died_before_it_could_be_noticed():
    """Asked to die with a parent that is gone, a process does so at once."""
    program = "from redelivery.testing.processes import die_with_parent; die_with_parent({}); print('lives')"
    for parent, output, status in (("os.getppid()", "lives\n", 0), ("os.getpid()", "", -signal.SIGKILL)):
        done = subprocess.run(
            [sys.executable, "-c", f"import os; {program.format(parent)}"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.returncode) == (output, status), done.stderr


@ONLY_LINUX
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path, signal_number):
    """No process, no folder, whatever ends the command."""
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    process = processes.start(
        [*COMMAND, "two_threads", "leaves_a_daemon"],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    folders = processes.wait_until(lambda: sandboxes_below(process.pid), 20, "a sandbox")
    time.sleep(1)
    below = started_by(process.pid)
    assert len(below) > 4
    os.kill(process.pid, signal_number)
    _, errors = process.communicate(timeout=10)
    processes.wait_until(
        lambda: not [f for f in folders if f.exists()] and all(map(processes.has_ended, below)),
        10,
        f"the end of {below} and {folders}",
    )
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DATABASES['default']['NAME'] = ':memory:'", "database 'default' is in memory"),
        (
            "CACHES['second']['BACKEND'] = 'django.core.cache.backends.locmem.LocMemCache'",
            "cache 'second' is ",
        ),
        ("CACHES['second']['BACKEND'] = 'django.core.cache.backends.dummy.DummyCache'", "cache 'second' is "),
    ],
    ids=["database", "locmem", "dummy"],
)
def test_stores_that_die_with_the_child_are_refused(change, words):
    """Without the sandbox, which has files and Redis instead."""
    program = (
        "import os, tests.redelivery.kinds.settings as s\n"
        "s.DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'file.sqlite3'}}\n"
        "s.CACHES['second'] = dict(s.CACHES['default'])\n"
        f"s.{change}\n"
        "import django; django.setup()\n"
        "from redelivery.testing.killer import Killer\n"
        "Killer(None, None)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
    assert f"SandboxError: {words}" in done.stderr, done.stderr


# Without processes.


def a_map(*redelivered: int, once: int = 1, guard: str = "none", file: str = "a.py", lines=None) -> CrashMap:
    """Return a map with one point a line."""
    crash_map = CrashMap("app.task", "late", guard, once=once)
    for n, count in enumerate(redelivered):
        point = Point(n, "MainThread", file, "act", (lines or range(1, 99))[n])
        crash_map.path.append(point)
        crash_map.kills.append(Kill(n, point, 0, count, False))
    return crash_map


@pytest.mark.parametrize(
    ("crash_map", "remarks"),
    [
        (a_map(1, 2, 3), ["", "twice", "too many"]),
        (a_map(0, 1), ["lost", ""]),
        (a_map(0, 1, guard="claim"), ["in doubt", ""]),
        (a_map(1, 2, 3, 4, once=2), ["lost", "", "too many", "twice"]),
        (a_map(0, 2, 1, 2, lines=[1, 1, 2, 2]), ["lost", "twice"]),
    ],
)
def test_remarks_compare_with_a_run_that_nobody_killed(tmp_path, crash_map, remarks):
    """Two effects are no gap where a whole run has two."""
    (_, rows), *_ = report.sections(crash_map, tmp_path)
    assert [row.remark for row in rows] == remarks


def test_html_is_escaped_and_legible_without_colour(tmp_path):
    """Source is text, not markup; a gap is said in words."""
    (tmp_path / "a.py").write_text('x = "<script>"\ny = 1 & 2  # ü\n', encoding="utf-8")
    crash_map = a_map(1, 2)
    crash_map.task = "app.<b>task</b>"
    page = report.as_html([crash_map], tmp_path)
    assert "&lt;script&gt;" in page
    assert "1 &amp; 2  # ü" in page
    assert "app.&lt;b&gt;task&lt;/b&gt;" in page
    assert "<script" not in page
    assert "2 twice" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_text_without_and_with_colour(tmp_path):
    """The same words; colour only where something is to be seen."""
    (tmp_path / "a.py").write_text("one\ntwo\n")
    plain, coloured = (report.as_text(a_map(1, 2), tmp_path, colour) for colour in (False, True))
    assert "   1          |    1 one" in plain
    assert "   2 twice    |    2 two" in plain
    assert re.sub(r"\033\[\d+m", "", coloured) == plain
    assert coloured.count("\033[") == 2


def test_shares_of_a_map_are_put_together():
    """In the order of the path, with the first part's duplicates; an error wins, and so does a path that differs."""
    even, odd = a_map(1, 1, 2, 2), a_map(1, 1, 2, 2)
    even.kills, odd.kills = even.kills[::2], odd.kills[1::2]
    whole = merge([Drawn("app.task", even), Drawn("app.task", odd)])
    assert [kill.redelivered for kill in whole.crash_map.kills] == [1, 1, 2, 2]
    assert merge([Drawn("app.task", even), Drawn("app.task", error="no")]).error == "no"
    assert "path differs" in merge([Drawn("app.task", even), Drawn("app.task", a_map(1))]).error


def entry(guard: str, *gaps: str) -> TaskPolicy:
    """Return a task's entry, made from one of the guards'."""
    from dataclasses import replace

    guards = load(KINDS.with_name("guards") / "ack_policy.toml").tasks.values()
    return replace(next(one for one in guards if one.guard == guard), gaps=gaps)


@pytest.mark.parametrize(
    ("guard", "gaps", "what", "seen", "faults"),
    [
        ("none", [], "killed", [1, 2], 0),
        ("none", [], "killed", [0, 2], 1),
        ("none", [], "killed", [3], 1),
        ("marker", [], "killed", [1, 2], 1),
        ("marker", ["killed between: twice"], "killed", [1, 2], 0),
        ("marker", ["killed between: twice"], "killed", [1], 1),
        ("marker", ["killed between: twice"], "twins", [2], 1),
        ("marker", ["two deliveries: twice"], "twins", [2], 0),
        ("marker", ["cache flushed: twice"], "flushed_cache", [2], 0),
        ("marker", ["cache flushed: twice"], "flushed_cache", [1], 1),
        ("claim", [], "killed", [0, 1], 0),
        ("claim", [], "completed", [0], 1),
        ("lost-ok", ["lost early on"], "killed", [0, 1], 0),
        ("lost-ok", ["lost early on"], "killed", [1], 1),
    ],
)
def test_faults(guard, gaps, what, seen, faults):
    """What was seen and not declared, and what was declared and not seen."""
    found = promises.faults(entry(guard, *gaps), what, {str(n): count for n, count in enumerate(seen)})
    assert len(found) == faults, found


@pytest.mark.parametrize("arguments", [(1, "a"), {"number": 1}])
def test_arguments_travel_as_the_broker_would_send_them(arguments):
    """Positional or by keyword."""
    args, kwargs = Message.to("app.task", arguments).decoded()
    assert (kwargs or args) == arguments


def test_one_case_a_task():
    """A second one would hide the first."""
    from redelivery.testing import case

    try:
        type("One", (case.Case,), {"task": "only.here"})
        with pytest.raises(TypeError, match=r"only\.here has two cases: One and Two"):
            type("Two", (case.Case,), {"task": "only.here"})
    finally:
        case._cases.pop("only.here")


def test_a_runner_outlives_the_death_of_its_child():
    """A child that dies says so, one that has died unseen is replaced, one that takes too long is ended."""
    program = """
import os, time
from redelivery.testing.children import Runner
acts = {"die": lambda: os._exit(1), "sleep": lambda: time.sleep(60), "leave": lambda: {"last": True}, "pid": lambda: {}}
runner = Runner(lambda question: {"state": "SUCCESS", "pid": os.getpid(), **acts[question["act"]]()})
ask = lambda act, seconds=5: runner.ask({"act": act}, seconds)
one, two = ask("pid"), ask("pid")
assert one == two
assert ask("die") == {"state": "DIED"}
assert ask("sleep", 0.1) is None
assert ask("pid")["pid"] != one["pid"]
assert ask("leave")["pid"] != ask("pid")["pid"]
os.kill(ask("pid")["pid"], 9)
time.sleep(0.1)
assert ask("pid")["state"] in ("SUCCESS", "DIED")
runner.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert children.Child.living == set()


def test_json_holds_every_point(kinds):
    """And is JSON, whatever the tasks print."""
    assert json.dumps(kinds["printing"])
    points = kinds["printing"]["points"]
    assert [p["index"] for p in points] == list(range(len(points)))
