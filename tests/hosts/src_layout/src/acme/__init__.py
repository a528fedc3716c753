from acme.queue.app import queue

__all__ = ["queue"]
