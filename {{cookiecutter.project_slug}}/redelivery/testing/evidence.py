"""Run the experiments of a project in processes of their own and hand the results to pytest.

A crash map forks, and pytest's process has threads and a test database of its own; so the experiments run beside it.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import cached_property


class Experiment:
    """One command that prints JSON; it starts at once, and its result is waited for where it is needed."""

    def __init__(self, command: list[str], settings_module: str):
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": settings_module,
            "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path])),
        }
        self.output = tempfile.TemporaryFile("w+")
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=self.output, stderr=self.errors, stdin=subprocess.DEVNULL
        )

    @cached_property
    def result(self):
        """The JSON that it printed; raises AssertionError with its complaint when it printed none."""
        status = self.process.wait()
        self.output.seek(0)
        self.errors.seek(0)
        text = self.output.read()
        if not text.strip():
            raise AssertionError(f"{' '.join(self.process.args[1:])} ended with status {status}:\n{self.errors.read()[-4000:]}")
        return json.loads(text)

    def stop(self) -> None:
        """End it, if nobody waited for it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.output.close()
        self.errors.close()


class Evidence:
    """Crash maps, duplicates and real kills of all tasks of one project.

    `settings_module` is the project's Django settings module.
    """

    def __init__(self, settings_module: str):
        self.settings_module = settings_module
        self.started: list[Experiment] = []

    def start(self, *command: str) -> Experiment:
        """Start an experiment and remember to stop it."""
        self.started.append(Experiment(list(command), self.settings_module))
        return self.started[-1]

    @cached_property
    def maps(self) -> Experiment:
        """Crash maps and duplicates."""
        return self.start("-m", "django", "crashmap", "--duplicates", "--json")

    @cached_property
    def kills(self) -> Experiment:
        """Real kills."""
        return self.start("-m", "redelivery.testing.kills")

    def begin(self) -> None:
        """Start everything now, side by side."""
        self.kills, self.maps  # noqa: B018 - starting is what looking does

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
        for experiment in self.started:
            experiment.stop()


def by_place(crash_map: dict) -> dict[str, int]:
    """Return the final counts of a crash map by place; of several points on a line the worst, each count once."""
    seen: dict[str, int] = {}
    for point in crash_map["points"]:
        where = f"{point['file']}:{point['line']} in {point['function']}"
        seen[f"{where} (opcode {point['index']})"] = point["redelivered"]
    return seen
