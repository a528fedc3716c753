"""The policy file: what is derived from it, and one clear error with file and line for each mistake."""

import pytest

from redelivery import policy
from redelivery.policy import PolicyError
from tests.policy.tools import POLICY, write_policy


def change(old: str, new: str) -> str:
    assert POLICY.count(old) >= 1, old
    return POLICY.replace(old, new, 1)


def test_derived_numbers(tmp_path):
    text = (
        POLICY
        + "[queues.slow]\nconcurrency = 1\n[drain]\nmargin_s = 50\n[publish]\nlongest_countdown_s = 100\n"
    )
    found = policy.load(write_policy(tmp_path, text))
    assert found.visibility_timeout_s == 100 + 2 * 60 + 50
    assert {queue.name: queue.stop_timeout_s for queue in found.queues.values()} == {"main": 110, "slow": 50}
    assert found.default_queue == "main"
    mail, count = found.tasks["shop.tasks.mail"], found.tasks["shop.tasks.count"]
    assert (mail.soft_time_limit_s, count.soft_time_limit_s) == (54, 27)
    assert (mail.marker_days, count.marker_days) == (30, None)
    assert (mail.line, count.line, found.queues["slow"].line) == (4, 12, 19)


def test_order_of_the_times(tmp_path):
    """Soft < hard < stop; hard and countdown < visibility; the marker outlives the visibility."""
    for hard_s in (2, 3, 9, 10, 11, 59, 100, 3600, 86_400):
        text = change("time_limit_s = 60", f"time_limit_s = {hard_s}")
        found = policy.load(write_policy(tmp_path, text))
        task = found.tasks["shop.tasks.mail"]
        assert 0 < task.soft_time_limit_s < task.time_limit_s
        assert task.time_limit_s + policy.POOL_JOIN_S < found.queues["main"].stop_timeout_s
        assert 2 * task.time_limit_s + found.longest_countdown_s < found.visibility_timeout_s
        assert found.visibility_timeout_s < task.marker_days * 86_400


def test_annotations(tmp_path):
    found = policy.load(write_policy(tmp_path))
    late, early = (found.tasks[f"shop.tasks.{name}"].annotation(True) for name in ("mail", "count"))
    assert (late["acks_late"], late["reject_on_worker_lost"]) == (True, True)
    assert (early["acks_late"], early["reject_on_worker_lost"]) == (False, False)
    assert (late["time_limit"], late["soft_time_limit"]) == (60, 54)
    assert (late["acks_on_timeout"], early["acks_on_timeout"]) == (False, True)


def test_hard_limit_is_acknowledged_where_nothing_counts_it(tmp_path):
    """Alone it would come back for ever (measured)."""
    found = policy.load(write_policy(tmp_path))
    assert found.tasks["shop.tasks.mail"].annotation(counted=False)["acks_on_timeout"]


def test_crash_retries(tmp_path):
    late, early = policy.load(write_policy(tmp_path)).tasks.values()
    assert (late.crash_retries, early.crash_retries) == (policy.DEFAULT_CRASH_RETRIES, None)
    text = POLICY.replace(MARKER, MARKER + "\ncrash_retries = 0")
    assert policy.load(write_policy(tmp_path, text)).tasks["shop.tasks.mail"].crash_retries == 0


def test_a_policy_without_tasks(tmp_path):
    found = policy.load(write_policy(tmp_path, "[queues.main]\nconcurrency = 2\n"))
    assert (found.tasks, found.queues["main"].stop_timeout_s) == ({}, 45)


def test_inline_tables_dotted_keys_and_windows_line_ends(tmp_path):
    text = POLICY.split("[tasks")[0] + (
        'tasks."a.b" = { queue = "main", ack = "late", guard = "none", time_limit_s = 5, '
        'reason = "Twice is fine here." }'
    )
    text = text.replace("[queues.main]\nconcurrency = 2", "queues.main.concurrency = 2").replace("\n", "\r\n")
    found = policy.load(write_policy(tmp_path, "\ufeff" + text))
    assert found.tasks["a.b"].line == 3


