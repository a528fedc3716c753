"""Look at the answers before anything is generated.

Each validator below knows one rule: it gets all answers, and returns the sentence that the user reads, or
None. The first sentence ends the run with exit status 1. Nothing is written, deleted or fetched here;
cookiecutter itself removes the empty folder that it made for the project.

The answers come in as JSON inside of a raw string, so an answer is only ever data. (The spaces beside the
quotes belong to it: without them, an answer that is a string would end the literal.)

A slug that could not even be a folder of its own (`..`, `a/b`, an empty one) is caught one step earlier,
because cookiecutter makes the folder before it runs this hook: `__slug` in cookiecutter.json keeps what was
answered, and puts `refused_slug` in its place.
"""

import json
import re
import sys

# cookiecutter renders this file before it runs it; only one line of main() is meant to change. {% raw %}

LONGEST = {"project_name": 80, "project_slug": 32, "description": 200, "author": 100, "domain": 253}
"""The answers that are free text, and how many characters each may have (32: a Unix user)."""

SLUG = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
"""One part of a host name (RFC 1123)."""

# `useradd` refuses a name that is taken, and a name whose group is taken.
DEBIAN_USERS_AND_GROUPS = """
    adm audio backup bin cdrom crontab daemon dialout dip disk fax floppy games gnats input irc kmem
    kvm list lp mail man messagebus news nobody nogroup operator plugdev polkitd proxy render root
    sasl sgx shadow src ssh sshd staff sudo sync sys tape tss tty users utmp uucp uuidd video voice
    wheel
"""
USERS_OF_SERVICES = """
    apache avahi bind caddy celery chrony clamav colord consul debian dnsmasq docker dovecot
    elasticsearch etcd exim ftp git gitlab grafana haproxy http httpd influxdb jenkins kafka ldap
    libvirt lxd mailman memcache memcached minio mongodb munin mysql nagios named nginx ntp ntpd
    odoo openldap opendkim openvpn pgbouncer postfix postgres postgresql prometheus rabbitmq redis
    saned sentry snmp squid stunnel4 supervisor tomcat traefik unbound valkey varnish vault vmail
    www zabbix zookeeper
"""
# The units of the service are called `<slug>-<queue>@...`; systemd has a `serial-getty@` and a `user@`.
UNITS_OF_SYSTEMD = """
    autovt console container dbus emergency getty init initrd kmod ldconfig modprobe networking
    quotaon rescue serial session syslog system systemd udev user
"""
TAKEN_ON_A_SERVER = {*DEBIAN_USERS_AND_GROUPS.split(), *USERS_OF_SERVICES.split(), *UNITS_OF_SYSTEMD.split()}


# PostgreSQL's own databases and roles, and its reserved words (pg_get_keywords, categories R and T): CREATE
# DATABASE and CREATE ROLE take the words in quotes only, `none` and `public` not at all (measured).
TAKEN_IN_POSTGRESQL = set(
    """
    postgres template0 template1 none public

    all analyse analyze and any array as asc asymmetric authorization binary both case cast check
    collate collation column concurrently constraint create cross current_catalog current_date
    current_role current_schema current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign freeze from full grant group having ilike in
    initially inner intersect into is isnull join lateral leading left like limit localtime
    localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
    references returning right select session_user similar some symmetric system_user table
    tablesample then to trailing true union unique user using variadic verbose when where window
    with
    """.split()
)

# Folders of the service, those of its next versions included, and what it imports.
PACKAGES = set(
    """
    deploy dev examples leads manage onboarding payments redelivery service test tests
    celery django environ gunicorn kombu psycopg python site whitenoise
    """.split()
)


def shown(text):
    r"""Return the text as a message can show it: in quotes, control characters visible, cut when long.

    >>> print(shown("Bob's\tBikes"))
    "Bob's\tBikes"
    >>> len(shown("a" * 500))
    65
    """
    return repr(text if len(text) <= 60 else text[:60] + "...")


def first_that_holds(answers, forbidden):
    """Return (name, answer, found) for the first text that holds one of the forbidden strings, or None.

    >>> first_that_holds({"author": "Ann", "domain": "a;b"}, ("$", ";"))
    ('domain', 'a;b', ';')
    """
    for name in LONGEST:
        for found in forbidden:
            if found in answers.get(name, ""):
                return name, answers[name], found
    return None


