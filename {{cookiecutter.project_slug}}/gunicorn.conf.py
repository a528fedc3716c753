"""How gunicorn serves this service; GUNICORN_CMD_ARGS and the command line win over this file."""

import subprocess
import sys

wsgi_app = "service.wsgi:application"
bind = "127.0.0.1:8000"
# Two processes with a few threads each: requests here wait for the database and the broker, they do not
# compute.
workers = 2
threads = 4
# Seconds that a stop gives requests in flight. The slowest one waits 3 s for a broker that is away.
graceful_timeout = 20
accesslog = "-"
# Nobody controls it but its supervisor, and several services may run under one user.
control_socket_disable = True


def on_starting(server):
    """Load the service once, and end if that fails: each worker would say why, and gunicorn add a traceback.

    In a process of its own, because what the main process has imported a reload (SIGHUP) would not load again.
    """
    if status := subprocess.run([sys.executable, "-c", "import service.wsgi"]).returncode:
        sys.exit(status)
