"""What a drill is to do, from what the command line says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import typer

from outlast.cli.check import rate as rate_of
from outlast.cli.check_settings import SettingsError
from outlast.cli.check_view import Rate
from outlast.cli.producer_config import given

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done."""

    keywords: Mapping[str, Any]  # for the producer
    ignored: tuple[str, ...] = ()  # what was given and is no setting of it
    topic: str | None = None  # None: one is made, and deleted at the end
    partitions: int | None = None  # of a topic that is made; None: two for each broker
    for_s: float | None = None  # None: until it is interrupted
    tick_s: float | None = None
    move_every_s: float | None = None  # None: leaders stay where they are
    rate: Rate | None = None  # what the application sends


def plan(
    *,
    bootstrap_servers: str | None,
    settings: Sequence[str],
    config: Path | None,
    env_prefix: str | None,
    topic: str | None,
    partitions: int | None,
    duration: str | None,
    tick: str | None,
    move_every: str | None,
    rate: str | None,
    record_bytes: int | None,
) -> Plan:
    """The plan that these words describe.

    Raises:
        typer.BadParameter: they describe none.
    """
    if topic is not None and partitions is not None:
        raise typer.BadParameter("--partitions is for a topic that is made: leave one of them out")
    try:
        producer = given(bootstrap_servers, config, settings, env_prefix)
        app_rate = None if rate is None else rate_of(rate, record_bytes)
    except (SettingsError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    return Plan(
        keywords=producer.keywords,
        ignored=producer.ignored,
        topic=topic,
        partitions=partitions,
        for_s=seconds(duration),
        tick_s=seconds(tick),
        move_every_s=seconds(move_every),
        rate=app_rate,
    )


def seconds(text: str | None) -> float | None:
    """A time as people write it: 90, 90s, 500ms, 10m, 2h.

    Raises:
        typer.BadParameter: it is none.
    """
    if text is None:
        return None
    number = text.strip().rstrip("hms")
    try:
        value = float(number) * _UNITS_S[text.strip()[len(number) :] or "s"]
    except (ValueError, KeyError):
        value = 0.0
    if not (value > 0 and isfinite(value)):
        raise typer.BadParameter(f"{text!r} is no time; write 60s, 500ms, 10m or 2h")
    return value
