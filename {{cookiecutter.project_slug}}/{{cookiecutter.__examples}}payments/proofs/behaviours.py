"""Kill a send before every opcode, under every behaviour of the provider; then reconcile, and look at what is left.

After a kill the message is delivered again, time passes, and the sweep and reconciliation run until nothing moves. What
is then in the provider's ledger must be what the row says, or a person must have been told that the row is open.
"""

import argparse
import json
import logging
import os
import time
from collections import Counter
from datetime import timedelta

from payments.models import OPEN, Payment, State
from payments.providers.simulator import BEHAVIOURS
from payments.records import Halt
from payments.redelivery_case import SendPayment, provider_of
from redelivery.testing.duplicates import twins
from redelivery.testing.killer import Killer
from redelivery.testing.messages import Message
from redelivery.testing.sandbox import sandbox

# A sender that is to give up does so soon, but not sooner than a busy machine claims: what takes longer is given back
# unsent. All others wait for their answer.
GIVE_UP = ("slow", "hang before", "hang after")
GIVE_UP_S, TIMEOUT_S = 0.6, 10
# From the end of the connection to a slow charge, and how long reconciliation waits for that.
SLOW_S, AFTER_SLOW_S = 0.2, 0.8
ROUNDS = 6
SWEEP = "payments.periodic.publish_due_payments"

# How the provider can be asked afterwards: may it be read back, and how much time passes before anybody looks.
AFTERWARDS = {
    "readable": (False, timedelta(minutes=90)),
    "unreadable": (True, timedelta(minutes=90)),
    "forgotten": (True, timedelta(hours=25)),
}


class Misbehaving(SendPayment):
    """A payment whose provider misbehaves; its effects are the calls that the provider got."""

    def __init__(self, behaviour: str):
        self.behaviour = behaviour

    def prepare(self, world):
        """A payment."""
        args = super().prepare(world)
        provider_of(os.getpid()).behave(self.behaviour, slow_s=SLOW_S)
        return args

    def effects(self, world, args):
        """Calls with its key."""
        return len(provider_of(os.getpid()).calls(str(Payment.objects.get(pk=args[0]).provider_key)))


def pass_time(time_passed: timedelta) -> None:
    """Let time pass for the one payment, as far as it can tell."""
    for row in Payment.objects.all():
        moved = {
            column: getattr(row, column) - time_passed
            for column in ("due_at", "claimed_at", "resend_until")
            if getattr(row, column)
        }
        Payment.objects.filter(pk=row.pk).update(**moved)
    Halt.objects.update(probe_at="2000-01-01T00:00Z")


def settle(killer: Killer, behaviour: str, afterwards: str) -> str:
    """Reconcile until nothing moves, and say in a word how it ended."""
    unreadable, passed = AFTERWARDS[afterwards]
    provider = provider_of(os.getpid())
    if behaviour == "slow":
        time.sleep(AFTER_SLOW_S)
    later = "reject" if behaviour == "reject" else "accept"
    provider.behave(
        later, unreadable=unreadable, **({"key_lifetime_s": 0} if afterwards == "forgotten" else {})
    )
    for _ in range(ROUNDS):
        if not Payment.objects.filter(state__in=OPEN, due_at__isnull=False).exists():
            break
        pass_time(passed)
        killer.deliver([Message.to(SWEEP, ())])
    payment = Payment.objects.get()
    charges = len(provider.charges(str(payment.provider_key)))
    return ended(payment, charges)


def ended(payment: Payment, charges: int) -> str:
    """Say how a payment ended; what begins with "WRONG" must not be."""
    if charges > 1:
        return f"WRONG: charged {charges} times, {payment.state}"
    if (payment.state == State.SENT and charges == 1) or (payment.state == State.REJECTED and charges == 0):
        return payment.state
    if payment.state == State.UNCERTAIN and payment.due_at is None:
        return "with a person"
    return f"WRONG: {payment.state} with {charges} charges"


def draw(world, behaviour: str, afterwards: str, stride: int, progress=lambda: None) -> dict:
    """Kill at every `stride`-th opcode; return the numbers of opcodes, kills, and ends."""
    os.environ["PAYMENT_TIMEOUT_S"] = str(GIVE_UP_S if behaviour in GIVE_UP else TIMEOUT_S)
    killer = Killer(Misbehaving(behaviour), world)
    try:
        path, _, _ = killer.whole_run()
        ends: Counter[str] = Counter()
        for position in range(0, len(path), stride):
            killer.kill(path, position)
            ends[settle(killer, behaviour, afterwards)] += 1
            progress()
        barrier = killer.around_the_effect(path)[0].point
        calls = twins(killer, barrier)
        both = settle(killer, behaviour, afterwards)
    finally:
        killer.close()
    kills = sum(ends.values())
    return {
        "behaviour": behaviour,
        "afterwards": afterwards,
        "opcodes": len(path),
        "kills": kills,
        "ends": dict(sorted(ends.items())),
        "twins": {"calls": calls, "end": both},
    }


def main(arguments: list[str]) -> int:
    """Print one line for each behaviour; exit status 1 if anything ended wrongly."""
    parser = argparse.ArgumentParser(prog="behaviours", description=__doc__.partition("\n")[0])
    parser.add_argument("--stride", type=int, default=1, help="kill at every so manieth opcode only")
    parser.add_argument("--only", nargs="*", default=[], choices=BEHAVIOURS, help="behaviours to try")
    parser.add_argument("--afterwards", nargs="*", default=[], choices=AFTERWARDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    os.environ["PAYMENT_PROVIDER"] = "simulated"
    results = []
    with sandbox() as world:
        for afterwards in options.afterwards or AFTERWARDS:
            for behaviour in options.only or BEHAVIOURS:
                results.append(draw(world, behaviour, afterwards, options.stride))
                if not options.json:
                    print(line(results[-1]), flush=True)
    wrong = [r for r in results if any("WRONG" in end for end in [*r["ends"], r["twins"]["end"]])]
    if options.json:
        print(json.dumps(results))
    else:
        total = sum((Counter(result["ends"]) for result in results), Counter())
        print(f"{total.total()} kills: {', '.join(f'{count} {end}' for end, count in sorted(total.items()))}")
    return 1 if wrong else 0


def line(result: dict) -> str:
    """One result in words."""
    ends = ", ".join(f"{count} {end}" for end, count in result["ends"].items())
    twins = f"twins: {result['twins']['calls']} call, {result['twins']['end']}"
    return f"{result['afterwards']:<11} {result['behaviour']:<14} {result['kills']:>5} kills: {ends}; {twins}"
