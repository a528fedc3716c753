"""Messages as a task sees them, and what a broker does with them."""

import base64
import uuid
from dataclasses import dataclass, field, replace

from kombu.exceptions import EncodeError
from kombu.utils.json import dumps, loads

# Deliveries that follow from one call. A retry is a message like any other; a task with more of them never ends.
LONGEST_CHAIN = 50


@dataclass(frozen=True)
class Message:
    """One delivery of a message: which task, its arguments as JSON, and whether it was delivered before."""

    task: str
    arguments: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    retries: int = 0
    redelivered: bool = False

    @classmethod
    def to(cls, task: str, arguments: tuple | list | dict) -> "Message":
        """Return the message of a call with positional (tuple) or keyword (dict) arguments.

        Raises TypeError where they are neither, or JSON cannot carry them.
        """
        if not isinstance(arguments, tuple | list | dict):
            raise TypeError(f"the arguments must be a tuple or a dict, not {type(arguments).__name__}")
        both = ([], arguments) if isinstance(arguments, dict) else (arguments, {})
        try:
            return cls(task, dumps(both))
        except (TypeError, EncodeError) as error:
            raise TypeError(f"JSON cannot carry the arguments {arguments!r}: {error}") from None

    @classmethod
    def from_broker(cls, raw: dict) -> "Message":
        """Read what kombu wrote."""
        headers = raw["headers"]
        args, kwargs, _ = loads(base64.b64decode(raw["body"]))
        return cls(headers["task"], dumps([args, kwargs]), headers["id"], headers.get("retries") or 0)

    def decoded(self) -> tuple[tuple, dict]:
        """Return the arguments as the worker decodes them."""
        args, kwargs = loads(self.arguments)
        return tuple(args), kwargs

    def again(self) -> "Message":
        """Return its next delivery."""
        return replace(self, redelivered=True)
