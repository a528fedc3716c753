"""Redis as the broker, at least once: take and register in one step, and leases instead of a timeout.

The layout of the queues is kombu's own, so that stock workers can serve the same ones. Nothing is imported here that
needs redis-py: other brokers do without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redelivery.broker.holder import Holder

_holder: Holder | None = None


def current() -> Holder | None:
    """What this process holds; None outside of a worker's main process, and with the transport off."""
    return _holder if _holder and _holder.pid == os.getpid() else None


def begin(node: str) -> None:
    """Make the holder of this process, the main process of the worker ``node``."""
    global _holder
    from redelivery.broker.holder import Holder

    _holder = Holder(node)
