"""URLs of the sign-up."""

from django.urls import path

from onboarding import views

app_name = "onboarding"
urlpatterns = [path("", views.sign_up, name="sign_up"), path("thanks/", views.thanks, name="thanks")]
