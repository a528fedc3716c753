"""The simulated provider as tests use it: started, told how to behave, and its books read."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from redelivery.testing import processes

PROGRAM = Path(__file__).with_name("providers") / "simulator.py"


class Simulator:
    """The simulated provider in a process of its own."""

    def __init__(self, directory: Path):
        self.port = processes.free_port()
        self.directory = directory
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start it and return once it accepts connections."""
        self.forget()
        self.behave()
        command = [sys.executable, str(PROGRAM), str(self.port), str(self.directory)]
        self.process = processes.start(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        processes.wait_until(
            lambda: self.process.poll() is not None or processes.listens(self.port), 20, "the simulator"
        )
        if self.process.poll() is not None:
            raise RuntimeError(f"the simulated provider did not start on port {self.port}")

    def stop(self) -> None:
        """Stop it."""
        processes.stop(self.process)

    def behave(self, do: str | list[str] = "accept", **more) -> None:
        """Say how it behaves from now on; see `payments.providers.simulator`."""
        partial = self.directory / "behaviour.new"
        partial.write_text(json.dumps({"do": do, **more}))
        partial.replace(self.directory / "behaviour.json")

    def charges(self, key: str = "") -> list[dict]:
        """Return the charges in its ledger, of one key or all."""
        return [charge for charge in self._read("ledger.jsonl") if key in ("", charge["key"])]

    def calls(self, key: str = "") -> list[dict]:
        """Return the calls that it got, of one key or all."""
        return [call for call in self._read("calls.jsonl") if key in ("", call["key"])]

    def forget(self) -> None:
        """Empty its books. Keys that it has answered it remembers."""
        for name in ("ledger.jsonl", "calls.jsonl"):
            (self.directory / name).write_text("")

    def _read(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]


@contextmanager
def simulator():
    """Run a simulated provider of one's own, and point this process and those that it starts at it."""
    with tempfile.TemporaryDirectory(prefix="provider-") as directory:
        provider = Simulator(Path(directory))
        provider.start()
        os.environ["PAYMENT_SIMULATOR_URL"] = provider.url
        try:
            yield provider
        finally:
            provider.stop()
