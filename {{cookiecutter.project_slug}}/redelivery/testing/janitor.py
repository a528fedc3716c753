"""Clean up after a process however it ends: a SIGKILLed one cannot."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def janitor(clean: Callable[[], None]) -> Iterator[None]:
    """Have a process of its own call `clean` when the block ends, or when the process that is in it has died.

    Fork it before there is anything to clean, and before there are connections or threads.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()  # Ctrl-C is not for this one
            os.close(writing)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nowhere, standard)
            os.read(
                reading, 1
            )  # returns when the other end is written to, or closed because all who had it died
            clean()
        finally:
            os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.write(writing, b".")
        os.close(writing)
        os.waitpid(pid, 0)
