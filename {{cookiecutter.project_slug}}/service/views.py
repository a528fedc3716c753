"""The home page, and what every page shows."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from service import own


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Show one link for each route of service/own.py, and one for the admin."""
    return render(request, "service/home.html", {"routes": list(own.ROUTES)})


def service_name(request: HttpRequest) -> dict[str, str]:
    """Give every template the name of the service."""
    return {"service_name": settings.SERVICE_NAME}
