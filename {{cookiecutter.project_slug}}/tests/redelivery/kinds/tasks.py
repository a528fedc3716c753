"""One small task for each kind of code. The effect, if there is one, is a row, a line of a file or a mail."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

from celery import Task, current_app, shared_task
from django.core.cache import caches
from django.core.mail import send_mail
from django.db import transaction

from tests.redelivery.kinds.models import Effect

remembered = set()


def act(call, using="default"):
    """Have one effect."""
    Effect.objects.using(using).create(id=uuid.uuid4(), call=call)


@shared_task
def in_transaction(call):
    """Two rows in one transaction."""
    with transaction.atomic():
        act(f"{call} first")
        act(call)
    return "committed"


@shared_task
def other_database(call):
    """A row in the second database, found through a replica, and a marker in the second cache."""
    if caches["second"].get(call):
        return
    asked = Effect.objects.using("replica").get(call=f"{call} asked")
    act(asked.call.removesuffix(" asked"), using="other")
    caches["second"].set(call, 1)


@shared_task
def over_http(url, call):
    """A request to a provider."""
    with urllib.request.urlopen(url, data=call.encode(), timeout=5) as answer:
        return answer.status


@shared_task
def failing_send(call, to):
    """A mail that the server refuses; the row says so."""
    try:
        send_mail("Hello", "A line.", "kinds@example.com", [to])
    except OSError:
        act(call)
        raise


@shared_task
def in_a_thread(call):
    """A thread, joined."""
    thread = threading.Thread(target=act, args=[call])
    thread.start()
    thread.join()


@shared_task
def in_a_pool(call):
    """A pool of one thread."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(act, call).result()


class SlowToStart(threading.Thread):
    """A thread that in every second process gets its first turn of a core late, as on a busy machine."""

    def _bootstrap(self):
        time.sleep(os.getpid() % 2 * 0.03)
        super()._bootstrap()


@shared_task
def two_threads(call):
    """Two threads of the same name, side by side, with an effect each."""
    threads = [SlowToStart(target=act, args=[call], name="twin") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@shared_task
def spinning_threads(call):
    """A loop that waits for a thread."""
    done = []
    threading.Thread(target=lambda: done.append(act(call))).start()
    while not done:
        pass


@shared_task
def leaves_a_thread(call):
    """A thread that still works when the task has returned."""

    def later():
        time.sleep(0.02)
        act(call)

    threading.Thread(target=later).start()


@shared_task
def leaves_a_loop(call):
    """A thread that never ends."""
    threading.Thread(target=lambda: [time.sleep(0.01) for _ in itertools.count()], daemon=True).start()
    act(call)


@shared_task
def in_a_coroutine(call):
    """An event loop, and a thread beside it."""

    async def main():
        await asyncio.to_thread(act, call)

    asyncio.run(main())


def steps(call):
    """Yield before the effect and after it."""
    yield "before"
    act(call)
    yield "after"


@shared_task
def in_a_generator(call):
    """The effect takes place between two yields, inside a comprehension."""
    return [step.upper() for step in steps(call)]


@shared_task
def with_finally(call):
    """The effect on the way out."""
    try:
        raise ValueError(call)
    except ValueError:
        pass
    finally:
        act(call)


@shared_task
def raising(call):
    """An effect, then an error: the task fails, and is acknowledged all the same."""
    act(call)
    raise RuntimeError(call)


@shared_task(bind=True)
def bound(self, call):
    """Acts only as the task that it is, and on a first delivery as on a second."""
    if self.request.task == self.name and self.request.delivery_info["redelivered"] in (False, True):
        act(call)


@shared_task(bind=True, max_retries=3)
def retrying(self, call):
    """Retries once, then acts."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    act(call)


@shared_task(bind=True, autoretry_for=(KeyError,), retry_backoff=1, max_retries=3)
def autoretrying(self, call):
    """Acts, then fails once and is retried: two effects."""
    act(call)
    if self.request.retries == 0:
        raise KeyError(call)


class Tally(Task):
    """A task that is a class, with a hook."""

    name = "kinds.tally"

    def run(self, call):
        """Leave the effect to the hook."""

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        """Have the effect."""
        act(args[0])


current_app.register_task(Tally())


@shared_task(name="kinds.renamed")
def with_a_name(*, call, number):
    """Keyword arguments only, one of them no plain JSON."""
    if isinstance(number, uuid.UUID):
        act(call)


@shared_task
def handing_on(call):
    """Another task has the effect."""
    transaction.on_commit(lambda: written_by_another.delay(call))


@shared_task
def written_by_another(call):
    """The effect of `handing_on`."""
    act(call)


@shared_task
def in_a_subprocess(file):
    """A program, waited for."""
    subprocess.run(["sh", "-c", 'echo x >> "$0"', file], check=True)


@shared_task
def leaves_a_subprocess(file):
    """A program, not waited for."""
    subprocess.Popen(["sh", "-c", 'sleep 0.05; echo x >> "$0"', file], start_new_session=True)
    time.sleep(0)


@shared_task
def leaves_a_daemon(call):
    """A program that outlives everything."""
    subprocess.Popen(["sleep", "4242"], start_new_session=True)
    act(call)


@shared_task
def forking(call):
    """A fork of its own that runs project code."""
    if (pid := os.fork()) == 0:
        steps(call)
        os._exit(0)
    os.waitpid(pid, 0)
    act(call)


@shared_task
def printing(call):
    """Words on stdout, which must not get into the JSON."""
    print("a line of the task", flush=True)
    subprocess.run(["echo", "a line of its program"], check=True)
    act(call)


@shared_task
def remembering(call):
    """A guard in the process's own memory, which guards nothing."""
    if call in remembered:
        return
    act(call)
    remembered.add(call)


@shared_task
def sleeping(call):
    """Does not end."""
    act(call)
    time.sleep(3600)


@shared_task
def looping(call):
    """Does not end either."""
    act(call)
    while True:
        pass


@shared_task(bind=True, max_retries=None)
def always_retrying(self, call):
    """Comes back for ever."""
    raise self.retry(countdown=1)


@shared_task
def at_random(call):
    """Another path in each run."""
    for _ in range(int.from_bytes(random.SystemRandom().randbytes(2)) % 5000):
        pass
    act(call)


@shared_task
def without_effect(call):
    """Does nothing that its case counts."""
    return call


@shared_task
def killing_itself(call):
    """As the kernel would when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


@shared_task
def exiting_hard(call):
    """Ends the worker's process once, after the effect."""
    if Effect.objects.filter(call=call).exists():
        return
    act(call)
    os._exit(1)


@shared_task
def exiting(call):
    """Raises SystemExit, which a worker takes for a failure of the task."""
    act(call)
    sys.exit(1)


@shared_task
def bad_prepare(call):
    """Its case cannot prepare."""


@shared_task
def bad_arguments(call):
    """Its case returns what JSON cannot carry."""


@shared_task
def bad_effects(call):
    """Its case cannot count."""


@shared_task
def bad_number(call):
    """Its case counts what is no number."""


@shared_task
def sleeping_later(call, seconds):
    """Ends in the first runs, and no more in those that are killed."""
    act(call)
    time.sleep(seconds)
    act(call)


@shared_task
def killing_its_parent(call, number):
    """Leaves the first runs alone, and ends what starts those that are killed."""
    act(call)
    os.kill(os.getppid(), number)
    act(call)
