"""URLs of the orders."""

from django.urls import path

from payments import views

app_name = "payments"
urlpatterns = [path("", views.order, name="order"), path("thanks/", views.thanks, name="thanks")]
