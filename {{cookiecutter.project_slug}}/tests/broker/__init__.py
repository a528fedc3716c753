"""The Redis transport with leases: real workers, a real Redis, and what may happen to both."""
