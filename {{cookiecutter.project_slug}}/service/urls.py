"""URLs: the home page, the health check, the admin, and what the service adds in service/own.py."""

from django.contrib import admin
from django.urls import include, path

from service import health, own, views

urlpatterns = [
    path("", views.home, name="home"),
    path("healthz", health.healthz, name="healthz"),
    path("admin/", admin.site.urls),
    *(path(prefix, include(urls)) for prefix, urls in own.ROUTES.items()),
]
