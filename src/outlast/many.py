"""`send_many`: many records in one call, and how they go into the buffer.

Rules:
* Once a record was taken nothing raises any more but a signal handler: what cannot be taken fails
  in the object that comes back. So nobody sends again what is on its way.
* What is wrong with one record alone, or with one partition, costs no other.
* Records of one partition stay in their order. They go into batches as `send` puts them there, a
  batch's share in one pass; those with keys by their partitions, some thousands at a time.
* All waiting of a call is within one `max_block_ms`. For a partition that is held up (there is
  room, but not for it) it comes last: the others do not wait behind it.
* What an exception brought here is kept by nobody: its traceback knows the caller's whole list.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from kafka.errors import BrokerResponseError, IllegalStateError

from outlast.deliveries import Deliveries, Part
from outlast.delivery import Delivery
from outlast.engine.partitioner import keyed_partition
from outlast.engine.run import Run
from outlast.errors import BlockedError, is_refusal
from outlast.many_records import Records as Records

if TYPE_CHECKING:
    from outlast.engine.intake import Taken
    from outlast.io.thread import Driver
    from outlast.partitioning import UserPartitioner
    from outlast.refusals import Refusals

FEW = 48  # records with keys that are quicker put one by one
KEYED_AT_ONCE = 4096  # records that are put in order of their partitions together
PLACES_KEPT = 1 << 16  # keys whose partition is remembered within a call


def take(
    records: Records,
    driver: Driver,
    partitioner: UserPartitioner | None,
    max_block_s: float,
    refusals: Refusals,
) -> Deliveries:
    """Put the records into the buffer.

    Raises: as `send`, where the first one cannot be taken. And whatever a signal handler raises.
    """
    if partitioner is not None and records.partition is None:
        return _Placed(records, driver, max_block_s, refusals, partitioner).taken()
    if records.keys is not None and records.partition is None:
        return _Keyed(records, driver, max_block_s, refusals).taken()
    return _InOrder(records, driver, max_block_s, refusals).taken()


# What the driver raises. The record is not in the buffer then, nor are those behind it. All else is
# a signal handler's, which may come at any step, and passes; nobody knows then what was taken.
_NOT_TAKEN = (BlockedError, IllegalStateError, BrokerResponseError, ValueError)


class _Way(ABC):
    """How the records of one call go into the buffer."""

    patient = False  # waits for a partition that is held up before others have had their turn

    def __init__(
        self, records: Records, driver: Driver, max_block_s: float, refusals: Refusals
    ) -> None:
        self.records = records
        self.driver = driver
        self.left_s = self._max_block_s = max_block_s  # for all waiting
        self.over = False  # the rest is lost: nothing more is tried
        self._refusals = refusals

    @abstractmethod
    def note(self, delivery: Delivery, first: int, indices: Sequence[int]) -> None:
        """These records are in this delivery, from its record `first` on."""

    @abstractmethod
    def noted(self) -> bool:
        """Whether any record was taken or lost."""

    @abstractmethod
    def rest(self) -> Sequence[int]:
        """The records that are neither taken nor lost."""

    def held_up(self, partition: int | None, indices: Sequence[int]) -> None:
        """These could not be taken, as that partition is held up."""
        raise AssertionError(f"{len(indices)} records for {partition}: a patient way waits")

    def no_partition(
        self, error: ValueError, partition: int | None, indices: Sequence[int]
    ) -> bool:
        """These could not be taken, for the topic has no such partition. As `lose`."""
        return self.lose(error, partition, indices)

    def put(self, partition: int | None, indices: Sequence[int]) -> None:
        """Take these records, which go to one partition or to any, or find out why not."""
        at = 0
        try:
            for run in self.records.runs(partition, indices):
                begin, end = 0, len(run.values)
                while begin < end:
                    taken = self._append(run, begin)
                    if taken is None:
                        self.held_up(partition, indices[at:])
                        return
                    count = taken.count
                    mine = indices if count == len(indices) else indices[at : at + count]
                    self.note(cast("Delivery", taken.batch.delivery), taken.first, mine)
                    begin += count
                    at += count
        except BlockedError as error:
            lost = (
                self.lose(error, partition, indices[at:]) if self.patient else self.lose_rest(error)
            )
            if not lost:
                raise
        except ValueError as error:
            if not self.no_partition(error, partition, indices[at:]):
                raise
        except _NOT_TAKEN as error:
            if not self.lose_rest(error):
                raise

    def _append(self, run: Run, begin: int) -> Taken | None:
        begun_s = time.monotonic()
        try:
            return self.driver.append_run(
                run, begin, self.left_s, self._max_block_s, patient=self.patient
            )
        finally:
            self.left_s = max(0.0, self.left_s - (time.monotonic() - begun_s))

    def lose_rest(self, error: Exception) -> bool:
        """Nothing more can be taken. As `lose`."""
        self.over = True
        partition, by_cluster = self.records.partition, is_refusal(error)
        return self.lose(error, partition, self.rest(), by_cluster=by_cluster)

    def lose(
        self,
        error: Exception,
        partition: int | None,
        indices: Sequence[int],
        *,
        by_cluster: bool = False,
    ) -> bool:
        """These fail with this error. False, and nothing was done: it is to be raised, for nothing
        was sent. (But for the cluster's refusal, which futures tell.)
        """
        if not (by_cluster or self.noted()):
            return False
        records, count = self.records.at(indices), len(indices)
        delivery = self._refusals.many(
            error, self.records.topic, partition, count, records, by_cluster=by_cluster
        )
        self.note(delivery, 0, indices)
        return True


class _InOrder(_Way):
    """One after the other: they have no keys, or all go to one partition."""

    patient = True

    def taken(self) -> Deliveries:
        """All of them."""
        self._count = 0
        self._parts: list[Part] = []
        self.put(self.records.partition, range(len(self.records)))
        return Deliveries(self._parts, self.records.sizes)

    def note(self, delivery: Delivery, first: int, indices: Sequence[int]) -> None:
        """They may go on where the last ones end."""
        size = len(indices)
        self._count += size
        if self._parts:
            last = self._parts[-1]
            if last.delivery is delivery and last.first + last.size == first:
                self._parts[-1] = last._replace(size=last.size + size)
                return
        self._parts.append(Part(delivery, first, size))

    def noted(self) -> bool:
        """Whether any record was taken or lost."""
        return self._count > 0

    def rest(self) -> Sequence[int]:
        """The records that are neither taken nor lost."""
        return range(self._count, len(self.records))


class _Stretch:
    """Records of this call that follow each other in one delivery."""

    __slots__ = ("delivery", "first", "indices")

    def __init__(self, delivery: Delivery, first: int, indices: Sequence[int]) -> None:
        self.delivery = delivery
        self.first = first
        self.indices = array("I", indices)


class _ByPartition(_Way):
    """Each to its partition; those for one that is held up come last."""

    def taken(self) -> Deliveries:
        """All of them."""
        self._stretches: list[_Stretch] = []
        self._last: dict[Delivery, _Stretch] = {}
        self._held: dict[int | None, list[Sequence[int]]] = {}
        self.send_each()
        self.patient = True
        for partition, held in self._held.items():
            if not self.over:
                self.put(partition, [index for some in held for index in some])
        order = array("I")
        for stretch in self._stretches:
            order += stretch.indices
        parts = [Part(s.delivery, s.first, len(s.indices)) for s in self._stretches]
        return Deliveries(parts, self.records.sizes, order)

    @abstractmethod
    def send_each(self) -> None:
        """Put all of them."""

    def put(self, partition: int | None, indices: Sequence[int]) -> None:
        """Behind those that are held up, if some are."""
        if not self.patient and partition in self._held:
            self._held[partition].append(indices)
        else:
            super().put(partition, indices)

    def held_up(self, partition: int | None, indices: Sequence[int]) -> None:
        """Others go first."""
        self._held[partition] = [indices]

    def note(self, delivery: Delivery, first: int, indices: Sequence[int]) -> None:
        """They may go on where others of that delivery end."""
        last = self._last.get(delivery)
        if last is not None and last.first + len(last.indices) == first:
            last.indices.extend(indices)
            return
        self._last[delivery] = stretch = _Stretch(delivery, first, indices)
        self._stretches.append(stretch)

    def noted(self) -> bool:
        """Whether any record was taken or lost."""
        return bool(self._stretches)

    def rest(self) -> Sequence[int]:
        """The records that are neither taken nor lost."""
        done = bytearray(len(self.records))
        for stretch in self._stretches:
            for index in stretch.indices:
                done[index] = 1
        return [index for index, is_done in enumerate(done) if not is_done]


class _Keyed(_ByPartition):
    """By their keys: some thousands are put in order of their partitions at a time."""

    def send_each(self) -> None:
        """Put all of them."""
        self._known: frozenset[int] = frozenset()  # the topic's partitions
        self._places: dict[bytes | None, int | None] = {}  # by key, among those
        count = len(self.records)
        if count <= FEW:
            self._put_few()
            return
        for begin in range(0, count, KEYED_AT_ONCE):
            if not self.over:
                self._sort_in(range(begin, min(begin + KEYED_AT_ONCE, count)))

    def _put_few(self) -> None:
        """One by one: to put them in order would cost more."""
        try:
            for index in range(len(self.records)):
                taken = self._append(self.records.one(index), 0)
                if taken is None:
                    self._sort_in(self.rest())
                    return
                self.note(cast("Delivery", taken.batch.delivery), taken.first, (index,))
        except _NOT_TAKEN as error:
            if not self.lose_rest(error):
                raise

    def _sort_in(self, indices: Sequence[int]) -> None:
        try:
            self._changed()
        except _NOT_TAKEN as error:
            if not self.lose_rest(error):
                raise
            return
        for partition, mine in self._grouped(indices).items():
            if not self.over:
                self.put(partition, mine)

    def _changed(self) -> bool:
        """Whether the topic has other partitions than were known."""
        begun_s = time.monotonic()
        known = self.driver.partitions_for(self.records.topic, self.left_s)
        self.left_s = max(0.0, self.left_s - (time.monotonic() - begun_s))
        if known == self._known:
            return False
        self._known = known
        self._places.clear()
        return True

    def _grouped(self, indices: Sequence[int]) -> dict[int | None, list[int]]:
        places, all_keys = self._places, cast("list[bytes | None]", self.records.keys)
        keys = [all_keys[index] for index in indices]
        if len(places) > PLACES_KEPT:
            places.clear()
        partitions = sorted(self._known)
        for key in {*keys}.difference(places):
            places[key] = None if key is None else keyed_partition(key, partitions)
        groups: dict[int | None, list[int]] = defaultdict(list)
        for key, index in zip(keys, indices, strict=True):
            groups[places[key]].append(index)
        return groups

    def no_partition(
        self, error: ValueError, partition: int | None, indices: Sequence[int]
    ) -> bool:
        """The topic may have been created again, with fewer: then its keys go elsewhere."""
        with suppress(*_NOT_TAKEN):
            if self._changed():
                self._sort_in(indices)
                return True
        return super().no_partition(error, partition, indices)


class _Placed(_ByPartition):
    """Each where the user's own partitioner wants it."""

    def __init__(
        self,
        records: Records,
        driver: Driver,
        max_block_s: float,
        refusals: Refusals,
        partitioner: UserPartitioner,
    ) -> None:
        super().__init__(records, driver, max_block_s, refusals)
        self._partitioner = partitioner

    def send_each(self) -> None:
        """Put all of them."""
        self._places = _Places(self.driver)
        self._absent: dict[int | None, str] = {}  # what it named that is not there
        for index in range(len(self.records)):
            if not self.over:
                self._place(index)

    def _place(self, index: int) -> None:
        records = self.records
        values, keys = cast("tuple[list[Any], list[Any] | None]", records.given)
        key, key_bytes = None if keys is None else keys[index], records.key(index)
        asked = records.topic, key, key_bytes, values[index], records.values[index]
        try:
            partition, self.left_s = self._partitioner.place(
                self._places, self.left_s, *asked, records.headers(index)
            )
            if partition in self._absent:
                raise ValueError(self._absent[partition])
        except Exception as error:
            if self._places.asking:
                lost = self.lose_rest(error)
            else:  # the partitioner's own, whatever its class
                lost = self.lose(error, None, (index,))
            if not lost:
                raise
        else:
            self.put(partition, (index,))

    def no_partition(
        self, error: ValueError, partition: int | None, indices: Sequence[int]
    ) -> bool:
        """It has been looked for. Once is enough, for that takes time."""
        self._absent[partition] = str(error)
        return super().no_partition(error, partition, indices)


class _Places:
    """The driver, as a partitioner is shown it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.available_partitions = driver.available_partitions
        self.begins_batch = driver.begins_batch
        self.asking = False  # what is raised now comes from there

    def partitions_for(self, topic: str, max_block_s: float) -> frozenset[int]:
        """The partitions of a topic."""
        self.asking = True
        partitions = self._driver.partitions_for(topic, max_block_s)
        self.asking = False
        return partitions
