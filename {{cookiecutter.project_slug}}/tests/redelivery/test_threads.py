"""When a thread is taken to wait, and when a path of several threads is believed."""

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from redelivery.testing.killer import ATTEMPTS, Killer
from redelivery.testing.threads import Watch


@pytest.fixture
def waiting():
    """A thread that waits for an event."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield thread
    done.set()
    thread.join()


@pytest.mark.parametrize(
    ("states", "rests"),
    [
        (itertools.repeat(("S", "7")), True),
        ((("S", str(times)) for times in itertools.count()), False),
        (itertools.repeat(("R", "7")), False),
        (itertools.repeat(("D", "7")), False),
    ],
    ids=["it sleeps", "it wakes again and again", "it waits for a core", "it waits for the disk"],
)
def test_thread_rests_when_nothing_but_another_thread_can_wake_it(monkeypatch, waiting, states, rests):
    monkeypatch.setattr(Watch, "sleep", lambda watch: next(states))
    watch, seen, end = Watch(waiting), False, time.monotonic() + (30 if rests else 0.2)
    while not seen and time.monotonic() < end:
        seen = watch.rests()
        time.sleep(0.001)
    assert seen is rests


def test_thread_that_has_not_begun_does_not_rest():
    assert not Watch(threading.Thread()).rests()


@pytest.mark.parametrize(
    ("runs", "settled", "made"),
    [
        (["odd", "usual", "usual", "later"], "usual", 3),
        (["usual", "usual", "later"], "usual", 2),
        ([str(number) for number in range(20)], str(ATTEMPTS), ATTEMPTS + 1),
    ],
    ids=["an odd one first", "they agree at once", "they never agree"],
)
def test_path_of_several_threads_is_what_two_runs_agree_on(monkeypatch, runs, settled, made):
    def path(name):
        return [SimpleNamespace(thread=thread, name=name) for thread in ("MainThread", "twin")], 1, 1

    killer, left = object.__new__(Killer), iter(runs)
    killer.grace_s = 2
    monkeypatch.setattr(Killer, "whole_run", lambda killer: path(next(left)))
    assert killer.settled_run() == path(settled)
    assert len(list(left)) == len(runs) - made
