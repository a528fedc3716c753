"""How to call each of the guards' tasks, and how to count its effect."""

from itertools import count

from redelivery.testing.case import Case
from tests.redelivery.guards.models import Account, Parcel, Rate, Visit

TASKS = "tests.redelivery.guards.tasks"
numbers = count(1)


def new_recipient() -> str:
    """Return an address that no other call uses."""
    return f"guard-{next(numbers)}@example.com"


class MailCase(Case):
    """A task whose effect is a mail to its last argument."""

    def prepare(self, world):
        """A recipient of its own."""
        return (new_recipient(),)

    def effects(self, world, args):
        """Mails in the sink."""
        return len(world.mailbox.mails(to=args[-1]))


class PageSomebody(MailCase):
    """Guard `none`."""

    task = f"{TASKS}.page_somebody"


class Greet(MailCase):
    """Guard `marker`."""

    task = f"{TASKS}.greet"


class AnnounceParcel(MailCase):
    """Guard `claim`."""

    task = f"{TASKS}.announce_parcel"

    def prepare(self, world):
        """A parcel that waits."""
        return Parcel.objects.create().pk, new_recipient()


class CreditOnce(Case):
    """Guard `transaction`, natural key."""

    task = f"{TASKS}.credit"

    def prepare(self, world):
        """An account without money."""
        return f"credit-{next(numbers)}", Account.objects.create().pk, 100

    def effects(self, world, args):
        """How often the amount was added."""
        return Account.objects.get(pk=args[1]).balance // args[2]


class StoreRate(Case):
    """Guard `transaction`, upsert."""

    task = f"{TASKS}.store_rate"

    def prepare(self, world):
        """A day of its own."""
        number = next(numbers)
        return f"{2000 + number // 28 // 12 % 1000}-{number // 28 % 12 + 1:02}-{number % 28 + 1:02}", 7

    def effects(self, world, args):
        """Rows of that day."""
        return Rate.objects.filter(day=args[0], value=args[1]).count()


class CountVisit(Case):
    """Guard `lost-ok`."""

    task = f"{TASKS}.count_visit"

    def prepare(self, world):
        """A page of its own."""
        return (f"/page-{next(numbers)}",)

    def effects(self, world, args):
        """Visits counted."""
        return Visit.objects.filter(page=args[0]).count()
