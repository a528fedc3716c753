"""Look at the answers before anything is generated.

Each validator below knows one rule. It gets all answers and returns the sentence that the user reads, or None.
The first sentence ends the run with exit status 1. Nothing is written, deleted or fetched here: cookiecutter itself
removes the empty folder that it made for the project.

The answers come in as JSON inside of a raw string, so an answer is only ever data. (The spaces beside the quotes
belong to it: without them an answer that is a string would end the literal.)

A slug that could not even be a folder of its own (`..`, `a/b`, an empty one) is caught one step earlier, because
cookiecutter makes the folder before it runs this hook: `__slug` in cookiecutter.json keeps what was answered, and
puts `refused_slug` in its place.
"""

import json
import re
import sys

# cookiecutter renders this file before it runs it; everything but the one line in main() is to stay as it is. {% raw %}

TEXT_ANSWERS = {"project_name": 80, "project_slug": 32, "description": 200, "author": 100, "domain": 253}
"""The answers that are free text, with the most characters that each may have."""

SLUG_PATTERN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

LABEL_PATTERN = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
"""One part of a host name (RFC 1123)."""

SYSTEM_NAMES = frozenset(
    # Users and groups that Debian itself brings (base-passwd, and the groups of udev and systemd): `useradd` refuses
    # a user whose group is there already.
    """
    adm audio backup bin cdrom crontab daemon dialout dip disk fax floppy games gnats input irc kmem kvm list lp mail
    man messagebus news nobody nogroup operator plugdev polkitd proxy render root sasl sgx shadow src ssh sshd staff
    sudo sync sys tape tss tty users utmp uucp uuidd video voice wheel
    """
    # Users of the services that one finds beside a web service.
    """
    apache avahi bind caddy celery chrony clamav colord consul debian dnsmasq docker dovecot elasticsearch etcd exim
    ftp git gitlab grafana haproxy http httpd influxdb jenkins kafka ldap libvirt lxd mailman memcache memcached
    minio mongodb munin mysql nagios named nginx ntp ntpd odoo openldap opendkim openvpn pgbouncer postfix postgres
    postgresql prometheus rabbitmq redis saned sentry snmp squid stunnel4 supervisor tomcat traefik unbound valkey
    varnish vault vboxadd vmail www zabbix zookeeper
    """
    # First words of unit names that systemd owns (`serial-getty@.service`, `user@.service` and the like).
    """
    autovt console container dbus emergency getty init initrd kmod ldconfig modprobe networking quotaon rescue serial
    session syslog system systemd udev user
    """.split()
)

