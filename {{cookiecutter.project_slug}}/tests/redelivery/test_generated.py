"""The redelivery tests of this service's tasks: one set for each entry of ack_policy.toml."""

from redelivery.testing.generated import *  # noqa: F403
