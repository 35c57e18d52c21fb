"""The exceptions, as the code has them, for docs/reference."""

from __future__ import annotations

import inspect
import re

from kafka.structs import TopicPartition

from outlast import errors
from outlast.engine.outcomes import Failure, Outcome

# What is behind each kind of failure that no broker's code tells. Kinds are those of `Failure`.
KINDS = {
    "delivery_timeout": "not delivered within `delivery_timeout_ms`",
    "closed": "the producer was closed before the record had an outcome",
    "retries": "as many refusals as `retries` or `retry_stop` allow",
    "no_producer_id": "no broker gives a producer id, which idempotence needs",
    "topic_gone": "the topic, or this partition of it, was deleted",
    "forked": "the record is the parent's: this process was forked from it",
}


def tree() -> list[tuple[str, ...]]:
    """Class, what it is besides, and when it comes, of each in the module."""
    found = [
        c for c in vars(errors).values() if inspect.isclass(c) and c.__module__ == errors.__name__
    ]
    return [(f"`outlast.{c.__name__}`", _besides(c), _first_sentence(c)) for c in found]


def kinds() -> list[tuple[str, ...]]:
    """Kind, class that an `except` may name, and meaning."""
    told = re.findall(r"'(\w+)'", Failure.__doc__ or "")
    return [(f"`{kind}`", f"`{_class(kind)}`", KINDS[kind]) for kind in told]


def _class(kind: str) -> str:
    made = errors.error_for(Failure(kind, None, "", Outcome.UNKNOWN), TopicPartition("t", 0))
    return f"kafka.errors.{type(made).__name__}"


def _besides(cls: type) -> str:
    return ", ".join(f"`{_package(base)}{base.__name__}`" for base in cls.__bases__)


def _package(cls: type) -> str:
    """As users import it."""
    if cls.__module__.startswith("kafka"):
        return "kafka.errors."
    return "outlast." if cls.__module__.startswith("outlast") else ""


def _first_sentence(cls: type) -> str:
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return text.replace("|", r"\|")
