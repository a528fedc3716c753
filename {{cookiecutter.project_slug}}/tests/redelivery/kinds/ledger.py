"""A provider over HTTP, in a process of its own: `python ledger.py FILE` adds each request's body to a file as a line.

It prints the port that it listens on.
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Ledger(BaseHTTPRequestHandler):
    """Writes down, then answers."""

    def do_POST(self):
        """Take a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "ab") as file:
            file.write(body + b"\n")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        """Say nothing."""


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), Ledger)
    print(server.server_port, flush=True)
    server.serve_forever()
