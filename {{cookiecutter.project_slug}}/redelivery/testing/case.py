"""What a person writes for a task: how to call it, and how to count its effect from outside."""

from django.utils.module_loading import autodiscover_modules

_cases: dict[str, "Case"] = {}


class Case:
    """How to call one task and how to count its effect.

    Put subclasses into a module `redelivery_case.py` of an installed app; they are found as `admin.py` is.

    Attributes:
        task: the task's full name, as in ack_policy.toml.
    """

    task: str

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "task" in cls.__dict__:
            _cases[cls.task] = cls()

    def prepare(self, world) -> tuple:
        """Write the rows that the task needs and return its arguments; called anew, in an empty world, for each kill.

        `world` is a `redelivery.testing.sandbox.World`: `world.mailbox` is the SMTP sink. Called more than once without
        emptying the world it must prepare independent calls (other rows, other recipients).
        """
        raise NotImplementedError

    def effects(self, world, args: tuple) -> int:
        """Count the effect of one call from outside: mails in the sink, charges in the provider's ledger, rows."""
        raise NotImplementedError


def all_cases() -> dict[str, Case]:
    """Return every case of the installed apps by task name."""
    autodiscover_modules("redelivery_case")
    return dict(_cases)
