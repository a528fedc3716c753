"""URLs of the lead form."""

from django.urls import path

from leads import views

app_name = "leads"
urlpatterns = [path("", views.contact, name="contact"), path("thanks/", views.thanks, name="thanks")]
