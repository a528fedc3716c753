"""A payment provider in a process of its own: `python payments/providers/simulator.py PORT DIRECTORY`.

`POST /charges` with an Idempotency-Key charges once for each key and replays its answer, `GET /charges/KEY` reads back.
Every charge is a line of DIRECTORY/ledger.jsonl, every call one of calls.jsonl. DIRECTORY/behaviour.json, read at each
call, says how it misbehaves: {"do": BEHAVIOUR or a list of them, "share": 0..1 of the calls, "slow_s": seconds from the
end of the connection to a slow charge, "key_lifetime_s": seconds, "unreadable": true or false, "kill": a process group
to SIGKILL after a charge, before the answer, "kill_at": from which call on, "hold": true to charge and answer only when
that is taken back}.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BEHAVIOURS = {
    "accept": "charge and say so",
    "reject": "decline, and remember that",
    "auth": "refuse the credentials (401); nothing is executed",
    "rate": "ask to come later (429); nothing is executed",
    "error before": "answer 500 without having charged",
    "error after": "charge, then answer 500",
    "garbage after": "charge, then answer 200 with a body that is no JSON",
    "hang after": "charge, then never answer",
    "hang before": "never answer and never charge",
    "drop after": "charge, then close the connection without an answer",
    "drop before": "close the connection without having charged",
    "slow": "charge only after the sender has given up",
}
HANG_S = 600
SLOW_S = 1.5


def digest_of(body: dict) -> str:
    """A fingerprint of what was asked for."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class Provider:
    """The provider's own books."""

    def __init__(self, directory: Path):
        """Open the books in a folder, and know again what is in them; raises OSError if they cannot be written."""
        self.directory = directory
        self.lock = threading.Lock()
        self.keys: dict[str, dict] = {}
        self.calls = 0
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("ledger.jsonl", "calls.jsonl"):
            (directory / name).open("a").close()
        for line in (directory / "ledger.jsonl").read_text().splitlines():
            charge = json.loads(line)
            answer = {"status": "charged", "reference": charge.pop("reference")}
            self.remember(charge.pop("key"), digest_of(charge), answer)

    def remember(self, key: str, digest: str, answer: dict) -> None:
        """Keep what a key was answered."""
        self.keys[key] = {"at": time.monotonic(), "digest": digest, "answer": answer}

    def behaviour(self) -> dict:
        """Return what the behaviour file wants now."""
        try:
            return json.loads((self.directory / "behaviour.json").read_text())
        except FileNotFoundError:
            return {}

    def write(self, name: str, record: dict) -> None:
        """Append a record to one of the books, in one write."""
        with (self.directory / name).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def misbehaves(self, wanted: dict) -> bool:
        """Tell whether this call is one of the share that is to go wrong: spread evenly, the same in each run."""
        share = wanted.get("share", 1)
        return int((self.calls + 1) * share) > int(self.calls * share)

    def known(self, key: str, wanted: dict) -> dict | None:
        """Return what this key was answered before, as long as keys are remembered."""
        entry = self.keys.get(key)
        if entry and time.monotonic() - entry["at"] > wanted.get("key_lifetime_s", float("inf")):
            del self.keys[key]
            return None
        return entry

    def charge(self, key: str, body: dict, declined: bool, wanted: dict) -> tuple[int, dict]:
        """Charge or decline once for a key; a second time replay the answer."""
        digest = digest_of(body)
        with self.lock:
            before = self.known(key, wanted)
            if before is None:
                answer = {"status": "declined", "error": "declined"}
                if not declined:
                    answer = {"status": "charged", "reference": f"sim_{uuid.uuid4().hex[:16]}"}
                    self.write("ledger.jsonl", {"key": key, **body, "reference": answer["reference"]})
                self.remember(key, digest, answer)
            elif before["digest"] != digest:
                return 400, {"error": "key was used with another body"}
            else:
                answer = {**before["answer"], "replayed": True}
        return (402 if answer["status"] == "declined" else 200), answer

    def look_up(self, key: str) -> tuple[int, dict]:
        """Read a payment back; charges are remembered for longer than keys."""
        with self.lock:
            if entry := self.keys.get(key):
                return 200, {**entry["answer"], "replayed": True}
        with suppress(FileNotFoundError):
            for line in (self.directory / "ledger.jsonl").read_text().splitlines():
                if (charge := json.loads(line))["key"] == key:
                    return 200, {"status": "charged", "reference": charge["reference"]}
        return 404, {"error": "no such charge"}


