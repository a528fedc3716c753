"""`python -m payments.proofs NAME [arguments]`."""

import importlib
import os
import sys

import django

NAMES = ("behaviours", "storm", "fiftieth", "stopped", "claims")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(f"Say which one: {', '.join(NAMES)}. For example: make prove ARGS=behaviours")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "service.settings")
    django.setup()
    sys.exit(importlib.import_module(f"payments.proofs.{sys.argv[1]}").main(sys.argv[2:]))
