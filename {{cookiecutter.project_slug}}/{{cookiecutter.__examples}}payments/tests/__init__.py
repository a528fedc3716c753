"""Tests of the payments, by topic."""
