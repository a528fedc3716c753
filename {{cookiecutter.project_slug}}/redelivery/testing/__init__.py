"""Tests that kill: crash maps, twins and real workers, made from ack_policy.toml and a case for each task.

Nothing in here is imported by a running service.
"""