class Handler(BaseHTTPRequestHandler):
    """One call."""

    provider: Provider

    def do_POST(self) -> None:
        """Charge, in the way that the behaviour file wants."""
        provider = self.provider
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"] or uuid.uuid4().hex
        wanted = provider.behaviour()
        with provider.lock:
            do = wanted.get("do", "accept") if provider.misbehaves(wanted) else "accept"
            if isinstance(do, list):
                do = do[provider.calls // 7 % len(do)]
            provider.calls += 1
            provider.write("calls.jsonl", {"key": key, "order": body.get("order"), "do": do})

        def charge() -> tuple[int, dict]:
            charged = provider.charge(key, body, do == "reject", wanted)
            if (group := wanted.get("kill")) and provider.calls >= wanted.get("kill_at", 0):
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            return charged

        self.act(do, charge, wanted.get("slow_s", SLOW_S))

    def act(self, do: str, charge: Callable[[], tuple[int, dict]], slow_s: float) -> None:
        """Do one of BEHAVIOURS."""
        if do in ("auth", "rate", "error before"):
            status = {"auth": 401, "rate": 429, "error before": 500}[do]
            return self.answer(status, {"error": do})
        if do in ("hang before", "drop before"):
            return self.silence(do)
        if do == "slow":
            self.wait_until_gone()
            time.sleep(slow_s)
        status, answer = charge()
        while self.provider.behaviour().get("hold"):
            time.sleep(0.02)
        if do == "error after":
            return self.answer(500, {"error": do})
        if do == "garbage after":
            return self.answer(200, None)
        if do in ("hang after", "drop after"):
            return self.silence(do)
        return self.answer(status, answer)

    def silence(self, do: str) -> None:
        """Do not answer; while hanging, wait for the other side to go."""
        if do.startswith("hang"):
            self.wait_until_gone()
        self.close_connection = True

    def wait_until_gone(self) -> None:
        """Return when the other side has closed the connection."""
        self.connection.settimeout(HANG_S)
        with suppress(OSError):
            self.connection.recv(1)

    def do_GET(self) -> None:
        """Read a payment back by its key."""
        wanted = self.provider.behaviour()
        if wanted.get("do") == "auth":
            return self.answer(401, {"error": "auth"})
        if wanted.get("unreadable"):
            return self.answer(500, {"error": "unreadable"})
        return self.answer(*self.provider.look_up(self.path.removeprefix("/charges/")))

    def answer(self, status: int, answer: dict | None) -> None:
        """Answer with JSON; None: with something else. Who has gone does not hear it."""
        text = b"<html>" if answer is None else json.dumps(answer).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format: str, *arguments) -> None:
        """Say nothing: calls.jsonl has it."""


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address) -> None:
        """Say nothing of senders that were killed."""


def main(arguments: list[str]) -> int:
    """Serve until killed; one sentence and status 1 when that cannot be, 2 when the arguments make no sense."""
    if len(arguments) != 2 or not arguments[0].isascii() or not arguments[0].isdigit():
        print("Say on which port, and in which folder: simulator.py 8899 var/provider", file=sys.stderr)
        return 2
    port, directory = int(arguments[0]), Path(arguments[1])
    try:
        Handler.provider = Provider(directory)
    except (OSError, ValueError, KeyError) as error:
        print(f"The simulated provider cannot use its books in {directory}: {error}", file=sys.stderr)
        return 1
    try:
        server = Server(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        print(f"The simulated provider cannot listen on port {port} of 127.0.0.1: {error}", file=sys.stderr)
        return 1
    print(f"a simulated payment provider listens on port {port}; its books are in {directory}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
