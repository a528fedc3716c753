"""The cache, which holds the markers of tasks.

Never the broker's Redis database: clearing a cache is FLUSHDB.
"""

from django.utils.text import slugify

from service.settings.core import SERVICE_NAME
from service.settings.env import env

CACHES = {"default": env.cache_url("CACHE_URL", default="redis://127.0.0.1:6379/1")}

# Another service on the same Redis must not find our markers, nor we its own.
CACHES["default"].setdefault("KEY_PREFIX", slugify(SERVICE_NAME))
if CACHES["default"]["BACKEND"] == "django.core.cache.backends.redis.RedisCache":
    # A Redis that does not answer is an error after so many seconds, not a web request or a task that hangs.
    CACHES["default"].setdefault("OPTIONS", {}).setdefault("socket_connect_timeout", 1)
    CACHES["default"]["OPTIONS"].setdefault("socket_timeout", 1)
