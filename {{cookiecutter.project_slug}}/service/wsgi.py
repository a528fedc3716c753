"""The WSGI application, for gunicorn: `gunicorn service.wsgi` reads gunicorn.conf.py beside manage.py."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "service.settings")

application = get_wsgi_application()