HEADER = '[tasks."shop.tasks.mail"]'
LIMIT = "time_limit_s = 60"
MARKER = 'guard        = "marker"'
REASON = 'reason       = "A customer must get the mail, and should get it once."'
GAP = '["killed after the send and before the marker: sent twice"]'
#: name: (text of the file, line of the mistake, what the message must say)
BAD = {
    "not TOML": (change('queue        = "main"', 'queue        = "main'), 5, "not valid TOML"),
    "cut short": (POLICY + '[tasks."x', 19, "not valid TOML"),
    "task twice": (POLICY + '\n[tasks."shop.tasks.mail"]\n', 20, "not valid TOML"),
    "key twice": (change(MARKER, MARKER + "\n" + MARKER), 8, "not valid TOML"),
    "empty": ("", 1, "no queue is declared"),
    "only a comment": ("# nothing\n", 1, "no queue is declared"),
    "unknown table": (POLICY + "[queue.other]\nconcurrency = 1\n", 19, "did you mean 'queues'"),
    "unknown key of a task": (change("time_limit_s", "timelimit_s"), 8, "did you mean 'time_limit_s'"),
    "unknown key of a queue": (change("concurrency", "concurency"), 2, "did you mean 'concurrency'"),
    "unknown key of drain": ("[drain]\nmargin = 50\n" + POLICY, 2, "did you mean 'margin_s'"),
    "unknown key of publish": ("[publish]\ncountdown = 50\n" + POLICY, 2, "'countdown'"),
    "loose key": ("timeout = 5\n" + POLICY, 1, "'timeout'"),
    "drain is no table": ("drain = 45\n" + POLICY, 1, "drain must be a table"),
    "tasks is no table": ('tasks = ["a"]\n' + POLICY.split("[tasks")[0], 1, "tasks must be a table"),
    "task is no table": (POLICY + '[tasks]\n"a.b" = 5\n', 20, "must be a table"),
    "queue is no table": ("[queues]\nmain = 2\n", 2, "queues.main must be a table"),
    "margin too small": ("[drain]\nmargin_s = 30\n" + POLICY, 2, "must be more than 30"),
    "margin no number": ('[drain]\nmargin_s = "45"\n' + POLICY, 2, "must be a whole number"),
    "countdown negative": ("[publish]\nlongest_countdown_s = -1\n" + POLICY, 2, "from 0 to"),
    "countdown too long": ("[publish]\nlongest_countdown_s = 100000\n" + POLICY, 2, "from 0 to 86400"),
    "queue without concurrency": (change("concurrency = 2\n", ""), 1, "has no concurrency"),
    "concurrency 0": (change("concurrency = 2", "concurrency = 0"), 2, "from 1"),
    "concurrency true": (change("concurrency = 2", "concurrency = true"), 2, "a boolean"),
    "queue name": (change("[queues.main]", '[queues."Main Queue"]'), 1, "must have no blank and no comma"),
    "undeclared queue": (change('"main"', '"maim"'), 5, "did you mean 'main'"),
    "queue no text": (change('queue        = "main"', "queue        = 5"), 5, "queue must be a text"),
    "no queue": (change('queue        = "main"\n', ""), 4, "has no queue"),
    "no ack": (change('ack          = "late"\n', ""), 4, "has no ack"),
    "no guard": (change(MARKER + "\n", ""), 4, "has no guard"),
    "no limit": (change("time_limit_s = 60\n", ""), 4, "has no time_limit_s"),
    "no reason": (change(REASON + "\n", ""), 4, "has no reason"),
    "unknown ack": (change('"late"', '"on-success"'), 6, "ack 'on-success'"),
    "unknown guard": (change('"marker"', '"maker"'), 7, "did you mean 'marker'"),
    "marker acks early": (change('"late"', '"early"'), 7, 'needs ack = "late"'),
    "lost-ok acks late": (change('"early"', '"late"'), 15, 'needs ack = "early"'),
    "limit 0": (change("time_limit_s = 60", "time_limit_s = 0"), 8, "from 2 to 86400"),
    "limit negative": (change("time_limit_s = 60", "time_limit_s = -60"), 8, "from 2 to 86400"),
    "limit in milliseconds": (change("time_limit_s = 60", "time_limit_s = 600000"), 8, "from 2 to 86400"),
    "limit a fraction": (change("time_limit_s = 60", "time_limit_s = 60.5"), 8, "must be a whole number"),
    "limit a text": (change("time_limit_s = 60", 'time_limit_s = "1m"'), 8, "must be a whole number"),
    "limit endless": (change("time_limit_s = 60", "time_limit_s = inf"), 8, "must be a whole number"),
    "soft equals hard": (change(LIMIT, LIMIT + "\nsoft_time_limit_s = 60"), 9, "below time_limit_s"),
    "soft over hard": (change(LIMIT, "soft_time_limit_s = 90\n" + LIMIT), 8, "below time_limit_s"),
    "marker_days without marker": (POLICY + "marker_days = 5\n", 19, "goes with guard"),
    "marker_days 0": (change(MARKER, MARKER + "\nmarker_days = 0"), 8, "from 1"),
    "marker dies before the message": (
        change("time_limit_s = 60", "marker_days = 1\ntime_limit_s = 80000"), 8, "lives 1 days"),
    "crash_retries negative": (change(MARKER, MARKER + "\ncrash_retries = -1"), 8, "from 0 to 100"),
    "crash_retries early": (POLICY + "crash_retries = 3\n", 19, 'goes with ack = "late"'),
    "crash_retries no number": (change(MARKER, MARKER + '\ncrash_retries = "3"'), 8, "a whole number"),
    "reason empty": (change(REASON, 'reason = ""'), 9, "is not a reason"),
    "reason todo": (change(REASON, 'reason = "TODO: write down the reason"'), 9, "is not a reason"),
    "reason one word": (change(REASON, 'reason = "because"'), 9, "is not a reason"),
    "reason dots": (change(REASON, 'reason = "... ... ... ..."'), 9, "is not a reason"),
    "reason repeated": (change(REASON, 'reason = "because because because because"'), 9, "is not a reason"),
    "reason over lines": (change(REASON, 'reason = """\ntbd, we will\nsee later"""'), 9, "is not a reason"),
    "reason no text": (change(REASON, "reason = 1979-05-27"), 9, "a date or time"),
    "gaps no list": (change(GAP, '"killed: sent twice"'), 10, "gaps must be a list"),
    "gaps of numbers": (change(GAP, "[1, 2]"), 10, "gaps must be a list of texts"),
    "gap of no kind": (change(GAP, '["sometimes sent twice"]'), 10, 'must begin with one of "killed"'),
    "gap that only looks like a kind": (change(GAP, '["killedness"]'), 10, "must begin with one of"),
    "gap in a list over lines": (change(GAP, '[\n  "killed: twice",\n  "oops",\n]'), 10, "'oops'"),
    "gap that the guard cannot have": (change(GAP, '["lost at times"]'), 10, 'no gap of the kind "lost"'),
    "gap twice": (change(GAP, '["killed: twice", "killed: twice"]'), 10, "declared twice"),
    "name without quotes": (change(HEADER, "[tasks.shop.tasks.mail]"), 4, f"write {HEADER}"),
    "name empty": (change('"shop.tasks.mail"', '""'), 4, "is not a task name"),
    "name with a line break": (change('"shop.tasks.mail"', '"send\\nmail"'), 4, "is not a task name"),
    "Celery's own task": (change('"shop.tasks.mail"', '"celery.backend_cleanup"'), 4, "are exempt"),
    "empty table of a task": (POLICY + '[tasks."a.b"]\n', 19, "has no queue"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_each_mistake_gives_one_error_with_its_line(tmp_path, name):
    text, line, says = BAD[name]
    path = write_policy(tmp_path, text)
    with pytest.raises(PolicyError) as caught:
        policy.load(path)
    error = caught.value
    assert (error.path, error.line) == (path, line)
    assert says in error.message
    assert str(error) == f"{path}:{line}: {error.message}"
    assert "\n" not in str(error)


def test_a_mistake_in_an_entry_names_the_task(tmp_path):
    for name, (text, _, _) in BAD.items():
        if '"shop.tasks.mail"' in text and name.startswith(
            ("reason", "gap", "limit", "soft", "marker", "no ", "crash")
        ):
            with pytest.raises(PolicyError, match=r"shop\.tasks\.(mail|count)"):
                policy.load(write_policy(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        policy.load(tmp_path / "missing.toml")
    with pytest.raises(PolicyError, match="cannot be read"):
        policy.load(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(POLICY.encode() + b"# caf\xe9\n[drain]\n")
    with pytest.raises(PolicyError, match=r"latin\.toml:19: .*UTF-8"):
        policy.load(latin)


@pytest.mark.parametrize(
    ("text", "says"),
    [(f"a = {'1' * 5000}", "far too long"), ("a = " + "[" * 3000, "nested too deeply")],
    ids=["number", "nesting"],
)
def test_files_that_no_parser_likes(tmp_path, text, says):
    with pytest.raises(PolicyError, match=says):
        policy.load(write_policy(tmp_path, text))


def test_paths_below_the_working_directory_are_shown_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError, match=r"^ack_policy\.toml:1: "):
        policy.load(write_policy(tmp_path, ""))


def test_the_setting_is_missing(settings):
    settings.ACK_POLICY_FILE = None
    with pytest.raises(PolicyError, match="ACK_POLICY_FILE is not set"):
        policy.current()
