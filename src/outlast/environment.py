"""Settings from variables: `OUTLAST_LINGER_MS=5` is the default of `linger_ms` in this process.

So an application is tuned that nobody edits: one that runs swapped, or one whose author left a
setting alone.

Rules:
* Every setting has a variable, by its name, and its text becomes what the setting wants
  (`texts`). An empty variable is none.
* A variable is a default: what the application says itself counts for more, as a keyword or in the
  `DEFAULT_CONFIG` of its class, which kafka-python heeds as well.
* A text that is not allowed raises when a producer is built, and the error names the variable.
* A variable with our prefix that names no setting is told in the log, once.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer

from outlast.checks import shown
from outlast.config import DEFAULTS, SETTINGS
from outlast.errors import ConfigurationError
from outlast.texts import read, written

log = logging.getLogger(__name__)

PREFIX = "OUTLAST_"

_THEIRS = dict(KafkaProducer.DEFAULT_CONFIG)
_told: set[str] = set()  # names in the log already


def variable(name: str) -> str:
    """Of a setting."""
    return PREFIX + name.upper()


def found(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Setting → text, for all variables that name one and are not empty; others are told."""
    texts = {
        name: environment[variable(name)] for name in SETTINGS if environment.get(variable(name))
    }
    for other in sorted(set(environment) - set(map(variable, SETTINGS)) - _told):
        if other.startswith(PREFIX):
            _told.add(other)
            near = difflib.get_close_matches(other[len(PREFIX) :].lower(), SETTINGS, n=1)
            hint = f"; did you mean {variable(near[0])}?" if near else ""
            log.warning("%s is set, but there is no such setting%s", other, hint)
    return texts


@contextmanager
def defaults(
    keywords: Container[str], of_class: Mapping[str, Any] = DEFAULTS
) -> Iterator[dict[str, Any]]:
    """What variables say of the settings that are not among an application's keywords, nor changed
    in its class's `DEFAULT_CONFIG`; and those changes. What goes wrong with a variable inside of
    `with` names it.

    Raises:
        ConfigurationError: the text of a variable, or a default of the class, is not allowed.
    """
    changed = {
        name: setting.check(name, of_class[name])
        for name, setting in SETTINGS.items()
        if name in of_class and of_class[name] not in (DEFAULTS[name], _THEIRS.get(name))
    }
    texts = {n: text for n, text in found().items() if n not in keywords and n not in changed}
    with _blamed(texts):
        yield {**changed, **{name: _value(name, text) for name, text in texts.items()}}


@contextmanager
def _blamed(names: Iterable[str]) -> Iterator[None]:
    """An error that names a setting by its name alone gets the variable's beside it."""
    try:
        yield
    except ConfigurationError as error:
        text = str(error)
        blamed = [variable(name) for name in names if re.search(rf"\b{name}\b", text)]
        if not blamed:
            raise
        raise type(error)(f"{text} (set in the environment: {', '.join(blamed)})") from None


def _value(name: str, text: str) -> Any:
    setting, its = SETTINGS[name], variable(name)
    try:
        value = read(setting.check, text)
    except Exception as error:  # whatever the import of a user's module may raise
        raise ConfigurationError(
            f"{its}={shown(its, text)} is not allowed: it must be {setting.check.allowed}, "
            f"written as {written(setting.check)} ({type(error).__name__}: {error})"
        ) from error
    return setting.check(its, value)
