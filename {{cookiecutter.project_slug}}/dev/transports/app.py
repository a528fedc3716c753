"""The Celery app of the storm, the benchmark and the comparison, under one variant; run in processes of its own.

`python app.py SPEC worker [arguments of "celery worker"]` or `python app.py SPEC send`. SPEC is a JSON file that
`lab.Lab` wrote. The file is run by each variant's own Python, so only the policy's variants import anything of the
service, and nothing here is newer than the oldest of those Pythons.
"""

import functools
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path

#: The environment variable with the seconds by which the clock of a process is ahead.
CLOCK = "LAB_CLOCK_AHEAD_S"
if ahead_s := float(os.environ.get(CLOCK, 0)):
    # Before anything takes the function for itself.
    time.time = lambda real=time.time: real() + ahead_s

from celery import Celery  # noqa: E402
from celery.signals import worker_init, worker_ready  # noqa: E402

QUEUES = ("lab", "lab2", "lab3")
WORK, NOTHING, POISON = "lab.work", "lab.nothing", "lab.poison"
POLICY = """
[queues.lab]
concurrency = 2

[queues.lab2]
concurrency = 2

[queues.lab3]
concurrency = 2
"""
TASK_POLICY = """
[tasks."{name}"]
queue         = "lab"
ack           = "late"
guard         = "none"
time_limit_s  = {time_limit_s}
crash_retries = 3
reason        = "Nothing but a line in a file, and the lines are counted."
"""


class Spec:
    """What the lab asks for: variant, broker URL, directory, and what differs from the variant's defaults."""

    def __init__(self, path: str):
        self.__dict__.update(json.loads(Path(path).read_text()))

    def note(self, kind: str, number: int) -> None:
        """Write one line to the file of effects, in one write, which is whole or not there."""
        task = current_task_id()
        line = json.dumps([kind, number, task, os.getpid(), time.time()]) + "\n"
        os.write(effects_file(str(Path(self.directory) / "effects")), line.encode())


@functools.cache
def effects_file(path: str) -> int:
    """Return the file of effects, opened once for each process."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def current_task_id() -> str:
    """Return the id of the task that runs in this process."""
    from celery import current_task

    return current_task.request.id


def make_app(spec: Spec) -> Celery:
    """Return the app with its three tasks, acknowledged late, set up as the variant wants it."""
    app = Celery("lab", broker=spec.broker, set_as_current=True)
    app.conf.update(
        task_ignore_result=True,
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
    )
    (with_policy if spec.policy else without_policy)(app, spec)

    @app.task(name=WORK)
    def work(number: int, seconds: float) -> None:
        spec.note("start", number)
        time.sleep(seconds)
        spec.note("end", number)

    @app.task(name=NOTHING)
    def nothing() -> None:
        pass

    @app.task(name=POISON)
    def poison(number: int) -> None:
        spec.note("start", number)
        os.kill(os.getpid(), signal.SIGKILL)

    if spec.policy:
        import django

        django.setup()
    refuse_another_transport(app, spec)
    return app


def refuse_another_transport(app: Celery, spec: Spec) -> None:
    """Stop when this is not the variant that was asked for: figures of another one would be worse than none."""
    wanted = "redelivery" if spec.redelivery_transport else (spec.transport or "kombu").split(".")[0]
    with app.connection_for_read() as connection:
        module = type(connection.transport).__module__
    if module.split(".")[0] != wanted:
        raise SystemExit(f"{spec.variant} runs on the transport {module}, and not on one of {wanted}")


def without_policy(app: Celery, spec: Spec) -> None:
    """Celery's own settings, and the two without which no message survives anything."""
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_default_queue=QUEUES[0])
    app.conf.broker_transport_options = spec.transport_options
    if spec.transport:
        app.conf.broker_transport = spec.transport


def with_policy(app: Celery, spec: Spec) -> None:
    """The service's `redelivery` app, with a policy of the lab's own."""
    from django.conf import settings

    sys.path.insert(0, spec.root)
    import redelivery

    directory = Path(spec.directory)
    policy_file = directory / "ack_policy.toml"
    settings.configure(
        ACK_POLICY_FILE=policy_file,
        INSTALLED_APPS=["redelivery"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": directory / "lab.sqlite3"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        SECRET_KEY="only for the lab",
        REDELIVERY_TRANSPORT=spec.redelivery_transport,
    )
    redelivery.setup(app)


def write_policy(directory: Path, time_limit_s: int) -> None:
    """Write the policy of the lab's tasks into its directory."""
    tasks = (TASK_POLICY.format(name=name, time_limit_s=time_limit_s) for name in (WORK, NOTHING, POISON))
    (directory / "ack_policy.toml").write_text(POLICY + "".join(tasks))


def worker(spec: Spec, arguments: list) -> None:
    """Run a worker; it says that it is ready by a file named after it."""
    app = make_app(spec)

    def ready(sender, **signal) -> None:
        (Path(spec.directory) / "ready" / sender.hostname).touch()

    def shorten(**signal) -> None:
        app.conf.broker_transport_options = {**app.conf.broker_transport_options, **spec.transport_options}

    worker_ready.connect(ready, weak=False)
    # After the policy has set its own, and after the check that refuses any other.
    worker_init.connect(shorten, weak=False)
    app.worker_main(["worker", "--without-gossip", "--without-mingle", *arguments])


def send(spec: Spec) -> None:
    """Publish what the lines of standard input ask for, and answer each with a line when the broker has taken it.

    A line is `[task, args, queue, options, times]`; the answer is `[first number, message id, sent at]`. A broker that
    is away is tried again, with a new message id, so that a message that was taken without an answer counts as another
    one and not as a second run.
    """
    app = make_app(spec)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, **spec.transport_options}
    for line in sys.stdin:
        task, args, queue, options, times = json.loads(line)
        for _ in range(times):
            answer = publish(app, task, args, queue, options)
        print(json.dumps(answer), flush=True)


def publish(app: Celery, task: str, args: list, queue: str, options: dict) -> list:
    """Publish one message, however long that takes; return its number, its id, and when it was about to go out."""
    while True:
        message_id, now = str(uuid.uuid4()), time.time()
        try:
            app.send_task(task, args, queue=queue, task_id=message_id, retry=False, **options)
        except Exception as error:  # any error of any client: it is shown, and the message is tried again
            print(f"not published yet: {error!r}", file=sys.stderr, flush=True)
            time.sleep(0.1)
        else:
            return [args[0] if args else 0, message_id, now]


def main() -> None:
    """Run what the arguments say."""
    spec, what, *arguments = sys.argv[1:]
    if what == "send":
        send(Spec(spec))
    elif what == "migrate":
        make_app(Spec(spec))
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
    else:
        worker(Spec(spec), arguments)


if __name__ == "__main__":
    main()
