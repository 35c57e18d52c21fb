"""The buffer in which a thread encodes its requests: small at first.

kafka-python keeps one for each thread, of 64 KiB; most producers need a few hundred bytes. It grows
where more is needed, and stays that size.
"""

from __future__ import annotations

from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer, EncodeBufferPool

BEGIN_BYTES = 512


def begin_small() -> None:
    """For this thread, before its first request."""
    EncodeBufferPool._local.buf = EncodeBuffer(BEGIN_BYTES)
