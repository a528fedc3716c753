"""How the redelivery tests call the tasks of the lead form, and count what they do."""

from leads.models import Lead
from redelivery.testing.case import Case


class LeadAlert(Case):
    """One lead; its effect is a mail to the team that names it."""

    task = "leads.tasks.alert_new_lead"

    def prepare(self, world):
        """A lead."""
        lead = Lead.objects.create(name="Grace", email="grace@example.com", message="Hello.")
        return (str(lead.pk),)

    def effects(self, world, args):
        """Mails in the sink whose Message-ID names the lead: all go to the same team."""
        return sum(args[0] in mail["message_id"] for mail in world.mailbox.mails())
