"""What the tests ask of a lab."""

import time

from transports.lab import group_of

from tests.broker.conftest import LEASE_S

#: Our keys and kombu's in which a message may be.
KEYS = ("lab", "lab2", "lab3", "unacked", "unacked_index", "redelivery.leases", "redelivery.parked")


def run(lab, seconds, number=1, **options):
    """Send a task that takes so long, wait until it runs, and return its message."""
    sent = lab.sender.work(number, seconds, **options)
    lab.wait(lambda: lab.starts(sent.message), 30, "the task to start", lab.workers[0])
    return sent


def owner(lab, sent):
    """Return the worker that started a message last."""
    pid = lab.starts(sent.message)[-1].pid
    return next(worker for worker in lab.workers if worker.alive() and pid in group_of(worker.process.pid))


def done(lab, sent, seconds=60):
    """Wait until each of the messages has been run to its end, and nothing is left in Redis."""
    messages = [one.message for one in sent]
    lab.wait(lambda: all(lab.ends(one) for one in messages), seconds, "the tasks to end", lab.workers[0])
    client = lab.client()
    lab.wait(lambda: not client.exists(*KEYS), 30, f"nothing to be left in {KEYS}", lab.workers[0])


def starts(lab, sent, wait_s=LEASE_S * 1.5):
    """Return how often each message was started, once another start could have come."""
    time.sleep(wait_s)
    return [len(lab.starts(one.message)) for one in sent]
