"""`python -m payments.proofs NAME [arguments]`."""

import importlib
import os
import sys

import django

# Those that run in the service's own settings; the others bring shorter times.
NAMES = {
    "behaviours": True,
    "storm": False,
    "fiftieth": False,
    "stopped": False,
    "claims": True,
    "rates": False,
}


def main() -> int:
    """Run the experiment that the command line names, and return its exit status."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"Say which one: {', '.join(NAMES)}. For example: make prove ARGS=stopped", file=sys.stderr)
        return 2
    if NAMES[sys.argv[1]]:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "service.settings")
        django.setup()
    return importlib.import_module(f"payments.proofs.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
