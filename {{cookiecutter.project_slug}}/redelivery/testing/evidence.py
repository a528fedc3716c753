"""Run the experiments of a project in processes of their own and hand the results to pytest.

A crash map forks, and pytest's process has threads and a test database of its own; so the experiments run beside it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property


class Experiment:
    """One command that prints JSON; it starts at once, and its result is waited for where it is needed."""

    def __init__(self, command: list[str], settings_module: str):
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": settings_module,
            "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path])),
        }
        # Files, not pipes: nobody reads while it runs.
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdout=self.output,
            stderr=self.errors,
            stdin=subprocess.DEVNULL,
        )

    @cached_property
    def result(self):
        """The JSON that it printed; raises AssertionError with its complaint when it printed none."""
        status = self.process.wait()
        self.output.seek(0)
        self.errors.seek(0)
        text = self.output.read()
        if not text.strip():
            raise AssertionError(
                f"{' '.join(self.process.args[1:])} ended with status {status}:\n{self.errors.read()[-4000:]}"
            )
        return json.loads(text)

    def stop(self) -> None:
        """End it, if nobody waited for it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.output.close()
        self.errors.close()


class Evidence:
    """Crash maps with duplicates, and real kills, of tasks of one project.

    Args:
        settings_module: the project's Django settings module.
        maps: the tasks to map.
        kills: the tasks to kill in real workers. Both experiments start at once, side by side.
    """

    def __init__(self, settings_module: str, maps: list[str], kills: list[str]):
        self.settings_module = settings_module
        self.maps = self.start("-m", "django", "crashmap", "--duplicates", "--json", *maps) if maps else None
        self.kills = self.start("-m", "redelivery.testing.kills", *kills) if kills else None

    @classmethod
    def of_session(cls, settings_module: str, session, tasks_of: Callable[[dict], list[str]]) -> "Evidence":
        """Return the evidence that the collected tests of a pytest session ask for, and no more.

        `tasks_of` gives the tasks of a test from its parameters; tests of real kills are those with an `event`.
        """
        maps: dict[str, None] = {}
        kills: dict[str, None] = {}
        for item in session.items:
            if "evidence" in item.fixturenames and hasattr(item, "callspec"):
                parameters = item.callspec.params
                (kills if "event" in parameters else maps).update(dict.fromkeys(tasks_of(parameters)))
        return cls(settings_module, list(maps), list(kills))

    def start(self, *command: str) -> Experiment:
        """Start an experiment."""
        return Experiment(list(command), self.settings_module)

    def map_of(self, task: str) -> dict:
        """Return the crash map of a task; raises AssertionError with the reason where it could not be drawn."""
        found = next(result for result in self.maps.result if result["task"] == task)
        if "error" in found:
            raise AssertionError(found["error"])
        return found

    def kills_of(self, task: str) -> list[dict]:
        """Return the outcomes of the real kills of a task."""
        return [outcome for outcome in self.kills.result if outcome["task"] == task]

    def stop(self) -> None:
        """End what still runs."""
        for experiment in filter(None, (self.maps, self.kills)):
            experiment.stop()


def by_place(crash_map: dict) -> dict[str, int]:
    """Return the final count of each point of a crash map by its place."""
    return {
        "{file}:{line} in {function} (opcode {index} of {thread})".format_map(point): point["redelivered"]
        for point in crash_map["points"]
    }
