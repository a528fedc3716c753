"""A way to Redis that can go dead: connections stay open, and nothing comes through any more."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards TCP connections to a loopback port, each until `swallow` is called; later ones are forwarded again.

    As when a firewall forgets its connections, or a network cable is pulled and plugged in elsewhere.
    """

    def __init__(self, target: int):
        self.target, self.age = target, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Let nothing through any more of the connections that there are; neither side is told."""
        self.age += 1

    def close(self) -> None:
        """Accept no more connections."""
        self.server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self.server.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.target))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(*ends, self.age), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, age: int) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65536):
                if age == self.age:
                    target.sendall(data)
