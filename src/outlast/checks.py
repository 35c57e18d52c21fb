"""What a setting's value may be: one small class per kind of value.

A check is called with the setting's name and the value a user gave, and returns the value to use
or raises. `allowed` says in words what it lets through: for the message and for the docs.
"""

from __future__ import annotations

import logging
import math
import numbers
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from outlast.errors import ConfigurationError, ConfigurationTypeError

log = logging.getLogger(__name__)

DEFAULT_PORT = 9092
SECRET = re.compile("password|username|token_provider|proxy", re.IGNORECASE)


class Check(Protocol):
    """Returns the value to use, or raises ConfigurationError."""

    @property
    def allowed(self) -> str:
        """What may be given, in words."""

    def __call__(self, name: str, value: Any) -> Any:
        """The value to use."""


def refuse(name: str, value: Any, allowed: str, *, wrong_type: bool = False) -> NoReturn:
    """Raise the error that names the setting, the value and what is allowed."""
    error = ConfigurationTypeError if wrong_type else ConfigurationError
    raise error(f"{name}={_shown(name, value)} is not allowed: it must be {allowed}")


def _shown(name: str, value: Any) -> str:
    text = shown(name, value)
    return text if len(text) <= 80 else text[:79] + "…"


def shown(name: str, value: Any) -> str:
    """The value for a log, an error or a repr: without what lets anyone in, even a wrong one."""
    if value is None or not SECRET.search(name):
        return repr(value)
    if isinstance(value, str) and "://" in value:  # a proxy's URL: the host is no secret
        scheme, _, rest = value.partition("://")
        return repr(f"{scheme}://{'…@' if '@' in rest else ''}{rest.rpartition('@')[2]}")
    return "…"


def but_none(check: Check) -> str:
    """What may be given where None, which the setting has by itself, is not enough."""
    return check.allowed.replace("None, ", "").replace(" or None", "")


@dataclass(frozen=True)
class Number:
    """A real number; a whole one if `whole`. Not a bool, a string or NaN."""

    low: float = 0
    high: float = math.inf
    whole: bool = False
    infinite: bool = False
    optional: bool = False

    @property
    def allowed(self) -> str:
        """See `Check`."""
        text = "a whole number" if self.whole else "a number"
        text += f" ≥ {self.low}" if math.isinf(self.high) else f" from {self.low} to {self.high}"
        if self.infinite:
            text += " or float('inf')"
        return text + (" or None" if self.optional else "")

    def __call__(self, name: str, value: Any) -> Any:
        """See `Check`."""
        if value is None and self.optional:
            return None
        if type(value) is bool or not isinstance(value, numbers.Real):
            refuse(name, value, self.allowed, wrong_type=True)
        number = float(value)
        if math.isinf(number) and self.infinite and number > 0:
            return value
        if not (math.isfinite(number) and self.low <= number <= self.high):
            refuse(name, value, self.allowed)
        if not self.whole:
            return value
        if number != int(number):
            refuse(name, value, self.allowed)
        return int(number) if number < 2**53 else value


@dataclass(frozen=True)
class Choice:
    """One of a few values; `aliases` are turned into the value they stand for."""

    values: tuple[Any, ...]
    aliases: tuple[tuple[Any, Any], ...] = ()

    @property
    def allowed(self) -> str:
        """See `Check`."""
        names = [repr(v) for v in (*self.values, *(alias for alias, _ in self.aliases))]
        return " or ".join((", ".join(names[:-1]), names[-1]))

    def __call__(self, name: str, value: Any) -> Any:
        """See `Check`."""
        for given, meant in (*((v, v) for v in self.values), *self.aliases):
            # True == 1 and 1.0 == 1: the type must be the same.
            if type(value) is type(given) and value == given:
                return meant
        refuse(name, value, self.allowed, wrong_type=type(value) not in self._types())

    def _types(self) -> set[type]:
        return {type(v) for v in (*self.values, *(alias for alias, _ in self.aliases))}


@dataclass(frozen=True)
class Instance:
    """Of one of some types."""

    types: tuple[type, ...]
    allowed: str

    def __call__(self, name: str, value: Any) -> Any:
        """See `Check`."""
        if not isinstance(value, self.types):
            refuse(name, value, self.allowed, wrong_type=True)
        return value


@dataclass(frozen=True)
class Duck:
    """None, something with these methods or, if `or_callable`, any callable."""

    methods: tuple[str, ...]
    allowed: str
    optional: bool = True
    or_callable: bool = False

    def __call__(self, name: str, value: Any) -> Any:
        """See `Check`."""
        if (value is None and self.optional) or (self.or_callable and callable(value)):
            return value
        if not self.methods or not all(callable(getattr(value, m, None)) for m in self.methods):
            refuse(name, value, self.allowed, wrong_type=True)
        return value


@dataclass(frozen=True)
class By:
    """Checked by a function of its own."""

    function: Callable[[str, Any], Any]
    allowed: str

    def __call__(self, name: str, value: Any) -> Any:
        """See `Check`."""
        return self.function(name, value)


def _api_version(name: str, value: Any) -> Any:
    """A tuple of numbers; strings such as '2.8' and 'auto' are taken as kafka-python takes them."""
    if isinstance(value, str):
        given = value
        try:
            value = None if value == "auto" else tuple(map(int, value.split(".")))
        except ValueError:
            refuse(name, given, API_VERSION.allowed)
        log.warning("use api_version=%s [tuple]: %r as a string is deprecated", value, given)
    if value is None:
        return None
    if not isinstance(value, tuple) or not value or not all(type(part) is int for part in value):
        refuse(name, value, API_VERSION.allowed, wrong_type=True)
    return value


