"""The adapter of Stripe, through its official SDK: one PaymentIntent for each payment, confirmed at once.

What each error of the SDK proves was measured with stripe 16.1 against a stub that gives every one of them.
"""

import functools
from datetime import datetime, timedelta
from itertools import islice

import requests
import stripe
from requests.exceptions import ConnectTimeout
from urllib3.exceptions import NewConnectionError

from payments.providers import (
    Accepted,
    Misconfigured,
    NotFound,
    NotSent,
    Outcome,
    Rejected,
    Request,
    Unknown,
)
from service.settings.env import env

METADATA = "payment_key"
PAGE = 100
CLOCK_SKEW = timedelta(minutes=10)
"""How far Stripe's clock and the database's may differ."""

stripe.enable_telemetry = False


class Stripe:
    """Charges a customer's stored payment method.

    Reads go through `list`, which is immediate; `search` may be an hour behind. Not found is no proof all the same: it
    cannot see a request that is under way, and a list has an end. Within the key's lifetime the same request again is
    the safe way to ask.
    """

    under_way = timedelta(seconds=90)
    key_lifetime = timedelta(hours=24)  # Stripe keeps a key for at least so long
    not_found_is_proof = False
    read_back_calls = 3

    def __init__(self, api_key: str, timeout_s: float, base: str = ""):
        self.timeout_s = timeout_s
        session = requests.Session()
        session.max_redirects = 0  # the first address may have executed it, whatever becomes of the second
        self.client = stripe.StripeClient(
            api_key,
            http_client=stripe.RequestsClient(timeout=timeout_s, session=session),
            max_network_retries=0,  # the row decides what is sent again, and only where that is safe
            base_addresses={"api": base} if base else None,
        )

    @classmethod
    def from_environment(cls) -> "Stripe":
        """Read the key and how long a call may take; raises ValueError without a key."""
        key = env.str("STRIPE_API_KEY", default="")
        if not key:
            raise ValueError("STRIPE_API_KEY is empty: without it Stripe takes no payment.")
        return _made_once(
            key, env.float("PAYMENT_TIMEOUT_S", default=10.0), env.str("STRIPE_API_BASE", default="")
        )

    def send(self, request: Request) -> Outcome:
        """Create and confirm a PaymentIntent. The idempotency key makes any number of these one."""
        parameters = {
            "amount": request.amount,
            "currency": request.currency.lower(),
            "customer": request.customer,
            "payment_method": request.method,
            "confirm": True,
            "off_session": True,
            "error_on_requires_action": True,
            "metadata": {METADATA: request.key, "order": request.order},
        }
        try:
            intent = self.client.v1.payment_intents.create(
                parameters, {"idempotency_key": request.key, "max_network_retries": 0}
            )
        except Exception as error:
            return failure(error)
        return of_intent(intent.to_dict(), replayed=is_replay(intent.last_response.headers))

    def read_back(self, request: Request, since: datetime) -> Outcome:
        """Look through the customer's PaymentIntents since then for the one with our key in its metadata."""
        parameters = {
            "customer": request.customer,
            "created": {"gte": int((since - CLOCK_SKEW).timestamp())},
            "limit": PAGE,
        }
        try:
            listed = self.client.v1.payment_intents.list(parameters).auto_paging_iter()
            seen = [intent.to_dict() for intent in islice(listed, self.read_back_calls * PAGE)]
        except Exception as error:
            return Unknown(f"could not be read back: {failure(error).reason}")
        ours = [intent for intent in seen if (intent.get("metadata") or {}).get(METADATA) == request.key]
        charged = [intent["id"] for intent in ours if intent["status"] == "succeeded"]
        if len(charged) > 1:
            return Unknown(f"charged more than once: {', '.join(charged)}", alarm=True)
        for outcome in sorted(
            (of_intent(intent, replayed=True) for intent in ours), key=settles, reverse=True
        ):
            return outcome
        if len(seen) == self.read_back_calls * PAGE:
            return Unknown(f"not among the newest {len(seen)} payments of this customer")
        return NotFound(f"not among the {len(seen)} payments of this customer")


@functools.lru_cache(maxsize=1)
def _made_once(api_key: str, timeout_s: float, base: str) -> Stripe:
    """One client for each process: it keeps its connection."""
    return Stripe(api_key, timeout_s, base)


def is_replay(headers) -> bool:
    """Whether Stripe answered from its memory of the key."""
    return str((headers or {}).get("Idempotent-Replayed", "")).lower() == "true"


def settles(outcome: Outcome) -> int:
    """How much an outcome settles, when several PaymentIntents carry one key."""
    return 2 if isinstance(outcome, Accepted) else 1 if isinstance(outcome, Unknown) else 0


def of_intent(intent: dict, replayed: bool) -> Outcome:
    """Say what a PaymentIntent proves."""
    name, status = intent["id"], intent["status"]
    reason = f"{name} is {status}"
    if status == "succeeded":
        return Accepted(reason, name)
    if status in ("canceled", "requires_payment_method"):
        return Rejected(reason, name, first_hand=replayed)
    return Unknown(reason, name)  # processing, or waiting for somebody


def failure(error: Exception) -> Outcome:
    """Say what an error of the SDK proves about the request that it answers."""
    reason = f"{type(error).__name__}: {getattr(error, 'http_status', None) or ''} {error}".strip()
    headers = getattr(error, "headers", None)
    if isinstance(error, stripe.IdempotencyError):
        return Unknown(reason, alarm=True)  # this key was sent with another body
    if isinstance(error, stripe.CardError):
        intent = ((error.json_body or {}).get("error") or {}).get("payment_intent") or {}
        return Rejected(reason, intent.get("id", ""), first_hand=is_replay(headers))
    if isinstance(error, stripe.InvalidRequestError):
        return Rejected(reason, first_hand=is_replay(headers))
    if isinstance(error, stripe.AuthenticationError | stripe.PermissionError):
        return Misconfigured(reason)
    if isinstance(error, stripe.RateLimitError) or never_connected(error):
        return NotSent(reason)
    return Unknown(reason)


def never_connected(error: BaseException) -> bool:
    """Whether the SDK's error comes from a connection that was never made: nothing can have been sent on it."""
    cause: BaseException | None = error
    while cause is not None:
        reason = getattr(cause.args[0], "reason", None) if cause.args else None
        if isinstance(cause, ConnectTimeout) or isinstance(reason, NewConnectionError):
            return True
        cause = cause.__cause__
    return False
