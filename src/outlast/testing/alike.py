"""Which record is which, of those that share a header because one `send_many` sent them.

A copy in a log belongs to a record of the same key and value. Among those that are alike (or of
which nobody knows the bytes, as a serializer made them) it belongs to the one that was told that
very place; what is left goes to records without a copy, acknowledged ones first; and what is left
then is a second copy.

Rule: never kinder than headers of their own would be, where keys and values differ. Where they are
alike, copies cannot be told apart, and only their number and places can be wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Protocol

from outlast.testing.reading import Found

UNSAID = "unsaid"  # the bytes of a record that nobody knows


class Sent(Protocol):
    """A record of the call, and what was told of it."""

    number: int
    key: object
    value: object
    partition: int | None
    offset: int | None
    state: str
    as_given: bool


def told_apart(records: Sequence[Sent], found: Sequence[Found]) -> dict[int, list[Found]]:
    """The copies of each record, by its number."""
    alike: dict[Hashable, list[Sent]] = {}
    for record in records:
        alike.setdefault(_bytes_of(record), []).append(record)
    copies: dict[Hashable, list[Found]] = {}
    for copy in found:
        known = copy.payload if copy.payload in alike else UNSAID
        copies.setdefault(known, []).append(copy)
    unsaid = copies.pop(UNSAID, [])
    owned: dict[int, list[Found]] = {}
    for payload, theirs in copies.items():
        _share_out(alike[payload], theirs, owned)
    if unsaid:
        _share_out(alike.get(UNSAID, records), unsaid, owned)
    return owned


def _bytes_of(record: Sent) -> Hashable:
    """Key and value as they are written, as far as that is known."""
    both = record.key, record.value
    if record.as_given and all(isinstance(one, _BYTES) for one in both):
        return tuple(None if one is None else bytes(one) for one in both)  # type: ignore[call-overload]
    return UNSAID


_BYTES = (bytes, bytearray, memoryview, type(None))


def _nearest(records: Sequence[Sent], copy: Found) -> Sent:
    return next((r for r in records if r.partition == copy.partition), records[0])


def _share_out(
    records: Sequence[Sent], found: Sequence[Found], owned: dict[int, list[Found]]
) -> None:
    """Give each copy to one of these records, which are alike."""
    told = {(r.partition, r.offset): r for r in records if r.state == "acked"}
    left = []
    for copy in found:
        record = told.pop((copy.partition, copy.offset), None)
        if record is None:
            left.append(copy)
        else:
            owned.setdefault(record.number, []).append(copy)
    without: dict[int | None, deque[Sent]] = {}  # by partition
    for record in sorted(records, key=lambda r: (r.state != "acked", r.number)):
        if record.number not in owned:
            without.setdefault(record.partition, deque()).append(record)
    for copy in sorted(left, key=lambda c: (c.partition, c.offset)):
        mine = without.get(copy.partition) or without.get(None)
        mine = mine or next(filter(None, without.values()), None)
        record = mine.popleft() if mine else _nearest(records, copy)
        owned.setdefault(record.number, []).append(copy)
