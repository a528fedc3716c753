"""What a payment provider is to this service: one request, five outcomes, and a way to read a payment back."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from service.settings.env import env


@dataclass(frozen=True)
class Request:
    """What a provider is asked for. `amount` is in minor units of `currency` (cents, pence; whole yen)."""

    key: str
    order: str
    customer: str
    method: str
    amount: int
    currency: str

    @property
    def digest(self) -> str:
        """A fingerprint of all that is sent: a provider refuses, or worse, a key that comes with another body."""
        fields = (self.key, self.order, self.customer, self.method, str(self.amount), self.currency)
        return hashlib.sha256("\0".join(fields).encode()).hexdigest()


def storable(text: str, most: int) -> str:
    """Return a text of at most so many characters, without what PostgreSQL refuses: NUL, and half a surrogate pair."""
    return text[:most].encode("utf-8", "replace").decode().replace("\0", "?")


@dataclass(frozen=True)
class Outcome:
    """What became of a request, as far as the provider's answer proves it. `reason` is for people.

    Both texts come from outside, and are made such that every database can store them.
    """

    reason: str
    reference: str = ""

    def __post_init__(self):
        object.__setattr__(self, "reason", storable(self.reason, 2000))
        object.__setattr__(self, "reference", storable(self.reference, 255))


class Accepted(Outcome):
    """Charged; `reference` is the provider's own name of the charge."""


@dataclass(frozen=True)
class Rejected(Outcome):
    """Definitely not charged, and never will be.

    `first_hand`: the answer is about every request with this key (it was replayed or read back). Without that
    it speaks only of the request that it answers: an earlier one may have charged all the same.
    """

    first_hand: bool = False


class Misconfigured(Outcome):
    """Nothing was executed, and nothing will be until somebody mends a key or a permission."""


class NotSent(Outcome):
    """Nothing was executed: the same request may be sent again."""


@dataclass(frozen=True)
class Unknown(Outcome):
    """May have been executed. `alarm`: sending it again is wrong in any case, so a person is to look."""

    alarm: bool = False


class NotFound(Outcome):
    """Read back, and the provider knows of no such payment."""


class Provider(Protocol):
    """An adapter. It never raises for what a provider does, never retries, and answers within `timeout_s`."""

    timeout_s: float
    """Seconds that one call may take."""
    under_way: timedelta
    """After so long a request without an answer is no longer being executed."""
    key_lifetime: timedelta
    """For so long a second request with the same key has no effect of its own."""
    not_found_is_proof: bool
    """Whether a payment that `read_back` does not find was not executed (reads see every write before them)."""
    read_back_calls: int
    """How many calls `read_back` makes at most."""

    def send(self, request: Request) -> Outcome:
        """Ask for the money. Never returns NotFound."""

    def read_back(self, request: Request, since) -> Outcome:
        """Say what the provider knows of a request: Accepted, Rejected (first hand), NotFound or Unknown.

        `since` is the time (a datetime) before which it was not sent.
        """


def asked(question: Callable[..., Outcome], *arguments) -> Outcome:
    """Return what an adapter answers. What it raises proves nothing: the soft time limit, or a quite strange answer."""
    try:
        return question(*arguments)
    except Exception as error:
        return Unknown(f"{type(error).__name__}: {error}")


def provider() -> Provider:
    """Return the provider that PAYMENT_PROVIDER names; raises what its settings raise when they make no sense."""
    name = env.str("PAYMENT_PROVIDER", default="simulated")
    if name == "stripe":
        from payments.providers.stripe import Stripe

        return Stripe.from_environment()
    if name == "simulated":
        from payments.providers.simulated import Simulated

        return Simulated.from_environment()
    raise ValueError(f"PAYMENT_PROVIDER is {name!r}: write stripe or simulated.")
