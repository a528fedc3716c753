"""Experiments that show what the payments promise, at full size: `python -m payments.proofs NAME`, or `make prove`.

The tests run each of them in a short form.
"""
