"""What each guard promises, measured on small tasks; the README's tables are printed from the same data."""

from pathlib import Path

import pytest

from redelivery import policy
from redelivery.testing import promises
from redelivery.testing.evidence import Evidence, by_place

GUARDS = policy.load(Path(__file__).parent / "guards" / "ack_policy.toml").tasks
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="session")
def evidence(request):
    """The experiments on the guards' project, as far as the collected tests ask for them."""

    def tasks_of(parameters: dict) -> list[str]:
        wanted = parameters.get("name"), parameters.get("guard")
        return [entry.name for entry in GUARDS.values() if entry.name in wanted or entry.guard in wanted]

    evidence = Evidence.of_session("tests.redelivery.guards.settings", request.session, tasks_of)
    yield evidence
    evidence.stop()


def seen(evidence, guard: str, what: str) -> set[int]:
    """Return every count that was seen for the tasks of one guard."""
    counts = set()
    for entry in GUARDS.values():
        if entry.guard == guard:
            crash_map = evidence.map_of(entry.name)
            if what == "killed":
                counts |= set(by_place(crash_map).values())
            else:
                counts.add(crash_map["completed"] if what == "completed" else crash_map["duplicates"][what])
    return counts


@pytest.mark.parametrize("what", ["killed", "completed", "twins", "second_message", "flushed_cache"])
@pytest.mark.parametrize("name", GUARDS)
def test_declared_equals_measured(evidence, name, what):
    """The generated tests' own comparison, on the guards' tasks."""
    crash_map = evidence.map_of(name)
    counts = {"killed": by_place(crash_map), "completed": {"whole run": crash_map["completed"]}}
    found = promises.faults(GUARDS[name], what, counts.get(what) or {what: crash_map["duplicates"][what]})
    assert not found, "\n".join(found)


@pytest.mark.parametrize("what", ["killed", "completed", "twins", "second_message"])
@pytest.mark.parametrize("guard", promises.MEASURED)
def test_plain_examples_show_what_the_guard_table_prints(evidence, guard, what):
    """No count more, and none less."""
    assert seen(evidence, guard, what) == promises.MEASURED[guard][what]


@pytest.mark.parametrize("event", promises.RUNS)
@pytest.mark.parametrize("name", GUARDS)
def test_real_kill_equals_the_documented_table(evidence, name, event):
    """Real workers, real Redis, real signals: runs and effects as the documentation prints them."""
    entry = GUARDS[name]
    outcomes = [outcome for outcome in evidence.kills_of(name) if outcome["event"] == event]
    assert {outcome["held"] for outcome in outcomes} == {promises.BEFORE, promises.AFTER}
    for outcome in outcomes:
        assert outcome["runs"] == promises.RUNS[event][entry.ack], outcome
        assert outcome["effects"] == promises.expected_effects(entry.guard, event, outcome["held"]), outcome
        assert outcome["effects"] == outcome["foretold"], outcome


@pytest.mark.parametrize("table", [promises.guard_table, promises.kill_table], ids=["guards", "kills"])
def test_the_readme_prints_the_tables(table):
    """The README's tables are these, to the letter."""
    assert table() in README.read_text(), f"put this into README.md:\n{table()}"
