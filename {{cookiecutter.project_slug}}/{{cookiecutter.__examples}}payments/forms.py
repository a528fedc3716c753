"""The order form."""

from django import forms

from payments.records import Order

CURRENCIES = ("EUR", "GBP", "USD")


class OrderForm(forms.ModelForm):
    """What is bought, for how much."""

    currency = forms.ChoiceField(choices=[(code, code) for code in CURRENCIES])

    class Meta:
        model = Order
        fields = ("customer", "method", "amount", "currency")
        help_texts = {
            "method": "The provider's name of the card, such as pm_card_visa. A real page gets it from the provider.",
            "amount": "In cents or pence.",
        }
