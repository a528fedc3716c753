"""The worker is killed at the 50th of 100 sends, and another one takes over: duplicates? rows that nobody looks at?"""

from contextlib import ExitStack

from payments.proofs.field import Field, parser, show
from redelivery.testing.processes import wait_until


def main(arguments: list[str]) -> int:
    """Run it; exit status 1 if there is a duplicate or a row that nobody was told of."""
    parsing = parser("fiftieth", __doc__)
    parsing.add_argument("--payments", type=int, default=100)
    options = parsing.parse_args(arguments)
    with ExitStack() as stack:
        field = Field(stack, "fiftieth", options.dead_after)
        worker = field.start_worker()
        field.provider.behave(kill=worker.pid, kill_at=options.payments // 2)
        for number in range(options.payments):
            field.order(number)
        wait_until(lambda: worker.poll() is not None, 60, "the worker to be killed")
        field.workers.remove(worker)
        then = dict(field.states())
        field.provider.behave()
        field.start_worker()
        field.until(field.nothing_moves, 180, "everything to be settled or with a person")
        books = field.books()
        calls = len(field.provider.calls())
    return show("killed at the middle send", books, {"rows at the kill": then, "provider calls": calls})
