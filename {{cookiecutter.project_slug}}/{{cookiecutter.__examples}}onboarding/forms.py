"""The sign-up form."""

from django import forms

from onboarding.models import Submission


class SignUpForm(forms.ModelForm):
    """Name and e-mail address of somebody who signs up."""

    class Meta:
        model = Submission
        fields = ("name", "email")
        widgets = {
            "name": forms.TextInput(attrs={"autocomplete": "name"}),
            "email": forms.EmailInput(attrs={"autocomplete": "email"}),
        }
