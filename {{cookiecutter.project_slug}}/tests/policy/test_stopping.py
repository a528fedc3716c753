"""The end of a stop: the sleeps that are made short are those that Celery has, and a poll ends when a stop begins."""

import os
import threading
from types import SimpleNamespace

import pytest
from billiard import pool as billiard_pool
from celery import signals
from celery.concurrency import asynpool, prefork
from kombu.asynchronous import Hub

from redelivery import stopping, versions


@pytest.fixture
def slept(monkeypatch):
    """What was slept, in seconds; nothing is slept. The modules are as before afterwards."""
    slept = []
    monkeypatch.setattr(stopping.time, "sleep", slept.append)
    for module, name in ((asynpool, "sleep"), (prefork, "time"), (billiard_pool, "time")):
        monkeypatch.setattr(module, name, getattr(module, name, None), raising=False)
    return slept


def test_process_that_was_told_to_end_does_so(slept, monkeypatch):
    """Billiard's own code runs, up to the exit."""
    worker = billiard_pool.Worker.__new__(billiard_pool.Worker)
    worker.outq = SimpleNamespace(put=lambda message: None)
    worker.on_exit = lambda pid, exitcode: stopping._ends(pid=pid, exitcode=exitcode)
    monkeypatch.setattr(billiard_pool.os, "_exit", lambda status: None)
    worker._do_exit(1, billiard_pool.EX_RECYCLE)
    worker._do_exit(1, None)  # as of one that has read the sentinel
    assert slept == [1, stopping.SLEEP_S]


def test_names_are_those_of_celery(slept):
    """Where a release sleeps by another name, the stop is slow again, and this says so."""
    stopping._begins()
    asynpool.sleep(0.5)
    assert slept == [stopping.SLEEP_S]
    assert "sleep" in asynpool.ResultHandler._flush_outqueue.__code__.co_names
    loops = [code for code in prefork.TaskPool.on_stop.__code__.co_consts if hasattr(code, "co_names")]
    assert any({"time", "sleep"} <= {*loop.co_names} for loop in loops) or not versions.SPLITS_TIMEOUTS
    assert prefork.time.monotonic is stopping.time.monotonic


def test_stop_ends_the_poll():
    """The loop would poll for a minute."""
    hub = Hub()
    hub.timer.call_after(60, lambda: None)
    hub.fire_timers = lambda **options: 60
    silent, _ = os.pipe()
    hub.add_reader(silent, lambda: None)  # as from a broker that has nothing to say
    waker = stopping.Waker(None)
    waker.register_with_event_loop(None, hub)
    loop = hub.create_loop()
    turn = threading.Thread(target=next, args=(loop,), daemon=True)
    turn.start()
    signals.worker_shutting_down.send(sender=None, sig="SIGTERM", how="Warm", exitcode=0)
    turn.join(30)
    assert not turn.is_alive()
    signals.worker_shutting_down.disconnect(dispatch_uid="redelivery.stopping.wake")
