"""What a claim costs among more and more settled payments, on PostgreSQL, with the plans; needs DATABASE_URL."""

import argparse
import statistics
import time

from django.db import connection
from django.db.models.functions import Now

from payments.models import Payment, State
from payments.redelivery_case import pending
from payments.statements import read_payment
from redelivery.testing.sandbox import sandbox

FILL = """
WITH orders AS (
    INSERT INTO payments_order (id, customer, method, amount, currency)
    SELECT gen_random_uuid(), 'cus_' || n, 'pm_card', 100, 'EUR' FROM generate_series(1, %s) AS n RETURNING id
)
INSERT INTO payments_payment
    (order_id, provider_key, digest, state, attempt, reference, contradicted, claimed_at, settled_at)
SELECT id, gen_random_uuid(), repeat('0', 64), 'sent', 1, 'ch', false, now(), now() FROM orders
"""


def milliseconds(function) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    function()
    return (time.perf_counter() - begun) * 1000


def claim_once(pk: int) -> None:
    """Read and claim as the task does."""
    assert read_payment(str(pk)).claim()


def due():
    """The sweep's question."""
    rows = Payment.objects.filter(settled_at=None, state__in=(State.PENDING,), due_at__lte=Now())
    return rows.order_by("due_at")[:500]


def measure(size: int, claims: int) -> dict:
    """Return the milliseconds of a claim and of the sweep's question, with so many settled payments around.

    The median, and the fastest tenth: what else the machine does meanwhile slows the others.
    """
    with connection.cursor() as cursor:
        cursor.execute(FILL, [size - Payment.objects.exclude(settled_at=None).count()])
        cursor.execute("VACUUM ANALYZE payments_payment")
        cursor.execute("VACUUM ANALYZE payments_order")
    keys = [pending().pk for _ in range(claims)]
    Payment.objects.filter(pk__in=keys).update(due_at=Now())
    swept = statistics.median(milliseconds(lambda: list(due())) for _ in range(20))
    claimed = sorted(milliseconds(lambda pk=pk: claim_once(pk)) for pk in keys)
    Payment.objects.filter(pk__in=keys).update(state=State.SENT, settled_at=Now(), due_at=None)
    return {
        "settled": size,
        "claim_ms": statistics.median(claimed),
        "fastest_ms": statistics.median(claimed[: max(1, len(claimed) // 10)]),
        "sweep_ms": swept,
    }


def plans() -> str:
    """Return PostgreSQL's plans of the claim and of the sweep's question."""
    payment = pending()
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        claim_once(payment.pk)
        list(due())
    texts = []
    for sql, parameters in recorder.statements:
        if "UPDATE" in sql or "due_at" in sql.partition("WHERE")[2]:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {sql}", parameters)
                texts.append("\n".join(row[0] for row in cursor.fetchall()))
    return "\n\n".join(texts)


class Recorder:
    """Notes every statement that is executed."""

    def __init__(self):
        self.statements = []

    def __call__(self, execute, sql, parameters, many, context):
        self.statements.append((sql, parameters))
        return execute(sql, parameters, many, context)


def main(arguments: list[str]) -> int:
    """Print a line for each size and the ratio of the largest to the smallest; exit status 1 above 1.5."""
    parser = argparse.ArgumentParser(prog="claims", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--claims", type=int, default=400)
    options = parser.parse_args(arguments)
    if connection.vendor != "postgresql":
        print(
            "DATABASE_URL is not PostgreSQL: the claim's cost among a million rows is a question for production."
        )
        return 2
    with sandbox():
        measure(options.sizes[0], 50)  # warm up
        found = [measure(size, options.claims) for size in options.sizes]
        shown = plans()
    line = "{settled:>9} settled: claim {claim_ms:.2f} ms, fastest tenth {fastest_ms:.2f} ms, sweep {sweep_ms:.2f} ms"
    for one in found:
        print(line.format(**one))
    ratio = found[-1]["fastest_ms"] / found[0]["fastest_ms"]
    print(
        f"fastest claims among {found[-1]['settled']} / among {found[0]['settled']}: {ratio:.2f}\n\n{shown}"
    )
    return 0 if ratio <= 1.5 else 1
