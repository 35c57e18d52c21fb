"""What to do about a connection that ends before it was of any use.

A broker that is spoken to in the wrong way (TLS to a plain port or the reverse, SASL or none) does
not say so: it closes. So where a connection ends says what may be wrong.
"""

from __future__ import annotations

import ssl
from enum import Enum

from outlast.engine.messages import Loss
from outlast.io.events import Ended, loss_of, told
from outlast.io.tls import no_tls_advice, tls_advice


class Stage(Enum):
    """How far a connection has come."""

    DIALING = "dialing"
    TLS_HANDSHAKE = "in the TLS handshake"
    API_VERSIONS = "before it answered ApiVersions"
    LOGIN = "during the SASL login"
    FIRST_REQUEST = "at the first request"
    SERVED = "served"


def with_advice(error: BaseException | None, stage: Stage, protocol: str) -> BaseException | None:
    """The reason why a connection ended, and what to do if it always ends there."""
    if error is None or loss_of(error) is not Loss.CLOSED:
        return error
    tls = protocol in ("SSL", "SASL_SSL")
    if stage is Stage.TLS_HANDSHAKE:
        advice = f"does the port speak TLS? If not, {no_tls_advice()}"
    elif stage is Stage.API_VERSIONS and not tls:
        advice = f"does the port want TLS? If so, {tls_advice()}"
    elif stage is Stage.API_VERSIONS:
        advice = "does the broker want a client's certificate? If so, set ssl_certfile"
    elif stage is Stage.FIRST_REQUEST and not protocol.startswith("SASL"):
        advice = (
            f"does the listener want SASL? If so, set security_protocol to 'SASL_{protocol}'"
            if tls
            else "does the listener want SASL? If so, set security_protocol to 'SASL_PLAINTEXT'"
        )
    elif stage is Stage.LOGIN:
        advice = "the broker's log says why"
    else:
        return error
    text = "closed by the broker" if isinstance(error, ssl.SSLEOFError) else told(error)
    loss = Loss.CLOSED if stage is Stage.FIRST_REQUEST else Loss.REFUSED  # nothing of ours was sent
    return Ended(loss, f"{text} {stage.value} over {protocol}; {advice}")


def unreadable(data: bytes, error: Exception) -> Ended:
    """Bytes that are no answer of a broker's."""
    if data[:2] == b"\x15\x03":  # a TLS alert
        return Ended(Loss.BAD_BYTES, f"the port answers in TLS: {tls_advice()}")
    if data[:5] == b"HTTP/":
        return Ended(Loss.BAD_BYTES, "the port answers in HTTP: it is no Kafka broker's")
    return Ended(Loss.BAD_BYTES, f"an answer that cannot be read: {error!r}")
