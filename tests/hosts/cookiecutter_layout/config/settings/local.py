from .base import *

DEBUG = True
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": ""}}
CELERY_TASK_EAGER_PROPAGATES = True
