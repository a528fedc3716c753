"""Fixtures: a lab with workers of this service's transport, and a short lease."""

import sys
from pathlib import Path

import pytest
from redis import Redis

from redelivery.testing.servers import redis_server

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))

from transports import variants
from transports.lab import Lab

#: Seconds of a lease: short, so that a test can wait for five of them.
LEASE_S = 3


@pytest.fixture
def lab(tmp_path):
    """Make a running lab; its options are those of `Lab`."""
    labs = []

    def make(variant="ours", transport_options=(), **options):
        chosen = {"lease_s": LEASE_S, **dict(transport_options)}
        made = Lab(
            variants.VARIANTS[variant], tmp_path / f"lab{len(labs)}", transport_options=chosen, **options
        )
        labs.append(made.__enter__())
        return made

    yield make
    for made in reversed(labs):
        made.__exit__()


@pytest.fixture(scope="module")
def redis_url():
    """Give the URL of a Redis of the module's own."""
    with redis_server() as server:
        yield server.url()


@pytest.fixture
def server(redis_url):
    """Give a client of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        client.flushall()
        yield client
