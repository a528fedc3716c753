"""Fixtures of these tests."""

from tests.policy.conftest import policy_app

__all__ = ["policy_app"]
