"""What the network tells the driver, and how an exception becomes a reason.

Rules: a Disconnected says why in the engine's terms (`Loss`) and in words; where the type of an
exception alone would not tell, the place that knows raises `Ended`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors as kafka_errors

from outlast.engine.messages import Connection, Loss
from outlast.io.tls import explained


class Features:
    """The finalized features that a broker told in its answer to ApiVersions."""

    __slots__ = ("levels",)

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Features {self.levels}>"

    def hear(self, response: Any) -> None:
        """An answer came; versions before 3 have none."""
        known = response.finalized_features or ()
        self.levels = {feature.name: feature.max_version_level for feature in known}


@dataclass(slots=True)
class Connected:
    """A broker answered: TCP, TLS, ApiVersions and SASL are through."""

    connection: Connection
    address: str
    versions: Any  # kafka.protocol's BrokerVersionData
    features: Mapping[str, int]  # finalized ones, and their level

    @property
    def api_versions(self) -> Mapping[int, tuple[int, int]]:
        """By API: the oldest and the newest version that both sides have."""
        return self.versions.api_versions  # type: ignore[no-any-return]

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The release, as far as the versions of its APIs tell."""
        return self.versions.broker_version  # type: ignore[no-any-return]


@dataclass(slots=True)
class Disconnected:
    """A connection could not be made, or ended unasked."""

    connection: Connection
    address: str
    loss: Loss
    detail: str
    unsent: list[int] = field(default_factory=list)  # tokens of requests never handed over


@dataclass(slots=True)
class Inspected:
    """What the kernel says of a connection: how often it has sent the oldest segment again."""

    connection: Connection
    retransmits: int


class Responded:
    """The answer to one request. Until it comes it waits in kafka.net's queue, as its future."""

    __slots__ = ("_events", "connection", "is_done", "response", "token")

    def __init__(self, connection: Connection, token: int, events: list[Event] | None) -> None:
        self.connection = connection
        self.token = token
        self.response: Any = None
        self.is_done = False
        self._events = events  # None: no answer is expected

    def __repr__(self) -> str:
        return f"<Responded {self.connection} token={self.token} {type(self.response).__name__}>"

    def success(self, response: Any) -> None:
        """Called by kafka.net with the decoded answer."""
        self.is_done = True
        if self._events is not None:
            self.response = response
            self._events.append(self)

    def failure(self, _error: object) -> None:
        """Called by kafka.net when the connection ended; Disconnected tells it."""
        self.is_done = True


Event = Connected | Disconnected | Responded | Inspected


class Ended(Exception):  # noqa: N818  (a reason, not a mistake)
    """Why a connection ends."""

    def __init__(self, loss: Loss, detail: str) -> None:
        super().__init__(detail)
        self.loss = loss


_REFUSING = (
    ssl.SSLError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)
_LATE = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)


def loss_of(error: BaseException | None) -> Loss:
    """The reason in the engine's terms."""
    match error:
        case Ended():
            return error.loss
        case kafka_errors.KafkaProtocolError():
            return Loss.BAD_BYTES
        case kafka_errors.UnsupportedVersionError():
            return Loss.UNSUPPORTED
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return Loss.CLOSED
    if isinstance(error, _REFUSING):
        return Loss.AUTHENTICATION
    return Loss.SETUP_TIMEOUT if isinstance(error, _LATE) else Loss.CLOSED


def because(
    error: BaseException | None, connection: Connection, address: str, unsent: list[int]
) -> Disconnected:
    """A connection has ended, with the reason in the engine's terms and in words."""
    return Disconnected(connection, address, loss_of(error), told(error), unsent)


def told(error: BaseException | None) -> str:
    """The reason in words."""
    if error is None:
        return "closed"
    if isinstance(error, ssl.SSLError) and loss_of(error) is Loss.AUTHENTICATION:
        return explained(error)
    text = str(error)
    if text and isinstance(error, (Ended, OSError, kafka_errors.KafkaConnectionError)):
        return text
    return f"{type(error).__name__}: {text}"
