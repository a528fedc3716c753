"""A stub that speaks Stripe's wire format: PaymentIntents with idempotency keys, a list, and every kind of trouble."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ERRORS = {
    "declined": (402, "card_error", "card_declined"),
    "bad request": (400, "invalid_request_error", "parameter_invalid_integer"),
    "missing": (404, "invalid_request_error", "resource_missing"),
    "bad key": (401, "invalid_request_error", "api_key_invalid"),
    "no permission": (403, "invalid_request_error", "account_invalid"),
    "rate": (429, "invalid_request_error", "rate_limit"),
    "lock": (429, "invalid_request_error", "lock_timeout"),
    "in use": (409, "invalid_request_error", "idempotency_key_in_use"),
    "500": (500, "api_error", ""),
    "502": (502, "api_error", ""),
    "503": (503, "api_error", ""),
}
EXECUTES_THEN_FAILS = ("500", "502", "503")


class Stub:
    """Stripe's books, and how it behaves: `do` is a key of ERRORS, "broken", "truncated", "reset", "hang" or ""."""

    def __init__(self):
        self.do = ""
        self.intents: list[dict] = []
        self.keys: dict[str, tuple[str, int, dict]] = {}
        self.requests: list[tuple[str, str, dict, dict]] = []
        self.lock = threading.Lock()

    def intent(self, form: dict, status: str) -> dict:
        """Make a PaymentIntent."""
        number = len(self.intents) + 1
        intent = {
            "id": f"pi_{number}",
            "object": "payment_intent",
            "amount": int(form["amount"]),
            "currency": form["currency"],
            "customer": form["customer"],
            "created": int(time.time()),
            "status": status,
            "metadata": {"payment_key": form["metadata[payment_key]"], "order": form["metadata[order]"]},
        }
        self.intents.insert(0, intent)
        return intent

    def execute(self, form: dict) -> tuple[int, dict]:
        """Answer a request for the first time."""
        if self.do == "declined":
            error = error_of("declined")
            error["error"]["payment_intent"] = self.intent(form, "requires_payment_method")
            return 402, error
        if self.do in ERRORS and self.do not in EXECUTES_THEN_FAILS:
            return ERRORS[self.do][0], error_of(self.do)
        intent = self.intent(form, "processing" if self.do == "processing" else "succeeded")
        return (ERRORS[self.do][0], error_of(self.do)) if self.do in EXECUTES_THEN_FAILS else (200, intent)


def error_of(name: str) -> dict:
    """Return the body of an error."""
    _, kind, code = ERRORS[name]
    return {"error": {"type": kind, "message": name, **({"code": code} if code else {})}}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    stub: Stub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Create a PaymentIntent, once for each key; what was answered once is replayed, errors of the server too."""
        stub = self.stub
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text).items()}
        key = self.headers["Idempotency-Key"]
        stub.requests.append(("POST", self.path, form, dict(self.headers)))
        replayed = False
        with stub.lock:
            if key in stub.keys:
                before, status, body = stub.keys[key]
                replayed = before == text
                if not replayed:
                    error = {"type": "idempotency_error", "message": "Keys for idempotent requests ..."}
                    return self.answer(400, {"error": error})
            else:
                status, body = stub.execute(form)
                if status not in (401, 403, 409, 429) and (status != 400):
                    stub.keys[key] = text, status, body
        if not replayed and stub.do in ("broken", "truncated", "reset", "hang"):
            return self.trouble(stub.do)
        return self.answer(status, body, {"Idempotent-Replayed": "true"} if replayed else {})

    def do_GET(self) -> None:
        """List the PaymentIntents of a customer, newest first."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.stub.requests.append(("GET", self.path, query, dict(self.headers)))
        if self.stub.do in ERRORS:
            return self.answer(ERRORS[self.stub.do][0], error_of(self.stub.do))
        found = [
            intent
            for intent in self.stub.intents
            if intent["customer"] == query["customer"] and intent["created"] >= int(query["created[gte]"])
        ]
        if after := query.get("starting_after"):
            found = found[[intent["id"] for intent in found].index(after) + 1 :]
        limit = int(query["limit"])
        body = {"object": "list", "url": "/v1/payment_intents", "has_more": len(found) > limit}
        return self.answer(200, {**body, "data": found[:limit]})

    def trouble(self, do: str) -> None:
        """Answer badly, or not at all, to what was executed."""
        self.close_connection = True
        if do == "broken":
            self.answer_bytes(200, b'{"id": ', {"Connection": "close"})
        elif do == "truncated":
            self.wfile.write(
                b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"id"'
            )
        elif do == "hang":
            time.sleep(1.5)

    def answer(self, status: int, body: dict, headers: dict | None = None) -> None:
        """Answer with JSON."""
        self.answer_bytes(status, json.dumps(body).encode(), headers or {})

    def answer_bytes(self, status: int, body: bytes, headers: dict) -> None:
        """Answer."""
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            **headers,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments) -> None:
        """Say nothing."""


@contextmanager
def stripe_stub():
    """Run a stub on a free port; gives it and its URL."""
    stub = Stub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"stub": stub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield stub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