def parse_bootstrap(value: Any) -> tuple[tuple[str, int], ...]:
    """Addresses as kafka-python reads them: 'host', 'host:port', '[::1]:port', 'PLAINTEXT://…',
    one string with commas or a list of strings.
    """
    name = "bootstrap_servers"
    entries = [e for e in value.split(",") if e.strip()] if isinstance(value, str) else value
    if not isinstance(entries, Iterable) or isinstance(entries, (bytes, Mapping)):
        refuse(name, value, BOOTSTRAP.allowed, wrong_type=True)
    addresses = []
    for entry in entries:
        if not isinstance(entry, str):
            refuse(name, value, BOOTSTRAP.allowed, wrong_type=True)
        address = _parse_address(entry.rpartition("://")[2].strip())
        if address is None:
            refuse(name, value, f"{BOOTSTRAP.allowed} ({entry!r} is none)")
        addresses.append(address)
    if not addresses:
        refuse(name, value, BOOTSTRAP.allowed)
    return tuple(addresses)


def _parse_address(text: str) -> tuple[str, int] | None:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    elif text.count(":") > 1:  # an IPv6 address without brackets has no port
        host, port = text, ""
        try:
            socket.inet_pton(socket.AF_INET6, host)
        except OSError:
            return None
    else:
        host, _, port = text.partition(":")
    if not host or any(c.isspace() or c == "/" for c in host):
        return None
    if not port:
        return None if text.endswith(":") else (host, DEFAULT_PORT)
    return (host, int(port)) if port.isdecimal() and 0 < int(port) < 65536 else None


def _bootstrap(_name: str, value: Any) -> Any:
    parse_bootstrap(value)
    return value


def _socket_options(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(option, (list, tuple)) and len(option) in (3, 4) for option in value
    ):
        refuse(name, value, SOCKET_OPTIONS.allowed, wrong_type=True)
    return value


def _metric_reporters(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not all(callable(entry) for entry in value):
        refuse(name, value, METRIC_REPORTERS.allowed, wrong_type=True)
    return value


def _metrics_labels(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for entry in value.items() for part in entry
    ):
        refuse(name, value, METRICS_LABELS.allowed, wrong_type=True)
    if value:
        from outlast.observe.metrics import ATTRIBUTES

        reserved = {"le", "pid", *ATTRIBUTES}  # of Prometheus, and of the metrics
    for label in value:
        if label in reserved or re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", label) is None:
            refuse(name, value, f"{METRICS_LABELS.allowed}; {label!r} cannot be one of them")
        if _has_surrogate(value[label]):  # the application's whole page could not be shown
            refuse(name, value, f"{METRICS_LABELS.allowed}; values that UTF-8 can encode")
    return dict(value)


def _has_surrogate(text: str) -> bool:
    """Half of a pair, as in texts made of file names that are no UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _proxy_url(name: str, value: Any) -> Any:
    TEXT(name, value)
    if value is not None and not value.startswith(("socks5://", "socks5h://", "http://")):
        refuse(name, value, PROXY_URL.allowed)
    return value


def fits_wire(text: str) -> bool:
    """Whether a request can hold it: UTF-8 has no lone surrogates, and an int16 is its length."""
    try:
        return len(text.encode()) < 2**15
    except UnicodeEncodeError:
        return False


def _wire_text(name: str, value: Any) -> Any:
    TEXT(name, value)
    if value is not None and not fits_wire(value):
        refuse(name, value, WIRE_TEXT.allowed)
    return value


def _transactional_id(name: str, value: Any) -> Any:
    _wire_text(name, value)
    if value == "":  # INVALID_REQUEST for a broker
        refuse(name, value, TRANSACTIONAL_ID.allowed)
    return value


FLAG = Choice((True, False), aliases=((1, True), (0, False)))
TEXT = Instance((str, type(None)), "a string or None")
WIRE_TEXT = By(_wire_text, "a string of at most 32767 bytes of UTF-8 or None")
TRANSACTIONAL_ID = By(_transactional_id, "a string of 1 to 32767 bytes of UTF-8 or None")
PATH = Instance((str, os.PathLike, type(None)), "a path or None")
CALLABLE = Duck((), "a callable or None", or_callable=True)
FACTORY = Duck((), "a callable", optional=False, or_callable=True)
ANYTHING = By(lambda _name, value: value, "anything")
API_VERSION = By(_api_version, "None or a tuple such as (2, 8)")
BOOTSTRAP = By(_bootstrap, "'host[:port]', several of it with commas between, or a list of it")
SOCKET_OPTIONS = By(_socket_options, "a list of tuples of arguments of socket.setsockopt")
METRICS_LABELS = By(
    _metrics_labels, "a dict of strings; names of letters, digits and _ that no metric has"
)
METRIC_REPORTERS = By(_metric_reporters, "a list of classes")
PROXY_URL = By(_proxy_url, "None or a URL that begins with socks5://, socks5h:// or http://")


def one_metrics_backend(values: Mapping[str, Any], *, default_registry: object) -> None:
    """A gap told to Prometheus and to OpenTelemetry would be two where both end on one page."""
    backend = values["metrics"]
    registry, provider = values["metrics_registry"], values["meter_provider"]
    if backend != "prometheus" and registry not in (None, default_registry):
        refuse(
            "metrics_registry",
            registry,
            f"left out with metrics={backend!r}: metrics go to one place only",
        )
    if backend != "otel" and provider is not None:
        refuse(
            "meter_provider",
            provider,
            f"left out with metrics={backend!r}: it is for metrics='otel', and metrics go to one "
            "place only",
        )
