"""What the service knows of its template: .template.toml, and the way of its answers from version to version."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from dev.update.git import Refused

FILE = ".template.toml"
VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
EMPTY_TEMPLATE = 'template = ""\n'

Answers = dict[str, str | bool]


@dataclass(frozen=True)
class Record:
    """The content of .template.toml."""

    template: str  # a git URL, or empty
    version: str
    answers: Answers


@dataclass
class Mapped:
    """Answers as another version of the template wants them, and what became of the recorded ones."""

    answers: Answers = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  # recorded name -> name now
    dropped: dict[str, str] = field(default_factory=dict)  # recorded name -> why it is not used


def numbers(version: str) -> tuple[int, ...] | None:
    """Return a version as numbers that can be compared, or None when it is none.

    >>> numbers("v0.12.1") > numbers("0.9.0")
    True
    >>> numbers("0.3.0rc1")
    """
    found = VERSION.fullmatch(version)
    return tuple(map(int, found.groups())) if found else None


def read(folder: Path) -> Record:
    """Read .template.toml of a folder; Refused says what is wrong with it."""
    try:
        content = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(
            f"{FILE} is not there, and it says what to update from: take it back from git."
        ) from None
    except (OSError, ValueError) as error:
        raise Refused(f"{FILE} cannot be read: {error}.") from None
    template, version, answers = (content.get(key) for key in ("template", "version", "answers"))
    if not isinstance(version, str) or not numbers(version):
        raise Refused(f"{FILE} has no version like '0.1.0' in it: take that line back from git.")
    if not isinstance(template, str):
        raise Refused(f"{FILE} has no text as its template: write a git URL between quotes, or nothing.")
    if not isinstance(answers, dict) or not answers:
        raise Refused(f"{FILE} has no [answers]: take them back from git.")
    for name, answer in answers.items():
        refuse_unfit(name, answer)
    return Record(template, version, answers)


def refuse_unfit(name: str, answer: object) -> None:
    """Raise Refused for an answer that is neither text nor truth value, or that cookiecutter would run as Jinja."""
    if not isinstance(answer, str | bool):
        raise Refused(
            f"{FILE}: the answer {name} is neither text nor true nor false: write it between quotes."
        )
    if isinstance(answer, str) and re.search(r"\{[%#{]", answer):
        raise Refused(f"{FILE}: the answer {name} holds template code, which would be run: leave it out.")


def mapped(recorded: Record, questions: dict, renames: list[dict]) -> Mapped:
    """Return the recorded answers under the names, and with the choices, that a version of the template knows.

    Arguments: questions, its cookiecutter.json; renames, the entries of its answers.toml.
    """
    result = Mapped(dict(recorded.answers))
    for entry in sorted(renames, key=lambda entry: numbers(entry["version"])):
        if numbers(entry["version"]) <= numbers(recorded.version) or entry["answer"] not in result.answers:
            continue
        name, now = entry["answer"], entry.get("to", entry["answer"])
        answer = result.answers.pop(name)
        result.answers[now] = entry.get("values", {}).get(answer, answer)
        if name != now:
            origin = next((old for old, new in result.renamed.items() if new == name), name)
            result.renamed[origin] = now
    for name, answer in list(result.answers.items()):
        if name not in questions or name.startswith("_"):
            result.dropped[name] = "is no longer asked"
        elif isinstance(choices := questions[name], list) and answer not in choices:
            result.dropped[name] = f"{answer!r} is no longer one of its choices"
        else:
            continue
        del result.answers[name]
    return result


def with_changes(answers: Answers, changes: list[str], questions: dict) -> Answers:
    """Return answers with `NAME=ANSWER` texts from the command line put in."""
    known = [name for name in questions if not name.startswith("_")]
    for change in changes:
        name, separator, answer = change.partition("=")
        if not separator or name not in known:
            raise Refused(
                f"--set {change!r} names no question: write NAME=ANSWER, NAME out of {', '.join(known)}."
            )
        if isinstance(questions[name], list) and answer not in questions[name]:
            raise Refused(f"--set {change!r} is no choice: {name} is one of {', '.join(questions[name])}.")
        refuse_unfit(name, answer)
        answers = answers | {name: answer}
    return answers


def may_be_recorded(template: str) -> bool:
    """Whether this is a URL that others can use too: no folder, no password, no token.

    >>> [may_be_recorded(url) for url in ("https://example.com/t.git", "git@example.com:t.git", "gh:ann/t")]
    [True, True, True]
    >>> [may_be_recorded(url) for url in ("../t", "https://ann:secret@example.com/t", "c:/t")]
    [False, False, False]
    """
    if not template.isprintable() or any(sign in template for sign in '"\\?'):
        return False
    if re.match(r"git@[\w.-]+:|(gh|gl|bb):", template):
        return True
    parts = urlsplit(template)
    return parts.scheme in ("https", "http", "ssh") and "@" not in parts.netloc.removeprefix("git@")


def remember(template: str, folder: Path) -> None:
    """Write down where the template lives, in the .template.toml of a folder."""
    text = (folder / FILE).read_text(encoding="utf-8")
    (folder / FILE).write_text(text.replace(EMPTY_TEMPLATE, f'template = "{template}"\n'), encoding="utf-8")


def without_password(url: str) -> str:
    """Return a URL as a message may show it.

    >>> without_password("https://ann:secret@example.com/t?token=secret")
    'https://example.com/t'
    """
    return re.sub(r"\?.*", "", re.sub(r"(?<=://)[^/]*@", "", url))
