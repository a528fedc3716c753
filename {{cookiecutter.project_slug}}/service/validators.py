"""Validators for text that people type and that ends up in mails."""

from django.core.validators import RegexValidator

one_line = RegexValidator(
    r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z",
    "Use one line of text without control characters.",
    code="one_line",
)
"""Refuses line breaks and other control characters: in a mail header they would begin a new header."""
