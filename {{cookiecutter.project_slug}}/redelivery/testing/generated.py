"""The tests that exist for every entry of ack_policy.toml without being written.

Use: a test module with the one line `from redelivery.testing.generated import *  # noqa: F403`. A task needs a case
(`redelivery.testing.case`), nothing else.
"""

import os

import pytest

from redelivery import force, policy
from redelivery.testing.case import all_cases
from redelivery.testing.evidence import Evidence, by_place
from redelivery.testing.promises import RUNS, faults, runs

_EMPTY = pytest.param(None, marks=pytest.mark.skip(reason="ack_policy.toml has no task yet"))


def tasks(*, with_case: bool = True) -> list:
    """Return the names of the policy's tasks for parametrize: those with a case, or all that acknowledge late."""
    cases = all_cases()
    entries = policy.current().tasks.values()
    chosen = [e.name for e in entries if (e.name in cases if with_case else e.ack == "late")]
    return chosen or [_EMPTY]


@pytest.fixture(scope="session")
def evidence(request):
    """The experiments on this project's tasks, as far as the collected tests ask for them."""

    def tasks_of(parameters: dict) -> list[str]:
        return [parameters["task"]] if parameters.get("task") in policy.current().tasks else []

    experiments = Evidence.of_session(os.environ["DJANGO_SETTINGS_MODULE"], request.session, tasks_of)
    yield experiments
    experiments.stop()


@pytest.mark.parametrize("task", tasks(with_case=False))
def test_late_ack_task_has_a_case(task):
    """A task that is delivered again must be tested so, once somebody has decided how it is acknowledged."""
    if policy.current().tasks[task].is_open and task not in all_cases():
        pytest.skip(f"{task} is an open decision")
    assert task in all_cases(), (
        f"{task} acknowledges late and has no case: write one in a module redelivery_case.py of its app"
    )


@pytest.mark.parametrize("task", tasks())
def test_crash_map_equals_declared_gaps(evidence, task):
    """Killed before any opcode and delivered again: what the policy declares, no more and no less."""
    found = faults(policy.current().tasks[task], "killed", by_place(evidence.map_of(task)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("task", tasks())
def test_whole_run_delivered_again(evidence, task):
    """Killed after the task returned and before it was acknowledged."""
    once = evidence.map_of(task)["once"]
    assert once == 1, f"{task}: one whole run has {once} effects; let the case's effects() count one thing"
    found = faults(
        policy.current().tasks[task], "completed", {"whole run": evidence.map_of(task)["completed"]}
    )
    assert not found, "\n".join(found)


@pytest.mark.parametrize("task", tasks())
@pytest.mark.parametrize("kind", ["twins", "second_message", "flushed_cache"])
def test_delivered_twice(evidence, task, kind):
    """Two deliveries at the same moment, a second message of the same call, a flushed cache between two deliveries."""
    found = faults(policy.current().tasks[task], kind, {kind: evidence.map_of(task)["duplicates"][kind]})
    assert not found, "\n".join(found)


@pytest.mark.parametrize("event", RUNS)
@pytest.mark.parametrize("task", tasks())
def test_real_kill(evidence, task, event):
    """A real worker on a real Redis: as many runs as the table says, and the effects that the crash map foretold."""
    entry = policy.current().tasks[task]
    outcomes = [outcome for outcome in evidence.kills_of(task) if outcome["event"] == event]
    assert outcomes, f"{task} was never held for {event}"
    for outcome in outcomes:
        assert outcome["runs"] == runs(event, entry.ack, force.in_force().transport), outcome
        assert outcome["effects"] == outcome["foretold"], (
            f"{outcome} (two calls share one world here: does prepare() give each its own rows and recipients?)"
        )