def texts_are_texts(answers):
    """A config file can hold a number, a list or nothing where a text belongs.

    >>> texts_are_texts({"author": "Ann"})
    >>> print(texts_are_texts({"author": None}))
    author is null, which is no text: write it between quotes.
    """
    for name in LONGEST:
        if not isinstance(answers.get(name, ""), str):
            return f"{name} is {json.dumps(answers[name])}, which is no text: write it between quotes."
    return None


def texts_are_there_and_trimmed(answers):
    """An answer is not empty, and has no space at either end.

    >>> texts_are_there_and_trimmed({"project_slug": "shop", "author": "Ann"})
    >>> print(texts_are_there_and_trimmed({"project_slug": "", "author": "Ann"}))
    project_slug is empty: give it at least one letter.
    >>> print(texts_are_there_and_trimmed({"project_slug": "shop", "author": " Ann"}))
    author ' Ann' begins or ends with white space: leave that out.
    """
    for name in LONGEST:
        text = answers.get(name, "x")
        if not text.strip():
            return f"{name} is empty: give it at least one letter."
        if text != text.strip():
            return f"{name} {shown(text)} begins or ends with white space: leave that out."
    return None


def texts_can_be_printed_on_one_line(answers):
    r"""No newline, no control character, nothing invisible, no half of a surrogate pair.

    >>> texts_can_be_printed_on_one_line({"author": "Zoë O'Neill", "description": '100 % of "it"'})
    >>> print(texts_can_be_printed_on_one_line({"author": "Ann\nBob"}))
    author 'Ann\nBob' holds '\n', which cannot be printed on one line: leave it out.
    """
    for name in LONGEST:
        for character in answers.get(name, ""):
            if not character.isprintable():
                reason = "which cannot be printed on one line: leave it out."
                return f"{name} {shown(answers[name])} holds {character!r}, {reason}"
    return None


def texts_hold_no_template_code(answers):
    """The answers are recorded, and an update renders what was recorded: Jinja in it would run then.

    >>> texts_hold_no_template_code({"description": "50 % {off} for $5"})
    >>> print(texts_hold_no_template_code({"project_name": "{{ 7 * 7 }}"}))
    project_name '{{ 7 * 7 }}' holds '{{', which an update would run as template code: leave it out.
    """
    if found := first_that_holds(answers, ("{{", "}}", "{%", "%}", "{#", "#}")):
        name, text, code = found
        reason = "which an update would run as template code: leave it out."
        return f"{name} {shown(text)} holds {code!r}, {reason}"
    return None


def texts_hold_no_shell_code(answers):
    r"""No backslash, and nothing that a shell would run.

    >>> texts_hold_no_shell_code({"description": "Sells at $5 a piece"})
    >>> print(texts_hold_no_shell_code({"description": "$(touch x)"}))
    description '$(touch x)' holds '$(', which a shell could run: leave it out.
    >>> print(texts_hold_no_shell_code({"author": "a\\b"}))
    author 'a\\b' holds '\\', which a shell could run: leave it out.
    """
    if found := first_that_holds(answers, ("\\", "`", "$(", "${")):
        name, text, code = found
        return f"{name} {shown(text)} holds {code!r}, which a shell could run: leave it out."
    return None


def slug_is_made_of_plain_words(answers):
    """Lower-case ASCII letters and digits, words joined by single underscores, a letter first.

    >>> slug_is_made_of_plain_words({"project_slug": "bike_shop2"})
    >>> print(slug_is_made_of_plain_words({"project_slug": "Bike-Shop"}))  # doctest: +ELLIPSIS
    project_slug 'Bike-Shop' must begin with a letter a-z and go on with a-z, 0-9 and single ...
    """
    slug = answers["project_slug"]
    if SLUG.fullmatch(slug):
        return None
    return (
        f"project_slug {shown(slug)} must begin with a letter a-z and go on with a-z, 0-9 and single "
        "underscores between them, like 'bike_shop': "
        "it names a folder, a Unix user, systemd units and a database at once."
    )


def texts_are_short(answers):
    """An answer is no longer than the place that it is written to.

    >>> texts_are_short({"project_slug": "a" * 32})
    >>> print(texts_are_short({"project_slug": "abcd" * 10}))
    project_slug 'abcdabcdabcdabcdabcdabcdabcdabcdabcdabcd' has 40 characters, and at most 32 fit: shorten it.
    """
    for name, most in LONGEST.items():
        text = answers.get(name, "")
        if len(text) > most:
            return f"{name} {shown(text)} has {len(text)} characters, and at most {most} fit: shorten it."
    return None


