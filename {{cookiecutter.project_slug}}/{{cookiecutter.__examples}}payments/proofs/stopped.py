"""A worker is stopped (SIGSTOP) in its send past its limits; reconciliation settles the row; the worker goes on."""

import os
import signal
import time
from contextlib import ExitStack

from payments.proofs.field import TIME_LIMIT_S, Field, parser, show
from redelivery.testing.kills import Worker
from redelivery.testing.processes import wait_until


def main(arguments: list[str]) -> int:
    """Run it; exit status 1 if the late answer is not kept or changes the state."""
    options = parser("stopped", __doc__).parse_args(arguments)
    with ExitStack() as stack:
        # More time for the answer than from the charge to the stop, on a busy machine, too.
        field = Field(stack, "stopped", options.dead_after, timeout_s=2)
        stopped = field.start_worker()
        field.provider.behave("accept", hold=True)
        field.order(1)
        wait_until(field.provider.charges, 60, "the charge")
        field.signal(stopped, signal.SIGSTOP)
        field.provider.behave()  # the answer goes out, to a process that stands still
        time.sleep(options.dead_after + TIME_LIMIT_S)
        field.start_worker()
        field.until(field.nothing_moves, 60, "reconciliation to settle the row")
        from payments.models import Payment
        from payments.records import Evidence

        settled = Payment.objects.get()
        before = Evidence.objects.count()
        # The pool process first: its parent would kill it at once, for its limit.
        for pid in Worker.children(type("Stopped", (), {"pid": stopped.pid})()):
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: Evidence.objects.count() > before, 20, "the late answer")
        field.signal(stopped, signal.SIGCONT)
        late = Evidence.objects.latest("pk")
        row = Payment.objects.get()
        settler = row.evidence_set.filter(after=row.state).exclude(before=row.state).get()
        same = (row.state, row.attempt, row.settled_at) == (
            settled.state,
            settled.attempt,
            settled.settled_at,
        )
        books = field.books()
    more = {
        "settled by": str(settler),
        "late answer": f"{late.who}: {late.seen}",
        "state overwritten": not same,
    }
    return show("stopped past its limits", books, more) or int(not same or late.who != "worker")
