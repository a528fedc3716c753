"""Worked example: an outbox payment: claimed, sent, recorded; what is in doubt is read back or shown to a person."""
