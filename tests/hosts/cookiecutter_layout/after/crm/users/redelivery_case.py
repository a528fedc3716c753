from uuid import uuid4

from crm.users.models import Contact
from redelivery.testing.case import Case


class Points(Case):
    """One point for somebody new; the effect is the number of points."""

    task = "crm.users.tasks.add_points"

    def prepare(self, world):
        return {"email": f"{uuid4().hex}@example.com", "points": 1}

    def effects(self, world, args):
        return sum(Contact.objects.filter(email=args["email"]).values_list("points", flat=True))