def slug_is_free_on_a_server(answers):
    """Neither a user, nor a group, nor the first word of a unit of systemd's own.

    >>> slug_is_free_on_a_server({"project_slug": "rooted"})
    >>> print(slug_is_free_on_a_server({"project_slug": "root"}))
    project_slug 'root' is a user, group or unit that servers have already: choose another, like 'root_app'.
    """
    slug = answers["project_slug"]
    if slug in TAKEN_ON_A_SERVER or slug.startswith("systemd_"):
        reason = "is a user, group or unit that servers have already"
        return f"project_slug {shown(slug)} {reason}: choose another, like '{slug}_app'."
    return None


def slug_is_free_in_postgresql(answers):
    """No word, role or database of PostgreSQL's own, and not the test database of another service.

    >>> slug_is_free_in_postgresql({"project_slug": "orders"})
    >>> print(slug_is_free_in_postgresql({"project_slug": "order"}))
    project_slug 'order' is a name that PostgreSQL keeps for itself: choose another, like 'order_app'.
    >>> print(slug_is_free_in_postgresql({"project_slug": "test_shop"}))
    project_slug 'test_shop' is the database that the tests of a service 'shop' make and drop: choose another.
    """
    slug = answers["project_slug"]
    if slug in TAKEN_IN_POSTGRESQL or slug.startswith("pg_"):
        better = slug.removeprefix("pg_") + "_app"
        reason = "is a name that PostgreSQL keeps for itself"
        return f"project_slug {shown(slug)} {reason}: choose another, like '{better}'."
    if slug.startswith("test_"):
        reason = f"is the database that the tests of a service '{slug.removeprefix('test_')}' make and drop"
        return f"project_slug {shown(slug)} {reason}: choose another."
    return None


def slug_is_no_package(answers):
    """Not the name of a package of the service, nor of one that it imports.

    >>> slug_is_no_package({"project_slug": "services"})
    >>> print(slug_is_no_package({"project_slug": "service"}))
    project_slug 'service' is a package of the service, or one it imports: choose another, like 'my_service'.
    """
    slug = answers["project_slug"]
    if slug in PACKAGES:
        reason = "is a package of the service, or one it imports"
        return f"project_slug {shown(slug)} {reason}: choose another, like 'my_{slug}'."
    return None


def name_fits_into_the_environment(answers):
    """The name goes into `.env` between double quotes, where systemd, shells and Python must read the same.

    >>> name_fits_into_the_environment({"project_name": "O'Neill & Søn, 100 %"})
    >>> print(name_fits_into_the_environment({"project_name": 'The "Shop"'}))
    project_name 'The "Shop"' holds '"', which cannot stand in an .env file: leave it out.
    """
    name = answers["project_name"]
    for character in '"$':
        if character in name:
            reason = "which cannot stand in an .env file: leave it out."
            return f"project_name {shown(name)} holds {character!r}, {reason}"
    return None


def domain_is_a_host_name(answers):
    """A host name with a dot in it: no scheme, port, path or address, and international names as xn--.

    >>> domain_is_a_host_name({"domain": "shop.example.com"})
    >>> print(domain_is_a_host_name({"domain": "https://example.com/"}))  # doctest: +ELLIPSIS
    domain 'https://example.com/' is no host name like 'shop.example.com': ...
    """
    labels = answers["domain"].split(".")
    if len(labels) >= 2 and all(LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit():
        return None
    return (
        f"domain {shown(answers['domain'])} is no host name like 'shop.example.com': lower case, a dot, "
        "no scheme, port or path, international names in their xn-- form."
    )


VALIDATORS = (
    texts_are_texts,
    texts_are_there_and_trimmed,
    texts_can_be_printed_on_one_line,
    texts_hold_no_template_code,
    texts_hold_no_shell_code,
    slug_is_made_of_plain_words,
    texts_are_short,
    slug_is_free_on_a_server,
    slug_is_free_in_postgresql,
    slug_is_no_package,
    name_fits_into_the_environment,
    domain_is_a_host_name,
)

# {% endraw %}


def main():
    """Print the first sentence that a validator has, and end with exit status 1."""
    answers = json.loads(r""" {{ cookiecutter | tojson }} """)
    if answers["project_slug"] == "refused_slug":
        answers["project_slug"] = answers["__slug"]
    for validator in VALIDATORS:
        sentence = validator(answers)
        if sentence:
            print(sentence, file=sys.stderr)
            sys.exit(1)


if __name__ == "__main__":
    main()
