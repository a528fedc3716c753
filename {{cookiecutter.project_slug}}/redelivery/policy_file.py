"""From the text of ``ack_policy.toml`` to a ``Policy``: the rules of the file, each with a clear message."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from redelivery.policy import (
    ACK_OF_GUARD,
    DEFAULT_CRASH_RETRIES,
    EXEMPT_PREFIX,
    GAP_KINDS,
    GAPS_OF_GUARD,
    POOL_JOIN_S,
    Policy,
    PolicyError,
    Queue,
    TaskPolicy,
)
from redelivery.toml_lines import KeyPath, key_lines, syntax_error_line

DAY_S = 86_400
DEFAULT_MARGIN_S = 45
DEFAULT_LONGEST_COUNTDOWN_S = 300
DEFAULT_MARKER_DAYS = 30

TABLES = ("drain", "publish", "queues", "tasks")
TASK_REQUIRED = ("queue", "ack", "guard", "time_limit_s", "reason")
TASK_KEYS = (*TASK_REQUIRED, "soft_time_limit_s", "marker_days", "crash_retries", "gaps")

#: Words and phrases that stand where a reason should be.
PLACEHOLDER_WORDS = {"todo", "tbd", "tbc", "fixme", "xxx", "wip", "placeholder", "lorem", "changeme"}
PLACEHOLDER_PHRASES = (
    "reason goes here",
    "to be done",
    "to be decided",
    "fill me in",
    "fill this in",
    "no reason",
)
REASON_WORDS = 3


def parse(path: Path) -> Policy:
    """Read ``path`` and return the policy; raise ``PolicyError`` at the first mistake."""
    return _Reader(path).policy()


class _Reader:
    """One pass over one file; knows the text, so that it can name lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = self._read()
        try:
            self.data = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            line = syntax_error_line(self.text, error)
            what = re.sub(r" \(at [^()]*\)$", "", str(error))
            raise PolicyError(path, line, f"this is not valid TOML: {what}.") from None
        except ValueError:  # int() takes at most 4300 digits
            raise PolicyError(path, None, "a number in it is far too long.") from None
        except RecursionError:
            raise PolicyError(path, None, "its values are nested too deeply.") from None
        self.lines = key_lines(self.text)

    def _read(self) -> str:
        try:
            raw = self.path.read_bytes()
        except OSError as error:
            raise PolicyError(
                self.path, None, f"the policy file cannot be read: {error.strerror or error}."
            ) from None
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise PolicyError(self.path, line, "the policy file must be UTF-8 text.") from None

    def policy(self) -> Policy:
        self.known_keys(self.data, TABLES, (), "the policy file")
        margin_s = self.margin()
        publish = self.table(("publish",))
        self.known_keys(publish, ("longest_countdown_s",), ("publish",), "[publish]")
        countdown_s = self.whole(
            ("publish", "longest_countdown_s"),
            publish.get("longest_countdown_s", DEFAULT_LONGEST_COUNTDOWN_S),
            0,
            DAY_S,
        )
        names = self.queue_names()
        tasks = {name: self.task(name, names) for name in self.table(("tasks",))}
        queues = {name: self.queue(name, tasks.values(), margin_s) for name in names}
        policy = Policy(self.path, queues, tasks, margin_s, countdown_s)
        self.markers_outlive_messages(policy)
        return policy

    # -- tables

    def margin(self) -> int:
        drain = self.table(("drain",))
        self.known_keys(drain, ("margin_s",), ("drain",), "[drain]")
        value = self.whole(("drain", "margin_s"), drain.get("margin_s", DEFAULT_MARGIN_S), 0, DAY_S)
        if value <= POOL_JOIN_S:
            self.fail(
                ("drain", "margin_s"),
                f"margin_s is {value}, but must be more than {POOL_JOIN_S}: "
                f"the pool alone may take {POOL_JOIN_S} s to close after its last task.",
            )
        return value

    def queue_names(self) -> tuple[str, ...]:
        queues = self.table(("queues",))
        if not queues:
            self.fail(
                ("queues",), "no queue is declared: add a table such as [queues.main] with a concurrency."
            )
        for name in queues:
            if not re.fullmatch(r"[^\s,\x00-\x1f\x7f]+", name):
                self.fail(
                    ("queues", name),
                    f"the queue name {name!r} must have no blank and no comma: `celery worker -Q` could not name it.",
                )
        return tuple(queues)

    def queue(self, name: str, tasks: Iterable[TaskPolicy], margin_s: int) -> Queue:
        path = ("queues", name)
        table = self.table(path)
        self.known_keys(table, ("concurrency",), path, f"[queues.{name}]")
        if "concurrency" not in table:
            self.fail(path, f"queue {name} has no concurrency: how many tasks may one worker run at once?")
        concurrency = self.whole((*path, "concurrency"), table["concurrency"], 1, 1000)
        longest_s = max((task.time_limit_s for task in tasks if task.queue == name), default=0)
        return Queue(name, concurrency, stop_timeout_s=longest_s + margin_s, line=self.line(path))

    def task(self, name: str, queues: tuple[str, ...]) -> TaskPolicy:
        path = ("tasks", name)
        table = self.table(path)
        self.task_name(path, name, table)
        self.known_keys(table, TASK_KEYS, path, f"task {name}")
        for key in TASK_REQUIRED:
            if key not in table:
                self.fail(path, f"task {name} has no {key}.")
        hard_s = self.whole((*path, "time_limit_s"), table["time_limit_s"], 2, DAY_S)
        guard = self.guard(path, table)
        return TaskPolicy(
            name=name,
            queue=self.choice((*path, "queue"), table["queue"], queues, "declared queues"),
            ack=table["ack"],
            guard=guard,
            time_limit_s=hard_s,
            soft_time_limit_s=self.soft_limit(path, table, hard_s),
            reason=self.reason((*path, "reason"), table["reason"]),
            gaps=self.gaps((*path, "gaps"), table.get("gaps", []), guard),
            marker_days=self.marker_days(path, table, guard),
            crash_retries=self.crash_retries(path, table),
            line=self.line(path),
        )

    # -- rules of a task

    def task_name(self, path: KeyPath, name: str, table: Mapping[str, Any]) -> None:
        if table and all(isinstance(value, dict) for value in table.values()):
            inner = ".".join((name, *self._deeper(table)))
            self.fail(path, f'the dots of a task name need quotes: write [tasks."{inner}"].')
        if not name.strip() or not name.isprintable():
            self.fail(path, f"{name!r} is not a task name: use the registered name, such as app.tasks.send.")
        if name.startswith(EXEMPT_PREFIX):
            self.fail(path, f"{name} is one of Celery's own tasks, which are exempt: remove the entry.")

    @staticmethod
    def _deeper(table: Mapping[str, Any]) -> list[str]:
        names: list[str] = []
        while table and all(isinstance(value, dict) for value in table.values()):
            name = next(iter(table))
            names.append(name)
            table = table[name]
        return names

    def guard(self, path: KeyPath, table: Mapping[str, Any]) -> str:
        ack = self.choice((*path, "ack"), table["ack"], ("early", "late"), "ways to acknowledge")
        guard = self.choice((*path, "guard"), table["guard"], tuple(ACK_OF_GUARD), "guards")
        if ACK_OF_GUARD[guard] != ack:
            fitting = ", ".join(name for name, needed in ACK_OF_GUARD.items() if needed == ack)
            self.fail(
                (*path, "guard"),
                f'guard "{guard}" needs ack = "{ACK_OF_GUARD[guard]}", but ack is "{ack}" '
                f"(which goes with: {fitting}).",
            )
        return guard

    def soft_limit(self, path: KeyPath, table: Mapping[str, Any], hard_s: int) -> int:
        """The soft limit given, or a tenth below the hard one (from 1 s to 10 s): time to tidy up."""
        given = self.optional_whole((*path, "soft_time_limit_s"), table, 1, DAY_S)
        if given is None:
            return hard_s - min(10, max(1, hard_s // 10))
        if given >= hard_s:
            self.fail(
                (*path, "soft_time_limit_s"),
                f"soft_time_limit_s is {given}, but must be below time_limit_s ({hard_s}): "
                "Celery would never raise the soft one.",
            )
        return given

    def marker_days(self, path: KeyPath, table: Mapping[str, Any], guard: str) -> int | None:
        if guard != "marker":
            if "marker_days" in table:
                self.fail(
                    (*path, "marker_days"), f'marker_days goes with guard = "marker", but guard is "{guard}".'
                )
            return None
        return self.whole((*path, "marker_days"), table.get("marker_days", DEFAULT_MARKER_DAYS), 1, 3650)

    def crash_retries(self, path: KeyPath, table: Mapping[str, Any]) -> int | None:
        if table["ack"] == "late":
            given = table.get("crash_retries", DEFAULT_CRASH_RETRIES)
            return self.whole((*path, "crash_retries"), given, 0, 100)
        if "crash_retries" in table:
            self.fail(
                (*path, "crash_retries"), 'crash_retries goes with ack = "late": no other message comes back.'
            )
        return None

    def reason(self, path: KeyPath, value: Any) -> str:
        text = self.text_value(path, value)
        words = re.findall(r"[^\W\d_]+", text.lower())
        plain = " ".join(words)
        placeholder = PLACEHOLDER_WORDS.intersection(words) or any(it in plain for it in PLACEHOLDER_PHRASES)
        if placeholder or len(set(words)) < REASON_WORDS:
            self.fail(
                path,
                f"{text!r} is not a reason: say in a sentence why this task is acknowledged and guarded so.",
            )
        return text

    def gaps(self, path: KeyPath, value: Any, guard: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(gap, str) for gap in value):
            self.fail(path, f"gaps must be a list of texts, but is {_shown(value)}.")
        for gap in value:
            self.gap(path, gap, guard)
        if len(set(value)) < len(value):
            self.fail(path, "the same gap is declared twice.")
        return tuple(value)

    def gap(self, path: KeyPath, gap: str, guard: str) -> None:
        kind = gap_kind(gap)
        if kind is None:
            kinds = ", ".join(f'"{kind}"' for kind in GAP_KINDS)
            self.fail(path, f"the gap {gap!r} must begin with one of {kinds}.")
        if kind not in GAPS_OF_GUARD[guard]:
            allowed = ", ".join(f'"{kind}"' for kind in GAPS_OF_GUARD[guard]) or "none"
            self.fail(path, f'guard "{guard}" has no gap of the kind "{kind}" (possible: {allowed}).')

    def markers_outlive_messages(self, policy: Policy) -> None:
        longest_s = policy.visibility_timeout_s
        for task in policy.tasks.values():
            if task.marker_days and task.marker_days * DAY_S <= longest_s:
                self.fail(
                    ("tasks", task.name, "marker_days" if self.has(task.name, "marker_days") else "guard"),
                    f"the marker of {task.name} lives {task.marker_days} days, but a message may come back "
                    f"after {longest_s} s (visibility): raise marker_days or lower the limits.",
                )

    # -- values

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        if path[:1] == ("tasks",) and len(path) > 2 and path[1] not in message:
            message = f"task {path[1]}: {message}"
        raise PolicyError(self.path, self.line(path), message)

    def line(self, path: KeyPath) -> int:
        """The line of the key, else of the nearest table above that is written down, else 1."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def has(self, task: str, key: str) -> bool:
        return key in self.data["tasks"][task]

    def table(self, path: KeyPath) -> Mapping[str, Any]:
        value: Any = self.data
        for name in path:
            value = value.get(name, {})
        if not isinstance(value, dict):
            self.fail(path, f"{'.'.join(path)} must be a table, but is {_shown(value)}.")
        return value

    def known_keys(self, table: Mapping[str, Any], known: tuple[str, ...], path: KeyPath, where: str) -> None:
        for key in table:
            if key not in known:
                self.fail((*path, key), f"{where} has no key {key!r}; {_suggest(key, known)}.")

    def choice(self, path: KeyPath, value: Any, choices: tuple[str, ...], what: str) -> str:
        text = self.text_value(path, value)
        if text not in choices:
            self.fail(path, f"{path[-1]} {text!r} is not one of the {what}; {_suggest(text, choices)}.")
        return text

    def text_value(self, path: KeyPath, value: Any) -> str:
        if not isinstance(value, str):
            self.fail(path, f"{path[-1]} must be a text, but is {_shown(value)}.")
        return value

    def whole(self, path: KeyPath, value: Any, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(path, f"{path[-1]} must be a whole number, but is {_shown(value)}.")
        if not least <= value <= most:
            self.fail(path, f"{path[-1]} is {value}, but must be from {least} to {most}.")
        return value

    def optional_whole(self, path: KeyPath, table: Mapping[str, Any], least: int, most: int) -> int | None:
        return self.whole(path, table[path[-1]], least, most) if path[-1] in table else None


def gap_kind(gap: str) -> str | None:
    """The kind that a gap begins with, or None: ``"killed after the send: sent twice"`` is ``"killed"``."""
    return next((kind for kind in GAP_KINDS if re.match(rf"{kind}\b", gap)), None)


def _shown(value: Any) -> str:
    """A value of the file, named as TOML names it."""
    names = {
        bool: "a boolean",
        int: "the number",
        float: "the number",
        str: "the text",
        list: "a list",
        dict: "a table",
    }
    name = names.get(type(value), "a date or time")
    return (
        f"{name} {value!r}" if isinstance(value, (int, float, str)) and not isinstance(value, bool) else name
    )


def _suggest(name: str, known: Iterable[str]) -> str:
    known = tuple(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
