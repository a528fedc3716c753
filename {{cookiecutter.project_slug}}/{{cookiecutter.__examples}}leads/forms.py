"""The lead form."""

from django import forms

from leads.models import Lead


class LeadForm(forms.ModelForm):
    """What somebody who wants to hear from the team has to say."""

    class Meta:
        model = Lead
        fields = ("name", "email", "message")
        widgets = {
            "name": forms.TextInput(attrs={"autocomplete": "name"}),
            "email": forms.EmailInput(attrs={"autocomplete": "email"}),
            "message": forms.Textarea(attrs={"rows": 6}),
        }
