"""What a marker costs a task: one look before the effect, one write after it, on a Redis of its own."""

import statistics
import tempfile
import time
from pathlib import Path

TASK = "lab.marked"
POLICY = f"""
[queues.lab]
concurrency = 1

[tasks."{TASK}"]
queue        = "lab"
ack          = "late"
guard        = "marker"
time_limit_s = 60
reason       = "Only there for its marker to be measured."
"""


def microseconds(times: int = 2000) -> dict[str, float]:
    """Return the medians of a look in vain (`lookup`) and of a `write`. Settles this process's Django settings."""
    from django.conf import settings

    from redelivery.testing.servers import redis_server

    with redis_server() as server, tempfile.TemporaryDirectory() as directory:
        policy_file = Path(directory) / "ack_policy.toml"
        policy_file.write_text(POLICY)
        backend = "django.core.cache.backends.redis.RedisCache"
        settings.configure(
            ACK_POLICY_FILE=policy_file, CACHES={"default": {"BACKEND": backend, "LOCATION": server.url(0)}}
        )
        from redelivery.marker import Marker

        markers = [Marker(TASK, number) for number in range(times)]
        return {"lookup": median_us(Marker.is_set, markers), "write": median_us(Marker.set, markers)}


def median_us(action, markers: list) -> float:
    """Return the median time of an action on each of the markers, in microseconds."""
    taken = []
    for marker in markers:
        begun = time.perf_counter()
        action(marker)
        taken.append(time.perf_counter() - begun)
    return round(statistics.median(taken) * 1e6, 1)
