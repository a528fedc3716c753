"""A real Celery worker with short limits, inside a sandbox if there is one, whose tasks can be held at one opcode.

`python -m redelivery.testing.worker DIRECTORY TIME_LIMIT_S VISIBILITY_S [arguments of "celery worker"]`

A file `hold/<task id>` in the directory names the point; the first run of that message stops there, says so in
`held/<task id>`, and goes on when the file `release` exists. Every start of a task adds a line to `starts`.
"""

import json
import os
import sys
import time
from pathlib import Path

import django
from celery.signals import task_postrun, task_prerun, worker_init, worker_process_init

from redelivery import versions
from redelivery.source import project_root
from redelivery.testing.points import Tracer
from redelivery.testing.sandbox import ENVIRONMENT, celery_app, enter


class Holder:
    """Records each start of a task, and holds those that it is told to hold."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.tracer = Tracer(project_root())

    def on_process_init(self, **signal):
        """Look at the code before a task's time limit runs: it takes a while, longest on a busy machine."""
        self.tracer.learn()

    def on_prerun(self, task_id, task, **signal):
        """Record the start; take the order to hold this message, if there is one, so that a second run is not held."""
        with (self.directory / "starts").open("a") as file:
            file.write(f"{task_id}\n")
        order = self.directory / "hold" / task_id
        try:
            runs_before, index = json.loads(order.read_text())
        except FileNotFoundError:
            return
        if runs_before:
            order.write_text(json.dumps([runs_before - 1, index]))
            return
        order.unlink()
        self.tracer.learn()
        self.tracer.start(lambda point: self.hold(task_id), only=index)

    def hold(self, task_id: str) -> None:
        """Say that the point is reached, and wait."""
        partial = self.directory / f"{task_id}.pid"
        partial.write_text(str(os.getpid()))
        partial.rename(self.directory / "held" / task_id)
        while not (self.directory / "release").exists():
            time.sleep(0.01)

    def on_postrun(self, **signal):
        """Stop looking."""
        self.tracer.stop()


def shorten(app, time_limit: float, visibility: float) -> None:
    """Give every task a limit, and the broker a visibility, that a test can wait for (seconds)."""
    for name, task in app.tasks.items():
        if not name.startswith("celery."):
            task.time_limit, task.soft_time_limit = time_limit, None
    options = {
        **app.conf.broker_transport_options,
        "visibility_timeout": visibility,
        "lease_s": min(visibility, app.conf.broker_transport_options.get("lease_s", visibility)),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    versions.put(app.conf, broker_transport_options=options)


def main() -> None:
    """Run the worker until it is told to stop."""
    directory, time_limit, visibility, *arguments = sys.argv[1:]
    django.setup()
    if ENVIRONMENT in os.environ:
        enter()
    app = celery_app()
    # After the checks of redelivery.worker, which would refuse limits that are not the policy's.
    worker_init.connect(lambda **signal: shorten(app, float(time_limit), float(visibility)), weak=False)
    holder = Holder(Path(directory))
    worker_process_init.connect(holder.on_process_init, weak=False)
    task_prerun.connect(holder.on_prerun, weak=False)
    task_postrun.connect(holder.on_postrun, weak=False)
    app.worker_main(["worker", "--loglevel", "INFO", "--without-gossip", "--without-mingle", *arguments])


if __name__ == "__main__":
    main()
