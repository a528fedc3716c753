"""Answers that must be refused: what was asked, what was answered, and what the sentence must say.

Each is given in all three ways, except where `ways` says which ones can carry it: a typed line has no newline
and loses the spaces around it, an empty one means the default; a NUL cannot be an argument; and what looks
like template code in arguments and config files is run by cookiecutter itself before any hook.
"""

from dataclasses import dataclass

ARGUMENT, CONFIG, TYPED = "argument", "config", "typed"


@dataclass(frozen=True)
class BadAnswer:
    """One answer that must be refused with a sentence that holds `says`."""

    kind: str
    question: str
    answer: object
    says: str
    ways: tuple = (ARGUMENT, CONFIG, TYPED)


UNTYPED = (ARGUMENT, CONFIG)

BAD_ANSWERS = (
    BadAnswer("empty slug", "project_slug", "", "is empty", UNTYPED),
    BadAnswer("slug of spaces", "project_slug", "   ", "is empty"),
    BadAnswer("slug with an upper-case letter", "project_slug", "Shop", "letter a-z"),
    BadAnswer("slug that begins with a digit", "project_slug", "2shop", "letter a-z"),
    BadAnswer("slug of digits", "project_slug", "2026", "letter a-z"),
    BadAnswer("slug with a space", "project_slug", "bike shop", "letter a-z"),
    BadAnswer("slug with a hyphen", "project_slug", "bike-shop", "letter a-z"),
    BadAnswer("slug with a leading hyphen", "project_slug", "--help", "letter a-z"),
    BadAnswer("slug with a leading underscore", "project_slug", "_apt", "letter a-z"),
    BadAnswer("slug with an underscore at its end", "project_slug", "shop_", "letter a-z"),
    BadAnswer("slug with two underscores", "project_slug", "bike__shop", "letter a-z"),
    BadAnswer("slug with a dot", "project_slug", "shop.py", "letter a-z"),
    BadAnswer("slug with a slash", "project_slug", "bike/shop", "letter a-z"),
    BadAnswer("slug that is an absolute path", "project_slug", "/tmp/shop", "letter a-z"),
    BadAnswer("slug that climbs", "project_slug", "../shop", "letter a-z"),
    BadAnswer("slug that is this folder", "project_slug", ".", "letter a-z"),
    BadAnswer("slug that is the folder above", "project_slug", "..", "letter a-z"),
    BadAnswer("slug with an accent", "project_slug", "café", "letter a-z"),
    BadAnswer("slug with a letter that only looks plain", "project_slug", "shоp", "letter a-z"),
    BadAnswer("slug with a full-width digit", "project_slug", "shop２", "letter a-z"),
    BadAnswer("slug with a quote", "project_slug", "o'neill", "letter a-z"),
    BadAnswer("slug with a semicolon", "project_slug", "shop;touch x", "letter a-z"),
    BadAnswer("slug that runs a command", "project_slug", "$(touch x)", "'$('"),
    BadAnswer("slug with backticks", "project_slug", "`touch x`", "'`'"),
    BadAnswer("slug with a newline", "project_slug", "shop\nshop", "one line", UNTYPED),
    BadAnswer("slug with a newline at its end", "project_slug", "shop\n", "white space", UNTYPED),
    BadAnswer("slug with a NUL", "project_slug", "shop\0", "one line", (CONFIG,)),
    BadAnswer("slug that is template code", "project_slug", "{{ 7 * 7 }}", "'{{'", (TYPED,)),
    BadAnswer("slug of 33 characters", "project_slug", "s" * 33, "at most 32"),
    BadAnswer("slug of 5000 characters", "project_slug", "s" * 5000, "at most 32", UNTYPED),
    BadAnswer("slug that is null", "project_slug", None, "letter a-z", (CONFIG,)),
    *(
        BadAnswer(f"slug {name}", "project_slug", name, "servers have already")
        for name in ("root", "daemon", "nobody", "sshd", "redis", "mysql", "nginx", "adm", "systemd")
    ),
    BadAnswer("slug www-data", "project_slug", "www-data", "letter a-z"),
    BadAnswer("slug systemd-network", "project_slug", "systemd-network", "letter a-z"),
    BadAnswer("slug postgres", "project_slug", "postgres", "servers have already"),
    BadAnswer("slug template1", "project_slug", "template1", "PostgreSQL"),
    BadAnswer("slug that is a word of SQL", "project_slug", "order", "PostgreSQL"),
    BadAnswer("slug pg_shop", "project_slug", "pg_shop", "PostgreSQL"),
    BadAnswer("slug test_shop", "project_slug", "test_shop", "tests of a service 'shop'"),
    *(
        BadAnswer(f"slug {name}", "project_slug", name, "package")
        for name in ("service", "redelivery", "tests", "django")
    ),
    BadAnswer("empty name", "project_name", "", "is empty", UNTYPED),
    BadAnswer("name with a double quote", "project_name", 'The "Shop"', ".env file"),
    BadAnswer("name with a dollar", "project_name", "$HOME", ".env file"),
    BadAnswer("name that runs a command", "project_name", "Shop $(touch x)", "'$('"),
    BadAnswer("name with backticks", "project_name", "Shop `touch x`", "'`'"),
    BadAnswer("name with a newline", "project_name", "Shop\nDEBUG=true", "one line", UNTYPED),
    BadAnswer("name that is template code", "project_name", "{{ 7 * 7 }}", "'{{'", (TYPED,)),
    BadAnswer("name with a raw block", "project_name", "{% raw %}Shop", "'{%'", (TYPED,)),
    BadAnswer("name of 81 characters", "project_name", "S" * 81, "at most 80"),
    BadAnswer("name that is null", "project_name", None, "no text", (CONFIG,)),
    BadAnswer("description with a newline", "description", "a\nb", "one line", UNTYPED),
    BadAnswer("description with a backslash", "description", "a\\", "'\\\\'"),
    BadAnswer("description with a tab", "description", "a\tb", "one line", UNTYPED),
    BadAnswer("description with a comment's begin", "description", "{# b", "'{#'", (TYPED,)),
    BadAnswer("description that runs a command", "description", "$(touch x)", "'$('"),
    BadAnswer("author with an escape sequence", "author", "\x1b[31mAnn", "one line", UNTYPED),
    BadAnswer("author with a text turned around", "author", "Ann\u202ebob", "one line"),
    BadAnswer("author with half a surrogate pair", "author", "Ann\udcff", "one line", (ARGUMENT,)),
    BadAnswer("author with a space at the end", "author", "Ann ", "white space", UNTYPED),
    BadAnswer("author that is a mapping", "author", {"name": "Ann"}, "no text", (CONFIG,)),
    BadAnswer("domain that is a URL", "domain", "https://example.com", "host name"),
    BadAnswer("domain with a port", "domain", "example.com:8000", "host name"),
    BadAnswer("domain with a path", "domain", "example.com/shop", "host name"),
    BadAnswer("domain with a space", "domain", "example .com", "host name"),
    BadAnswer("domain with an underscore", "domain", "my_shop.example.com", "host name"),
    BadAnswer("domain without a dot", "domain", "localhost", "host name"),
    BadAnswer("domain with an empty label", "domain", "example..com", "host name"),
    BadAnswer("domain that is an address", "domain", "192.0.2.1", "host name"),
    BadAnswer("domain in upper case", "domain", "Example.com", "host name"),
    BadAnswer("domain that is a wildcard", "domain", "*.example.com", "host name"),
    BadAnswer("domain that is not in its xn-- form", "domain", "bücher.example", "host name"),
    BadAnswer("domain of 254 characters", "domain", ".".join(["a" * 62] * 4) + ".aa", "at most 253"),
)
