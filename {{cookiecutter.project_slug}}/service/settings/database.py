"""The database: an SQLite file for development, PostgreSQL in production (DATABASE_URL)."""

from service.settings.env import BASE_DIR, env

DATABASES = {"default": env.db_url("DATABASE_URL", default="sqlite:///db.sqlite3")}

_default = DATABASES["default"]
_options = _default.setdefault("OPTIONS", {})

if _default["ENGINE"].endswith("sqlite3"):
    if _default["NAME"] != ":memory:":
        _default["NAME"] = str(BASE_DIR / _default["NAME"])
    # Web, worker and beat share the file: readers do not wait for a writer (WAL), and a writer waits for its
    # turn from the beginning of its transaction, where waiting is possible, not in the middle, where SQLite
    # refuses at once.
    _options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
    _options.setdefault("transaction_mode", "IMMEDIATE")
    _options.setdefault("timeout", 20)
    # A file for the tests too: an in-memory database is seen by one process only, and tests kill processes.
    _default["TEST"] = {"NAME": str(BASE_DIR / "test.sqlite3")}
else:
    _default["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=60)
    _default["CONN_HEALTH_CHECKS"] = True
    _options.setdefault("connect_timeout", 5)
