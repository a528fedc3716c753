"""The simulated provider beside `make run`, if PAYMENT_PROVIDER is the simulated one and nothing answers there yet."""

import socket
import sys
from pathlib import Path

from payments.providers import NotFound, Request, provider
from payments.providers.simulated import Simulated

PROGRAM = Path(__file__).with_name("simulator.py")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def command(state: Path) -> list[str] | None:
    """Return the command that serves PAYMENT_SIMULATOR_URL with its books in `state`, or None if there is no need.

    Raises ValueError when something else answers at that address, and OSError when the folder cannot be made.
    """
    chosen = provider()
    if not isinstance(chosen, Simulated) or chosen.address.hostname not in LOOPBACK:
        return None
    port = chosen.address.port or 80
    if answers(chosen.address.hostname, port):
        if is_simulator(chosen):
            return None
        raise ValueError(
            f"PAYMENT_SIMULATOR_URL names port {port}, where something answers that is no simulated provider: "
            "stop that, or write another port into .env."
        )
    directory = state / f"provider-{port}"
    directory.mkdir(exist_ok=True)
    return [sys.executable, str(PROGRAM), str(port), str(directory)]


def answers(host: str, port: int) -> bool:
    """Tell whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def is_simulator(adapter: Simulated) -> bool:
    """Tell whether what answers speaks as a simulated provider does."""
    nobody = Request("a-key-that-nobody-uses", "", "", "", 1, "EUR")
    return isinstance(adapter.read_back(nobody), NotFound)
