from .base import *

SECRET_KEY = env("DJANGO_SECRET_KEY")
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": env("CACHE_URL", default="redis://127.0.0.1:6380/0"),
    },
}
