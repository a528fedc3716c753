"""/healthz: do the database, the broker and the cache answer?

It says so in about a second, whatever they do. `/healthz?detail` adds the numbers of service/own.py, for staff and for
whoever sends the header `Authorization: Bearer HEALTH_TOKEN`.
"""

import logging
import secrets
import threading
from time import monotonic

from django.core.cache import cache
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from service import own
from service.celery import app
from service.settings.env import env

logger = logging.getLogger(__name__)

TIMEOUT_S = 1.0


def ask_database() -> None:
    """Ask the database for a row; raises what the database raises."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    finally:
        connection.close()  # Django opened it for this thread alone


def ask_broker() -> None:
    """Open a connection to the broker, which pings it; raises what kombu raises."""
    with app.connection_for_write() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0)


def ask_cache() -> None:
    """Write a value to the cache and read it back; raises what the cache raises, or ValueError."""
    value = secrets.token_hex(8)
    cache.set("healthz", value, timeout=10)
    if cache.get("healthz") != value:
        raise ValueError("the cache did not give back what was written")


class Question(threading.Thread):
    """A question to a server, in a thread of its own, so that one that never answers can be left alone."""

    def __init__(self, name: str, ask):
        super().__init__(name=f"healthz-{name}", daemon=True)
        self.server = name
        self.ask = ask
        self.answered = False

    def run(self) -> None:
        """Ask, and note whether an answer came."""
        try:
            self.ask()
            self.answered = True
        except Exception as error:
            # The kind of error only: its text may hold a URL, and that a password.
            logger.warning("healthz: no answer from the %s: %s", self.server, type(error).__name__)


SERVERS = {"database": ask_database, "broker": ask_broker, "cache": ask_cache}
_open: dict[str, Question] = {}
_lock = threading.Lock()


def question(server: str) -> Question:
    """Ask a server; while an earlier question waits it is that one, so that threads do not pile up."""
    with _lock:
        asked = _open.get(server)
        if asked is None or not asked.is_alive():
            asked = _open[server] = Question(server, SERVERS[server])
            asked.start()
        return asked


def details() -> dict:
    """Return the numbers of each part of the service; of one that cannot say, the kind of error."""
    found = {}
    for name, function in own.DETAILS.items():
        try:
            found[name] = import_string(function)()
        except Exception as error:
            logger.warning("healthz: no numbers of %s: %s", name, type(error).__name__)
            found[name] = {"error": type(error).__name__}
    return found


def may_see_details(request: HttpRequest) -> bool:
    """Whether whoever asks may see numbers of the business."""
    token = env.str("HEALTH_TOKEN", default="")
    given = request.headers.get("Authorization", "")
    if token and secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return True
    return bool(request.user.is_active and request.user.is_staff)


@csrf_exempt  # it changes nothing, so that what is not to be read is answered with 405, not with 403
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when every server does, else 503; the JSON body says which are "ok" and which "down".

    The numbers of `?detail` change no status: they are for whoever reads them.
    """
    questions = [question(server) for server in SERVERS]
    deadline = monotonic() + TIMEOUT_S
    servers = {}
    for asked in questions:
        asked.join(max(0.0, deadline - monotonic()))
        servers[asked.server] = "ok" if asked.answered else "down"
    healthy = set(servers.values()) == {"ok"}
    body = {"status": "ok" if healthy else "down", **servers}
    if "detail" in request.GET and servers["database"] == "ok":
        if not may_see_details(request):
            return JsonResponse({"error": "log in as staff, or send the token"}, status=403)
        body |= details()
    return JsonResponse(body, status=200 if healthy else 503)
