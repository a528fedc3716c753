"""Rows a second with a provider that does nothing, against django-reliable-outbox 0.1.1, alternating in one run.

Needs PostgreSQL (DATABASE_URL), Python 3.12, and `pip install django-reliable-outbox==0.1.1`. That one claims ten rows
at a time and handles each in one transaction; ours claims one by one, and commits the claim before it sends.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable


def setup() -> None:
    """Enter the settings with both apps."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "payments.proofs.peer_settings"
    import django

    django.setup()


class Nothing:
    """A provider that does nothing."""

    def __getattr__(self, name):
        from payments.providers.simulated import Simulated

        return getattr(Simulated("http://127.0.0.1:1", 10.0), name)

    def send(self, request):
        """Accept."""
        from payments.providers import Accepted

        return Accepted("nothing", "ch_0")


def fill_ours(count: int) -> list[int]:
    """Write pending payments; return their keys."""
    from payments.redelivery_case import pending

    return [pending().pk for _ in range(count)]


def ours(keys: list[int]) -> None:
    """Send payments as the task does."""
    from payments import sending
    from payments.tasks import send_payment

    nothing = Nothing()
    sending.provider = lambda: nothing
    for key in keys:
        assert send_payment.run(str(key)) == "sent"


def fill_theirs(count: int) -> list[int]:
    """Write jobs of the other outbox."""
    from reliable_outbox import job

    nothing = job(does_nothing)
    for number in range(count):
        nothing.enqueue(number)
    return list(range(count))


def does_nothing(number: int) -> None:
    """The other outbox's provider."""


def theirs(keys: list[int]) -> None:
    """Run a worker of the other outbox until nothing is left."""
    from reliable_outbox import job
    from reliable_outbox.worker import Worker

    job(does_nothing)
    Worker(notify=False).run(burst=True)


def rate(fill: Callable, work: Callable, rows: int, processes: int) -> float:
    """Return the rows a second of so many processes."""
    from django.db import connections

    keys = fill(rows)
    connections.close_all()
    context = multiprocessing.get_context("fork")
    start = context.Event()

    def run(mine: list[int]) -> None:
        start.wait()
        work(mine)

    workers = [context.Process(target=run, args=(keys[part::processes],)) for part in range(processes)]
    for worker in workers:
        worker.start()
    time.sleep(0.5)
    begun = time.perf_counter()
    start.set()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("a process failed; its message is above")
    return rows / (time.perf_counter() - begun)


def main(arguments: list[str]) -> int:
    """Print pairs of rates and the median of their ratios; exit status 1 below 0.5."""
    parser = argparse.ArgumentParser(prog="rates", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        import reliable_outbox  # noqa: F401
    except (ImportError, SyntaxError) as error:
        print(f"{error}: this needs Python 3.12 and `pip install django-reliable-outbox==0.1.1`.")
        return 2
    setup()
    from redelivery.testing.sandbox import sandbox

    ratios = []
    with sandbox():
        for number in range(options.rounds + 1):
            size = options.rows if number else 200  # the first one warms up
            pair = {}
            for name, fill, work in (("theirs", fill_theirs, theirs), ("ours", fill_ours, ours)):
                pair[name] = rate(fill, work, size, options.processes)
            if number:
                ratios.append(pair["ours"] / pair["theirs"])
                print(
                    f"ours {pair['ours']:.0f}/s, theirs {pair['theirs']:.0f}/s: {ratios[-1]:.2f}", flush=True
                )
    ratio = statistics.median(ratios)
    print(
        f"{options.processes} process(es): median ratio {ratio:.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return 0 if ratio >= 0.5 else 1
