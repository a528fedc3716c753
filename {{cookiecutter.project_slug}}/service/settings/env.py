"""Where values come from: the environment, and in development the file .env, which never overrides it.

A value that makes no sense ends the process with one sentence about its variable, instead of a traceback.
"""

import sys
from collections.abc import Container
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import DomainNameValidator, EmailValidator
from kombu.transport import TRANSPORT_ALIASES

BASE_DIR = Path(__file__).resolve().parents[2]

TRUE, FALSE = environ.Env.BOOLEAN_TRUE_STRINGS, ("", "0", "false", "n", "no", "off")
REDIS = ("redis", "rediss", "valkey", "valkeys")


def refuse(variable: str, sentence: str) -> NoReturn:
    """End this process with a sentence about a variable. Values that may hold a password stay out of it."""
    print(f"{variable} {sentence}", file=sys.stderr, flush=True)
    # What ends with any other status is started again by gunicorn, for ever.
    sys.exit(3 if "gunicorn" in sys.modules else 1)


@contextmanager
def url_like(cure: str, variable: str):
    """Refuse the variable when its URL turns out to be unusable."""
    try:
        yield
    except (ValueError, ImproperlyConfigured):
        refuse(variable, f"is not a URL that can be used: write it like {cure}; # in a password is %23.")


def look_at(url: str, schemes: Container[str]) -> None:
    """Raise ValueError for a URL that a library would take for something else than was meant."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in schemes:
        raise ValueError("no known scheme")
    if scheme == "sqlite" and not rest.startswith(("/", ":memory:")):
        raise ValueError("with two slashes it is a database in memory")
    if scheme in REDIS and not rest.startswith("/"):
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0 or not (parts.path.strip("/") or "0").isdecimal():
            raise ValueError("a database that is no number is taken for 0")


class Env(environ.Env):
    """django-environ, but strict: it takes DEBUG=ture for false, and postgres//host/name for no database."""

    def get_value(self, var: str, *args, **kwargs):
        """Refuse a reference: undefined it counts as a variable that is not set, and in a URL it is a traceback."""
        if self.ENVIRON.get(var, "").startswith("$"):
            refuse(
                var, "begins with $, which stands for the name of another variable: write the value itself."
            )
        return super().get_value(var, *args, **kwargs)

    def bool(self, var: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.str(var, default=str(default)).strip().lower()
        if value not in (*TRUE, *FALSE):
            refuse(var, f"is {value!r}, which is neither true nor false: write one of these two words.")
        return value in TRUE

    def int(self, var: str, default: int) -> int:
        """Return a whole number."""
        try:
            return super().int(var, default=default)
        except ValueError:
            refuse(var, f"is {self.str(var)!r}, which is not a whole number: write digits only.")

    def domain(self, var: str, default: str) -> str:
        """Return a host name."""
        value = self.str(var, default=default)
        try:
            # "localhost" and the like are names as well, and an underscore is none.
            DomainNameValidator()(value if "." in value else f"{value}.test")
        except ValidationError:
            refuse(var, f"is {value!r}, which is no host name: write it like example.com.")
        return value

    def address(self, var: str, default: str) -> str:
        """Return a mail address."""
        value = self.str(var, default=default)
        name, at, host = value.rpartition("@")
        try:
            EmailValidator()(value if "." in host else f"{name}{at}{host}.test")
        except ValidationError:
            refuse(var, f"is {value!r}, which is no mail address: write it like team@example.com.")
        return value

    def db_url(self, var: str, default: str) -> dict:
        """Return Django's settings of a database."""
        with url_like("postgres://user:password@host:5432/name or sqlite:///file", var):
            look_at(self.str(var, default=default), self.DB_SCHEMES)
            config = super().db_url(var, default=default)
            if not config["NAME"]:
                raise ValueError("no name")
            return config

    def cache_url(self, var: str, default: str) -> dict:
        """Return Django's settings of a cache."""
        with url_like("redis://host:6379/1", var):
            look_at(self.str(var, default=default), self.CACHE_SCHEMES)
            return super().cache_url(var, default=default)

    def email_url(self, var: str, default: str) -> dict:
        """Return Django's settings for sending mails."""
        with url_like("smtp+tls://user:password@host:587", var):
            return super().email_url(var, default=default)

    def broker_url(self, var: str, default: str) -> str:
        """Return the URL of a broker, or of several with a semicolon between them."""
        with url_like("redis://host:6379/0", var):
            urls = self.str(var, default=default)
            for url in urls.split(";"):
                look_at(url, TRANSPORT_ALIASES)
            return urls


def refuse_unreadable(file: Path) -> None:
    """Refuse a .env that is there and cannot be read: django-environ goes on without it."""
    try:
        file.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except OSError as error:
        refuse(str(file), f"cannot be read: {error.strerror}.")
    except UnicodeDecodeError:
        refuse(str(file), "is not UTF-8 text.")


env = Env()
refuse_unreadable(BASE_DIR / ".env")
env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=False)
