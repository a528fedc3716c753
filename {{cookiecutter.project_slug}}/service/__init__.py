"""The Django project: settings by topic, URLs, the Celery app.

The app is loaded here so that tasks find it.
"""

from service.celery import app as celery_app

__all__ = ["celery_app"]
