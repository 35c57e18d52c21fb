"""Faults in words, as written at a prompt: `error NOT_LEADER_OR_FOLLOWER orders-0 times=3`.

The kinds and their values are those of `outlast.testing`, read off the classes themselves, so that
a new fault can be said at once. A word is one of: the kind; a value in the order of the kind's own
fields; `NAME=VALUE` for any field, with `for=SECONDS` as the end of its time; `TOPIC-PARTITION`.
"""

from __future__ import annotations

import re
from ast import literal_eval
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from rich.table import Table
from rich.text import Text

from outlast.engine import verdict
from outlast.testing import faults
from outlast.testing.faults import Fault

APIS = {
    "produce": 0,
    "fetch": 1,
    "list-offsets": 2,
    "metadata": 3,
    "api-versions": 18,
    "create-topics": 19,
    "init-producer-id": 22,
}
HIDDEN = ("connection", "used")  # of no use at a prompt
FLAG = {"yes": True, "no": False, "true": True, "false": False, "none": None}


class FaultError(ValueError):
    """The words are no fault; the text tells what would be one."""


def dashed(name: str) -> str:
    """`SlowFollower` → 'slow-follower'."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


KINDS: dict[str, type[Fault]] = {
    dashed(kind.__name__): kind
    for kind in vars(faults).values()
    if isinstance(kind, type) and issubclass(kind, Fault) and kind is not Fault
}
COMMON = tuple(field.name for field in fields(Fault))
CODES: dict[str, int] = {
    row.judgement.name: row.code for row in verdict.table() if row.code is not None
}


def kinds() -> Table:
    """Every kind of fault, with its values and its meaning."""
    table = Table.grid(padding=(0, 2))
    for name, kind in KINDS.items():
        meaning = _meaning(kind)
        values = [field.name.upper() for field in _own(kind) if field.default is MISSING]
        table.add_row(Text(" ".join([name, *values])), Text(meaning))
    narrower = [name for name in COMMON if name not in HIDDEN]
    table.add_row(Text("any"), Text(f"narrowed by {'=, '.join([*narrower, 'for'])}= or t-0"))
    return table


def _meaning(kind: type[Fault]) -> str:
    """The first sentence of its docstring, without names and numbers for programmers."""
    sentence = (kind.__doc__ or "").split(".\n")[0].split(". ")[0]
    return re.sub(r" \(([^)]*`[^)]*|[A-Z]\d+)\)|`", "", " ".join(sentence.split())).rstrip(".")


def parse_partition(text: str) -> tuple[str, int]:
    """`orders-0` → ('orders', 0).

    Raises:
        FaultError: it is not of this form.
    """
    topic, _, number = text.rpartition("-")
    if not topic or not number.isdecimal():
        raise FaultError(f"{text!r} is no partition; write TOPIC-NUMBER, such as orders-0")
    return topic, int(number)


def parse_fault(words: list[str], now_s: float) -> Fault:
    """The fault that these words name; `for=` counts from `now_s`.

    Raises:
        FaultError: there is no such kind or field, or a value is missing or no value.
    """
    name, *rest = words
    kind = KINDS.get(name.lower())
    if kind is None:
        near = get_close_matches(name.lower(), KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise FaultError(f"there is no fault {name!r}; {hint}there are: {', '.join(KINDS)}")
    own = [field.name for field in _own(kind)]
    free = list(own)
    chosen: dict[str, Any] = {}
    for word in rest:
        field, equals, text = word.partition("=")
        if not equals and free and not _is_partition(word):
            field, text = free[0], word
        elif not equals:
            chosen["topic"], chosen["partition"] = parse_partition(word)
            continue
        elif field == "for":
            chosen["until_s"] = now_s + _seconds(field, text)
            continue
        if field not in (*own, *COMMON) or field in HIDDEN:
            allowed = [f for f in (*own, *COMMON, "for") if f not in HIDDEN]
            raise FaultError(f"{name} has no {field!r}; it has {', '.join(allowed)}")
        if field in free:
            free.remove(field)
        chosen[field] = _value(field, text)
    missing = [f.name for f in _own(kind) if f.default is MISSING and f.name not in chosen]
    if missing:
        raise FaultError(f"{name} needs {', '.join(missing)}: fault {name} {missing[0].upper()}")
    return kind(**chosen)


def _own(kind: type[Fault]) -> list[Any]:
    return [field for field in fields(kind) if field.name not in COMMON]


def _is_partition(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w.-]*-\d+", word) is not None


def _seconds(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FaultError(f"{field} is {text!r}; it is a number of seconds") from None


def _value(field: str, text: str) -> Any:
    """A value of the type that the field has, told by its name."""
    if field == "topic":
        return text
    if field.endswith("_s"):
        return _seconds(field, text)
    if text.lower() in FLAG:
        return FLAG[text.lower()]
    if field == "api" and text.lower() in APIS:
        return APIS[text.lower()]
    if field == "code" and text.upper() in CODES:
        return CODES[text.upper()]
    if field == "message":
        return text
    try:
        value = literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, tuple if field == "hint" else int):
        known = {"api": f" or one of {', '.join(APIS)}", "code": " or Kafka's name of the error"}
        wanted = "(node, epoch)" if field == "hint" else "a whole number"
        raise FaultError(f"{field} is {text!r}; it is {wanted}{known.get(field, '')}")
    return value
