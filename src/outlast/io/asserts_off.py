"""Lets kafka-python read tagged structs where asserts are off.

Its `TaggedFields.decode_empty` reads a byte within an assert. Under `python -O` that byte stays,
and what follows is read amiss: the ApiVersions of each broker that tells features (KIP-584), as all
with KRaft do, so that no connection comes up; and the leader in a Produce response (KIP-951).
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.schemas.fields.codecs import tagged_fields


def install() -> None:
    """Where asserts are off, replace what needs them; for all that uses kafka-python."""
    if not __debug__:
        tagged_fields.TaggedFields.decode_empty = staticmethod(_decode_empty)


def _decode_empty(data: Any) -> None:
    """Read the count of a struct's own tagged fields. Raises ValueError if there are any."""
    if tagged_fields.UnsignedVarInt32.decode(data) != 0:
        raise ValueError("tagged fields within a tagged struct")
