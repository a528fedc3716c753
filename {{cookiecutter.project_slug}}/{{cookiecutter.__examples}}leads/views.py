"""The lead page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from leads import services
from leads.forms import LeadForm


@require_http_methods(["GET", "HEAD", "POST"])
def contact(request: HttpRequest) -> HttpResponse:
    """Show the form; on a valid one store the lead and go to the thanks page."""
    form = LeadForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        services.register(form.save(commit=False))
        return redirect("leads:thanks")
    return render(request, "leads/contact.html", {"form": form})


@require_safe
def thanks(request: HttpRequest) -> HttpResponse:
    """Say what happens next. It tells nothing about anybody, so anybody may see it."""
    return render(request, "leads/thanks.html")
