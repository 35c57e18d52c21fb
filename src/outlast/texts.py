"""Settings as text: what files, command lines and variables say, made the value a setting wants.

`read` makes a value of a text by the setting's check, and `written` says in words how the text is
written, for messages and docs. What cannot be read stays the text that it is: the check, which
comes next, refuses it and says what is allowed.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from outlast import checks
from outlast.checks import Check, Choice, Duck, Number

OBJECT = "`module:name`"  # which is imported


def read(check: Check, text: str) -> Any:
    """The value that a text stands for.

    Raises:
        ImportError, AttributeError, ValueError: a `module:name` that leads nowhere.
    """
    text = text.strip()
    if isinstance(check, Number):
        return _number(text)
    if isinstance(check, Choice):
        return next(
            (value for value in _choices(check) if str(value).lower() == text.lower()), text
        )
    if is_nothing(text):
        return None
    if isinstance(check, Duck):
        return resolve_name(text)
    for special, _, read_it in _SPECIAL:
        if check is special:
            with suppress(ValueError, SyntaxError):
                return read_it(text)
    return text


def written(check: Check) -> str:
    """How a value is written as text, in words."""
    if isinstance(check, Number):
        words = "a whole number" if check.whole else "a number"
        return words + (" or `inf`" if check.infinite else "") + _or_none(check.optional)
    if isinstance(check, Choice):
        choices = [f"`{_word(value)}`" for value in _choices(check)]
        return ", ".join(choices[:-1]) + " or " + choices[-1]
    if isinstance(check, Duck):
        return OBJECT + _or_none(check.optional)
    return next((words for special, words, _ in _SPECIAL if check is special), "as it is")


def _word(value: Any) -> str:
    return str(value).lower() if value in (None, True, False) else str(value)


def is_nothing(text: str) -> bool:
    """Whether it stands for None."""
    return text.strip().lower() in ("none", "null", "")


def is_object(check: Check) -> bool:
    """Whether its text is the name of something to import."""
    return isinstance(check, Duck) or check is checks.METRIC_REPORTERS


def _or_none(optional: bool) -> str:
    return " or `none`" if optional else ""


def _choices(check: Choice) -> tuple[Any, ...]:
    return (*check.values, *(alias for alias, _ in check.aliases))


def _number(text: str) -> Any:
    if is_nothing(text):
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _version(text: str) -> tuple[int, ...] | None:
    return None if text == "auto" else tuple(map(int, text.split(".")))


def _labels(text: str) -> dict[str, str]:
    labels = dict(pair.split("=", 1) for pair in text.split(","))
    return {name.strip(): value.strip() for name, value in labels.items()}


def _objects(text: str) -> list[Any]:
    return [resolve_name(name.strip()) for name in text.split(",")]


_SPECIAL: tuple[tuple[Check, str, Callable[[str], Any]], ...] = (
    (checks.BOOTSTRAP, "`host:port,host:port`", str),
    (checks.API_VERSION, "`2.8`, or `none` to ask the brokers", _version),
    (checks.METRICS_LABELS, "`app=billing,team=x`", _labels),
    (checks.METRIC_REPORTERS, f"{OBJECT}; several with commas between", _objects),
    (checks.SOCKET_OPTIONS, "a list of tuples, as in Python", literal_eval),
)
