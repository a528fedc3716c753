"""How to call each of the kinds' tasks, and how to count its effect."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

from redelivery.testing import processes
from redelivery.testing.case import Case
from tests.redelivery.kinds.models import Effect

TASKS = "tests.redelivery.kinds.tasks"
# In the order in which the tests speak of them.
WITH_ROWS = [
    "in_transaction",
    "in_a_thread",
    "in_a_pool",
    "two_threads",
    "leaves_a_thread",
    "leaves_a_loop",
    "in_a_coroutine",
    "in_a_generator",
    "with_finally",
    "raising",
    "bound",
    "retrying",
    "autoretrying",
    "handing_on",
    "leaves_a_daemon",
    "forking",
    "printing",
    "remembering",
    "exiting_hard",
    "exiting",
    "sleeping",
    "looping",
    "always_retrying",
    "at_random",
    "without_effect",
    "killing_itself",
    "spinning_threads",
]


class RowCase(Case):
    """A task whose effect is a row that names the call."""

    def prepare(self, world):
        """A call of its own."""
        return (uuid.uuid4().hex,)

    def effects(self, world, args):
        """Rows of the call."""
        return Effect.objects.filter(call=args[0]).count()


for name in WITH_ROWS:
    type(name, (RowCase,), {"task": f"{TASKS}.{name}"})


class Tally(RowCase):
    """A class."""

    task = "kinds.tally"


class OtherDatabase(RowCase):
    """A row in another database."""

    task = f"{TASKS}.other_database"

    def prepare(self, world):
        """A row in the first database, to be read through its replica."""
        (call,) = super().prepare(world)
        Effect.objects.create(id=uuid.uuid4(), call=f"{call} asked")
        return (call,)

    def effects(self, world, args):
        """Rows of the call."""
        return Effect.objects.using("other").filter(call=args[0]).count()


class WithAName(RowCase):
    """Keyword arguments."""

    task = "kinds.renamed"

    def prepare(self, world):
        """A dict."""
        return {"call": uuid.uuid4().hex, "number": uuid.uuid4()}

    def effects(self, world, args):
        """Rows of the call."""
        return super().effects(world, [args["call"]])


class FailingSend(RowCase):
    """A mail that is refused."""

    task = f"{TASKS}.failing_send"

    def prepare(self, world):
        """A server that refuses."""
        world.mailbox.behave(data="550 no")
        return (*super().prepare(world), "nobody@example.com")


class FileCase(Case):
    """A task whose effect is a line of a file."""

    def prepare(self, world):
        """A file of its own."""
        return (f"{world.addresses.directory}/{uuid.uuid4().hex}",)

    def effects(self, world, args):
        """Lines in the file."""
        file = Path(args[0])
        return file.read_text().count("x\n") if file.exists() else 0


for name in ("in_a_subprocess", "leaves_a_subprocess"):
    type(name, (FileCase,), {"task": f"{TASKS}.{name}"})


class OverHttp(Case):
    """A provider, which is a process of its own: a thread of this one would not exist in a forked child."""

    task = f"{TASKS}.over_http"
    url = None

    def prepare(self, world):
        """The provider's address, and an order."""
        if self.url is None:
            self.file = Path(world.addresses.directory) / "ledger"
            self.file.touch()
            program = Path(__file__).with_name("ledger.py")
            provider = processes.start([sys.executable, str(program), str(self.file)], stdout=subprocess.PIPE)
            self.url = f"http://127.0.0.1:{provider.stdout.readline().decode().strip()}"
        return self.url, uuid.uuid4().hex

    def effects(self, world, args):
        """Orders in the ledger."""
        return self.file.read_text().split().count(args[1])


class LaterCase(RowCase):
    """A task that does in the runs that are killed what it did not do in the first two, on the same path."""

    runs = 0

    def prepare(self, world):
        """What to do, by the number of runs."""
        self.runs += 1
        return (*super().prepare(world), self.later if self.runs > 2 else 0)


for name, later in {"sleeping_later": 3600, "killing_its_parent": int(signal.SIGKILL)}.items():
    type(name, (LaterCase,), {"task": f"{TASKS}.{name}", "later": later})


class BadPrepare(RowCase):
    """A mistake in prepare()."""

    task = f"{TASKS}.bad_prepare"

    def prepare(self, world):
        """Fail."""
        return (1 / 0,)


class BadArguments(RowCase):
    """An object as an argument."""

    task = f"{TASKS}.bad_arguments"

    def prepare(self, world):
        """Return an object."""
        return (object(),)


class BadEffects(RowCase):
    """A mistake in effects()."""

    task = f"{TASKS}.bad_effects"

    def effects(self, world, args):
        """Fail."""
        raise KeyError(args[0])


class BadNumber(RowCase):
    """No return in effects()."""

    task = f"{TASKS}.bad_number"

    def effects(self, world, args):
        """Forget to return."""
