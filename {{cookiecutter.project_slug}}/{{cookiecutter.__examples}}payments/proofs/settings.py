"""The service's settings with short times, so that an experiment sees a hard limit pass: see `field.policy`."""

import os
from datetime import timedelta
from pathlib import Path

from payments import limits
from service.settings import *  # noqa: F403

ACK_POLICY_FILE = Path(os.environ["PROOF_POLICY"])
limits.FIRST_PAUSE, limits.LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=8)
limits.dead_after = lambda: timedelta(seconds=float(os.environ["PROOF_DEAD_AFTER_S"]))
# Short pauses are what this check is there to refuse. Here the provider is the simulated one, and done in a second.
SILENCED_SYSTEM_CHECKS = ["payments.E003"]
