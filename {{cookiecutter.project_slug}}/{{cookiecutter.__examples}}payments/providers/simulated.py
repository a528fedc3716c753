"""The adapter of the simulated provider: plain HTTP, no retries, and an honest outcome for every answer."""

import http.client
import json
from datetime import timedelta
from urllib.parse import quote, urlsplit

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

LONGEST_ANSWER = 65_536
"""Bytes of an answer that are read: more is no answer of a provider."""


class Simulated:
    """Speaks to `payments.providers.simulator`, wherever that runs."""

    under_way = timedelta(seconds=30)
    key_lifetime = timedelta(hours=24)
    not_found_is_proof = True
    read_back_calls = 1

    def __init__(self, url: str, timeout_s: float):
        self.address = urlsplit(url)
        self.timeout_s = timeout_s

    @classmethod
    def from_environment(cls) -> "Simulated":
        """Read where it is and how long it may take; raises ValueError for a URL that is none."""
        url = env.str("PAYMENT_SIMULATOR_URL", default="http://127.0.0.1:8899")
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"PAYMENT_SIMULATOR_URL is {url!r}: write http:// with a host and a port.")
        return cls(url, env.float("PAYMENT_TIMEOUT_S", default=10.0))

    def send(self, request: Request) -> Outcome:
        """Ask for the money."""
        body = {field: getattr(request, field) for field in ("order", "customer", "method", "currency")}
        body["amount"] = request.amount
        return self.ask("POST", "/charges", json.dumps(body), {"Idempotency-Key": request.key})

    def read_back(self, request: Request, since=None) -> Outcome:
        """Look the payment up by its key."""
        outcome = self.ask("GET", f"/charges/{quote(request.key, safe='')}", None, {})
        if isinstance(outcome, Accepted | Rejected | NotFound):
            return outcome
        return Unknown(f"could not be read back: {outcome.reason}")

    def ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Outcome:
        """Make one request. Connecting is a step of its own: what fails there is before the request."""
        connection = http.client.HTTPConnection(
            self.address.hostname, self.address.port, timeout=self.timeout_s
        )
        try:
            connection.connect()
        except OSError as error:
            return NotSent(f"no connection: {error}")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read(LONGEST_ANSWER))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            return Unknown(f"{type(error).__name__}: {error}")
        finally:
            connection.close()
        if not isinstance(answer, dict):
            return Unknown(f"{response.status} with JSON that is no object")
        return self.outcome(response.status, answer)

    def outcome(self, status: int, answer: dict) -> Outcome:
        """Say what an answer proves."""
        reason = f"{status} {answer.get('error', 'ok')}"
        reference = answer.get("reference")
        if status == 200 and answer.get("status") == "charged" and reference and isinstance(reference, str):
            return Accepted(reason, reference)
        if status in (200, 402) and answer.get("status") == "declined":
            return Rejected(reason, first_hand=bool(answer.get("replayed")))
        if status in (401, 403):
            return Misconfigured(reason)
        if status == 429:
            return NotSent(reason)
        if status == 404 and answer.get("error") == "no such charge":
            return NotFound(reason)
        return Unknown(reason, alarm=answer.get("error") == "key was used with another body")
