"""The order page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from payments.forms import OrderForm
from payments.publishing import place_order


@require_http_methods(["GET", "HEAD", "POST"])
def order(request: HttpRequest) -> HttpResponse:
    """Show the form; on a valid one place the order and go to the thanks page."""
    form = OrderForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        place_order(form.save(commit=False))
        return redirect("payments:thanks")
    return render(request, "payments/order.html", {"form": form})


@require_safe
def thanks(request: HttpRequest) -> HttpResponse:
    """Say what happens next. It tells nothing about anybody, so anybody may see it."""
    return render(request, "payments/thanks.html")
