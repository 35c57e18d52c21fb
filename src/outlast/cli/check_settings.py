"""The producer that `outlast check` looks at: its settings, from wherever they are kept.

Later sources win: variables `OUTLAST_…`, a running producer's `health()` as JSON, a file (JSON, or
lines `name=value` as in Java's properties and INI files), variables with another prefix, `--set`,
and `--bootstrap-servers`. Java's names are taken too: dots and dashes stand for underscores.

Rules: text becomes what the setting wants (`acks=all`, `retries=inf`), then `outlast.config` checks
it as it would for a producer. Settings that are objects (serializers, callbacks) and those that say
nothing about failures are left out.
"""

from __future__ import annotations

import difflib
import json
import sys
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from outlast import environment as own
from outlast.checks import Choice, Instance
from outlast.cli.check_view import Producer
from outlast.config import SETTINGS, Config
from outlast.texts import is_nothing, is_object, read

URL_TIMEOUT_S = 5.0
SECTIONS = ("producer", "outlast", "kafka")
LEFT_OUT = frozenset({"transactional_id", "compression_type", "api_version", "client_id"})

NO_TEXT = "this setting is an object, so only a program can give it; leave it out here"


class SettingsError(Exception):
    """Settings could not be read, or are not allowed; the text says which and why."""


def gather(
    *,
    health: str | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    prefix: str | None = None,
    keywords: Iterable[str] = (),
    bootstrap: str | None = None,
    left_out: Collection[str] = LEFT_OUT,
) -> Producer:
    """The producer that these sources describe together.

    Args:
        health: a file with `producer.health().to_dict()` as JSON, or where such is served over
            HTTP, or '-' for standard input.
        prefix: of variables in `environment`, beside outlast's own.
        keywords: NAME=VALUE each.
        left_out: names that are passed over, as they say nothing about failures.

    Raises:
        SettingsError: a source cannot be read, or a value is not allowed.
    """
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ignored: list[str] = []

    def take(found: Mapping[str, Any], source: str, *, strange: bool) -> None:
        for given, value in found.items():
            name = given.replace(".", "_").replace("-", "_")
            if name not in SETTINGS:
                if not strange:
                    raise SettingsError(f"{source}: there is no setting {_hinted(given)}")
                ignored.append(f"{_hinted(given)} ({source})")
            elif name not in left_out:
                typed = _typed(name, value)
                if typed is None and not strange and not is_nothing(value):
                    raise SettingsError(f"{source} {given}={value}: {NO_TEXT}")
                if typed is not None or isinstance(SETTINGS[name].check, (Instance, Choice)):
                    merged[name], sources[name] = typed, source

    rate = None
    if environment is not None:
        take(own.found(environment), "environment", strange=True)
    if health is not None:
        said = _json(_text_of(health), health)
        take(_part(said), f"health of {health}", strange=True)
        rate = _rate(said)
    if file is not None:
        take(_from_file(file), str(file), strange=True)
    if prefix is not None:
        take(_prefixed(environment or {}, prefix), "environment", strange=True)
    take(dict(map(_pair, keywords)), "--set", strange=False)
    if bootstrap is not None:
        take({"bootstrap_servers": bootstrap}, "--bootstrap-servers", strange=False)
    try:
        config = Config(**merged)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return Producer(
        values=config.values,
        settings=config.settings,
        sources=sources,
        ignored=tuple(ignored),
        rate_bytes_per_s=rate,
    )


def _prefixed(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The settings among variables with this prefix; what else begins with it is not ours."""
    cut = {
        n[len(prefix) :].lower(): text for n, text in environment.items() if n.startswith(prefix)
    }
    return {name: text for name, text in cut.items() if name in SETTINGS}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise SettingsError(f"--set {text!r}: write NAME=VALUE, delivery_timeout_ms=60000")
    return name.strip(), value.strip()


def _hinted(name: str) -> str:
    near = difflib.get_close_matches(name.replace(".", "_"), SETTINGS, n=1)
    return f"{name!r}" + (f" (did you mean {near[0]}?)" if near else "")


def _typed(name: str, value: Any) -> Any:
    """What the setting wants of a text; None: leave it alone. Other values stay as they are."""
    check = SETTINGS[name].check
    if not isinstance(value, str):
        return value
    return None if is_object(check) else read(check, value)


# --- files, addresses -----------------------------------------------------------------------------


def _text_of(place: str) -> str:
    try:
        if place == "-":
            return sys.stdin.read()
        if place.startswith(("http://", "https://")):
            with urllib.request.urlopen(place, timeout=URL_TIMEOUT_S) as answer:  # noqa: S310
                body: bytes = answer.read()
                return body.decode()
        return Path(place).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"{place} cannot be read: {error}") from None


def _from_file(path: Path) -> dict[str, Any]:
    text = _text_of(str(path))
    if path.suffix in (".yaml", ".yml"):
        raise SettingsError(f"{path}: YAML is not read; JSON is, and lines NAME=VALUE")
    if text.lstrip().startswith("{") or path.suffix == ".json":
        return _part(_json(text, str(path)))
    return _lines(text, str(path))


def _json(text: str, place: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{place} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise SettingsError(f"{place} is no JSON object")
    return said


def _part(said: dict[str, Any]) -> dict[str, Any]:
    """The settings in what `health()` gives; else all of it, without what `health()` has beside."""
    settings = said.get("settings", said if "open_gaps" not in said else {})
    return settings if isinstance(settings, dict) else {}


def _rate(said: dict[str, Any]) -> float | None:
    """Bytes of the buffer that come each second, as `health()` implies it."""
    headroom_s = said.get("headroom_s")
    free = said.get("buffer_limit_bytes", 0) - said.get("buffer_bytes", 0)
    return free / headroom_s if headroom_s and free > 0 else None


def _lines(text: str, place: str) -> dict[str, Any]:
    """Lines NAME=VALUE, in sections or not; comments begin with #, ! or ;."""
    sections: dict[str, dict[str, Any]] = {}
    current = sections.setdefault("", {})
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!;":
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1].strip().lower(), {})
            continue
        name, sign, value = line.partition("=")
        if not sign:
            name, sign, value = line.partition(":")
        if not sign:
            raise SettingsError(f"{place}, line {number}: {raw!r} is not NAME=VALUE")
        current[name.strip()] = value.strip().strip("\"'")
    common = sections.pop("")
    chosen = [name for name in SECTIONS if name in sections] or list(sections)
    if len(chosen) > 1 and not any(name in sections for name in SECTIONS):
        raise SettingsError(
            f"{place} has sections {', '.join(chosen)}; name the producer's [producer]"
        )
    return {**common, **(sections[chosen[0]] if chosen else {})}
