"""Interrupted deliveries: their records, how they reach the database, and what becomes of parked messages."""
