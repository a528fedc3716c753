"""Worked example: a sign-up and its welcome email, at least once, with a marker against a second time."""
