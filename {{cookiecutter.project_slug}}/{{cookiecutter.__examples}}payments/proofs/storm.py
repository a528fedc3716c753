"""Workers die, the broker restarts, every message comes twice, the provider misbehaves: do the books agree?"""

import argparse
import random
import time
from contextlib import ExitStack

from payments.proofs.field import Field, parser, show

# Refused credentials stop everything until a person mends them: they have tests of their own.
TROUBLE = [
    "reject",
    "rate",
    "error before",
    "error after",
    "garbage after",
    "hang after",
    "hang before",
    "drop after",
    "drop before",
]


def main(arguments: list[str]) -> int:
    """Run the storm; exit status 1 if books and rows differ."""
    parsing = parser("storm", __doc__)
    parsing.add_argument("--payments", type=int, default=1000)
    parsing.add_argument("--workers", type=int, default=8)
    parsing.add_argument("--kills", type=int, default=50)
    parsing.add_argument("--share", type=float, default=0.05, help="of the provider's calls that go wrong")
    parsing.add_argument("--seed", type=int, default=1)
    options = parsing.parse_args(arguments)
    chance = random.Random(options.seed)
    begun = time.monotonic()
    with ExitStack() as stack:
        field = Field(stack, "storm", options.dead_after)
        field.provider.behave(TROUBLE, share=options.share)
        for _ in range(options.workers):
            field.start_worker()
        kills = storm(field, options, chance)
        field.until(field.nothing_moves, 600, "everything to be settled or with a person")
        calls = len(field.provider.calls())
        more = {"payments": options.payments, "kills": kills, "broker restarts": 1, "provider calls": calls}
        books = field.books()
    return show("storm", books, more | {"seconds": round(time.monotonic() - begun)})


def storm(field: Field, options: argparse.Namespace, chance: random.Random) -> int:
    """Place the orders, each published twice, while workers die; return how many did."""
    from payments.models import Payment
    from payments.publishing import publish_payment

    kills, placed = 0, 0
    while placed < options.payments or kills < options.kills:
        for _ in range(max(1, options.payments // max(1, options.kills))):
            if placed < options.payments:
                field.order(placed)
                placed += 1
        for payment in Payment.objects.order_by("-pk")[: max(1, options.payments // max(1, options.kills))]:
            publish_payment(payment)  # a second message
        if " ready." in field.log() and kills < options.kills:
            time.sleep(chance.uniform(0, 0.6))
            field.kill(chance.choice(field.workers))
            kills += 1
            field.start_worker()
            if kills == options.kills // 2 + 1:
                field.broker.stop()
                field.broker.start()
        field.sweep()
    return kills
