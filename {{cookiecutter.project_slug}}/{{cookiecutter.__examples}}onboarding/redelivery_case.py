"""How the redelivery tests call the tasks of the sign-up, and count what they do."""

from uuid import uuid4

from onboarding.models import Submission
from redelivery.testing.case import Case


class WelcomeEmail(Case):
    """One submission; its effect is a mail to its address."""

    task = "onboarding.tasks.send_welcome_email"

    def prepare(self, world):
        """A submission with an address of its own."""
        submission = Submission.objects.create(name="Ada", email=f"{uuid4().hex}@example.com")
        return (str(submission.pk),)

    def effects(self, world, args):
        """Mails in the sink."""
        return len(world.mailbox.mails(to=Submission.objects.get(pk=args[0]).email))
