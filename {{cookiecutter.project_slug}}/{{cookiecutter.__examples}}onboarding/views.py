"""The sign-up page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from onboarding import services
from onboarding.forms import SignUpForm


@require_http_methods(["GET", "HEAD", "POST"])
def sign_up(request: HttpRequest) -> HttpResponse:
    """Show the form; on a valid one store the submission and go to the thanks page."""
    form = SignUpForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        services.sign_up(form.save(commit=False))
        return redirect("onboarding:thanks")
    return render(request, "onboarding/sign_up.html", {"form": form})


@require_safe
def thanks(request: HttpRequest) -> HttpResponse:
    """Say what happens next. It tells nothing about anybody, so anybody may see it."""
    return render(request, "onboarding/thanks.html")