SQL_NAMES = frozenset(
    # Databases and roles that PostgreSQL owns.
    """
    postgres template0 template1 public none
    """
    # Its reserved words (pg_get_keywords, category R, of PostgreSQL 15 to 17): CREATE DATABASE takes them in quotes only.
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning
    select session_user some symmetric system_user table then to trailing true union unique user using variadic when
    where window with
    """.split()
)

PACKAGES = frozenset(
    # Top folders of the generated service, those of its next releases included, and what it imports.
    """
    service redelivery onboarding leads payments tests dev deploy examples django celery kombu gunicorn environ
    whitenoise psycopg manage site test python
    """.split()
)


def shown(value):
    """Write an answer so that it can stand in a message: in quotes, control characters visible, cut when long.

    >>> shown("Bob's\\tBikes")
    '"Bob\\'s\\\\tBikes"'
    >>> len(shown("a" * 500))
    65
    """
    return repr(value if len(value) <= 60 else value[:60] + "...")


def texts_are_one_printable_line(answers):
    """An answer is one line that can be printed: no newline, no control or invisible character, no lone surrogate.

    >>> texts_are_one_printable_line({"author": "Zoë O'Neill", "description": "100 % of \\"it\\""})
    >>> texts_are_one_printable_line({"author": "Ann\\nBob"})
    "author 'Ann\\\\nBob' holds '\\\\n', which cannot be printed on one line: leave it out."
    """
    for name in TEXT_ANSWERS:
        for character in answers.get(name, ""):
            if not character.isprintable():
                return (
                    f"{name} {shown(answers[name])} holds {character!r}, which cannot be printed on one line: "
                    "leave it out."
                )
    return None


def texts_hold_no_template_code(answers):
    """An answer holds no Jinja: the answers are recorded, and the next update renders what was recorded.

    >>> texts_hold_no_template_code({"description": "50 % {off} for $5"})
    >>> texts_hold_no_template_code({"project_name": "{{ 7 * 7 }}"})
    "project_name '{{ 7 * 7 }}' holds '{{', which a later update would run as template code: leave it out."
    """
    for name in TEXT_ANSWERS:
        for code in ("{{", "}}", "{%", "%}", "{#", "#}"):
            if code in answers.get(name, ""):
                return (
                    f"{name} {shown(answers[name])} holds {code!r}, which a later update would run as template "
                    "code: leave it out."
                )
    return None


def texts_hold_no_shell_code(answers):
    """An answer holds no backslash and nothing that a shell or a Makefile would run.

    >>> texts_hold_no_shell_code({"description": "Sells at $5 a piece"})
    >>> texts_hold_no_shell_code({"description": "$(touch x)"})
    "description '$(touch x)' holds '$(', which has a meaning in the files it is written to: leave it out."
    """
    for name in TEXT_ANSWERS:
        for code in ("\\", "`", "$(", "${"):
            if code in answers.get(name, ""):
                return (
                    f"{name} {shown(answers[name])} holds {code!r}, which has a meaning in the files it is written "
                    "to: leave it out."
                )
    return None


def texts_are_texts(answers):
    """An answer is text: a config file can hold a list, a mapping or nothing at all in its place.

    >>> texts_are_texts({"author": "Ann"})
    >>> texts_are_texts({"author": None})
    'author is null, which is no text: write it between quotes.'
    """
    for name in TEXT_ANSWERS:
        if not isinstance(answers.get(name, ""), str):
            return f"{name} is {json.dumps(answers[name])}, which is no text: write it between quotes."
    return None


def texts_are_there_and_trimmed(answers):
    """An answer is not empty, and does not begin or end with a space.

    >>> texts_are_there_and_trimmed({"project_slug": "", "author": "Ann"})
    'project_slug is empty: give it at least one letter.'
    >>> texts_are_there_and_trimmed({"project_slug": "shop", "author": " Ann"})
    "author ' Ann' begins or ends with a space: leave that out."
    """
    for name in TEXT_ANSWERS:
        value = answers.get(name, "x")
        if not value.strip():
            return f"{name} is empty: give it at least one letter."
        if value != value.strip():
            return f"{name} {shown(value)} begins or ends with a space: leave that out."
    return None


def texts_are_short(answers):
    """An answer is no longer than the place that it is written to.

    >>> texts_are_short({"project_slug": "a" * 32})
    >>> texts_are_short({"project_slug": "shop" * 10})
    "project_slug 'shopshopshopshopshopshopshopshopshopshop' has 40 characters: at most 32 fit."
    """
    for name, limit in TEXT_ANSWERS.items():
        value = answers.get(name, "")
        if len(value) > limit:
            return f"{name} {shown(value)} has {len(value)} characters: at most {limit} fit."
    return None


def slug_is_made_of_plain_letters(answers):
    """The slug is lower-case ASCII words and digits, joined by single underscores, and begins with a letter.

    >>> slug_is_made_of_plain_letters({"project_slug": "bike_shop2"})
    >>> slug_is_made_of_plain_letters({"project_slug": "Bike-Shop"})
    "project_slug 'Bike-Shop' must begin with a letter a-z and go on with a-z, 0-9 and single underscores, like \
'bike_shop': it names a folder, a Unix user, systemd units and a database at once."
    """
    slug = answers["project_slug"]
    if SLUG_PATTERN.fullmatch(slug):
        return None
    return (
        f"project_slug {shown(slug)} must begin with a letter a-z and go on with a-z, 0-9 and single underscores, "
        "like 'bike_shop': it names a folder, a Unix user, systemd units and a database at once."
    )


def slug_is_no_system_user(answers):
    """The slug is free as a Unix user, as its group, and as the first word of unit names.

    >>> slug_is_no_system_user({"project_slug": "rooted"})
    >>> slug_is_no_system_user({"project_slug": "root"})
    "project_slug 'root' is the name of a user, group or unit that a server has already: choose another, like \
'root_service'."
    """
    slug = answers["project_slug"]
    if slug in SYSTEM_NAMES or slug.startswith("systemd_"):
        return (
            f"project_slug {shown(slug)} is the name of a user, group or unit that a server has already: choose "
            f"another, like '{slug}_service'."
        )
    return None


def slug_is_free_in_postgresql(answers):
    """The slug is no word, role or database of PostgreSQL's own, and not the test database of another service.

    >>> slug_is_free_in_postgresql({"project_slug": "orders"})
    >>> slug_is_free_in_postgresql({"project_slug": "order"})
    "project_slug 'order' is a name that PostgreSQL keeps for itself: choose another, like 'order_service'."
    """
    slug = answers["project_slug"]
    if slug in SQL_NAMES or slug.startswith("pg_"):
        better = slug.removeprefix("pg_") + "_service"
        return f"project_slug {shown(slug)} is a name that PostgreSQL keeps for itself: choose another, like '{better}'."
    if slug.startswith("test_"):
        return (
            f"project_slug {shown(slug)} is the database that the tests of a service called "
            f"'{slug.removeprefix('test_')}' would drop: choose one that does not begin with 'test_'."
        )
    return None


def slug_is_no_package(answers):
    """The slug is not the name of a package inside of the service, or of one that it imports.

    >>> slug_is_no_package({"project_slug": "services"})
    >>> slug_is_no_package({"project_slug": "service"})
    "project_slug 'service' is also the name of a package in the service, or of one that it imports: choose another, \
like 'my_service'."
    """
    slug = answers["project_slug"]
    if slug in PACKAGES:
        return (
            f"project_slug {shown(slug)} is also the name of a package in the service, or of one that it imports: "
            f"choose another, like 'my_{slug}'."
        )
    return None


def name_fits_into_the_environment(answers):
    """The name goes into `.env` between double quotes, where systemd, a shell and Python must read the same.

    >>> name_fits_into_the_environment({"project_name": "O'Neill & Søn, 100 %"})
    >>> name_fits_into_the_environment({"project_name": 'The "Shop"'})
    'project_name \\'The "Shop"\\' holds \\'"\\', which cannot stand in the .env file: leave it out.'
    """
    for character in '"$':
        if character in answers["project_name"]:
            return (
                f"project_name {shown(answers['project_name'])} holds {character!r}, which cannot stand in the .env "
                "file: leave it out."
            )
    return None


def domain_is_a_host_name(answers):
    """The domain is a host name with at least one dot: no scheme, port, path or address, international ones as xn--.

    >>> domain_is_a_host_name({"domain": "shop.example.com"})
    >>> domain_is_a_host_name({"domain": "https://example.com/"})
    "domain 'https://example.com/' is not a host name like 'shop.example.com' (lower case, no scheme, port or path, \
international names in their xn-- form)."
    """
    labels = answers["domain"].split(".")
    if len(labels) >= 2 and all(LABEL_PATTERN.fullmatch(label) for label in labels) and not labels[-1].isdigit():
        return None
    return (
        f"domain {shown(answers['domain'])} is not a host name like 'shop.example.com' (lower case, no scheme, port "
        "or path, international names in their xn-- form)."
    )


VALIDATORS = (
    texts_are_texts,
    texts_are_there_and_trimmed,
    texts_are_one_printable_line,
    texts_hold_no_template_code,
    texts_hold_no_shell_code,
    slug_is_made_of_plain_letters,
    texts_are_short,
    slug_is_no_system_user,
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
