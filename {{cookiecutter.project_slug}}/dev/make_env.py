"""Make .env from .env.example, with a secret key of its own. An .env that is there stays as it is.

Usage: python dev/make_env.py .env.example .env
"""

import os
import re
import secrets
import sys
import tempfile
from pathlib import Path

EMPTY_SECRET = re.compile(r"^SECRET_KEY=$", re.MULTILINE)


def draw_secret() -> str:
    """Return 384 random bits as 64 characters out of A-Z, a-z, 0-9, _ and -; Django warns below 50 characters.

    Nothing in them means anything to a shell, to systemd or to django-environ, which all read .env files and
    do not agree on quotes, `$`, `#` and backslashes.
    """
    return secrets.token_urlsafe(48)


def fill_in_secret(example: str, secret: str) -> str:
    """Return the text of .env.example with the secret behind its one empty `SECRET_KEY=`.

    Raises:
        ValueError: there is no such line, or more than one.
    """
    if len(EMPTY_SECRET.findall(example)) != 1:
        raise ValueError("needs exactly one line 'SECRET_KEY=' with nothing behind it")
    return EMPTY_SECRET.sub(f"SECRET_KEY={secret}", example)


def write_once(target: Path, text: str) -> bool:
    """Write the file, readable for its owner only; False when there is one already.

    It appears with its whole content or not at all, and of two runs at once one wins: `link` never replaces.
    """
    handle, draft = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.link(draft, target)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    return True


def main(example: Path, target: Path) -> str | None:
    """Make the file; return None, or the sentence that says why that was not possible."""
    if os.path.lexists(target):
        return None
    try:
        text = fill_in_secret(example.read_text(encoding="utf-8"), draw_secret())
        if write_once(target, text):
            print(f"{target} made from {example}, with a secret key of its own; git ignores it.")
    except ValueError as error:
        return f"{example} {error}: take it from the template again."
    except OSError as error:
        return f"{target} cannot be made from {example}: {error.strerror} ({error.filename})."
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
