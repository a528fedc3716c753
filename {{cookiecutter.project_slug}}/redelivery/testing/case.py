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
            if cls.task in _cases:
                raise TypeError(
                    f"{cls.task} has two cases: {type(_cases[cls.task]).__name__} and {cls.__name__}."
                )
            _cases[cls.task] = cls()

    def prepare(self, world) -> tuple | dict:
        """Write the rows that the task needs and return its arguments; called anew, in an empty world, for each kill.

        The arguments are a tuple of positional ones or a dict of keyword ones, as JSON can carry them.

        `world` is a `redelivery.testing.sandbox.World`: `world.mailbox` is the SMTP sink. Called more than once without
        emptying the world it must prepare independent calls (other rows, other recipients).
        """
        raise NotImplementedError

    def effects(self, world, args: tuple | dict) -> int:
        """Count the effect of one call from outside: mails in the sink, charges in the provider's ledger, rows.

        `args` is what `prepare` returned. Messages that the task publishes are delivered before it is counted.
        """
        raise NotImplementedError


def all_cases() -> dict[str, Case]:
    """Return every case of the installed apps by task name."""
    autodiscover_modules("redelivery_case")
    return dict(_cases)
