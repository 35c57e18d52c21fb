"""`append_run` does what as many `append` would have done: the same batches, charges and waits."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kafka.errors import MessageSizeTooLargeError

from outlast.engine.batch import Batch
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.hub import Hub
from outlast.engine.intake import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Intake,
    Taken,
    Waiting,
)
from outlast.engine.messages import Compress, Granted
from outlast.engine.run import PASS_BYTES, PASS_RECORDS, Run
from outlast.engine.settings import Settings
from tests.engine.test_metadata import answer, part, topic
from tests.engine.usual import USUAL

PARTITIONS = (0, 1, 2)
CLOSED = FailureReason("closed", None, "the test closes it")
GZIP = 1

Step = tuple[str, Any]


class World:
    """An engine's intake, and one application thread that sends runs and may have to wait."""

    def __init__(self, in_runs: bool, seed: int = 1, **different: Any) -> None:
        self.in_runs = in_runs
        self.hub = Hub(Settings(**(USUAL | different)), random.Random(seed), 0.0)
        self.intake = Intake(self.hub)
        self.hub.metadata.interest("t", 0.0)
        self.hub.metadata.merge(answer(topic("t", *(part(p, 1, 1) for p in PARTITIONS))), 1, 0.0)
        self.now = 1.0
        self.batches: list[Batch] = []
        self.placed: list[tuple[int, int] | str] = []  # of each record: its batch, its index
        self.calls = 0
        self.gaps: set[tuple[str, int]] = set()
        self.waits: tuple[Run, int, Waiting] | None = None

    def step(self, name: str, what: Any) -> None:
        getattr(self, name)(what)
        self.drain()

    def drain(self) -> None:
        """The driver's part: compress what is full; let who was granted room go on."""
        while completions := self.hub.out.completions:
            self.hub.out.completions = []
            for completion in completions:
                if isinstance(completion, Compress):
                    completion.batch.seal(completion.batch.compressed(GZIP))
                elif isinstance(completion, Granted) and self.waits is not None:
                    run, begin, waiting = self.waits
                    if completion.ticket == waiting.ticket:
                        self.waits = None
                        self.go_on(run, begin, waiting.ticket)

    def send(self, run: Run) -> None:
        if self.waits is None:
            self.go_on(run, 0, 0)

    def go_on(self, run: Run, begin: int, ticket: int) -> None:
        while begin < len(run.values):
            try:
                taken = self.take(run, begin, ticket)
            except MessageSizeTooLargeError:
                taken = None
            if isinstance(taken, Waiting):
                self.waits = run, begin, taken
                return
            ticket = 0
            if taken is None:
                self.placed.append("too large")
                begin += 1
                continue
            if not any(batch is taken.batch for batch in self.batches):
                self.batches.append(taken.batch)
            number = next(n for n, batch in enumerate(self.batches) if batch is taken.batch)
            self.placed += [(number, taken.first + n) for n in range(taken.count)]
            begin += taken.count

    def take(self, run: Run, begin: int, ticket: int) -> Taken | Waiting:
        self.calls += 1
        if self.in_runs:
            return self.intake.append_run(run, begin, self.now, ticket)
        key, value = run.key(begin), run.values[begin]
        batch = self.intake.append(
            "t", run.partition, key, value, run.headers, run.timestamp_ms, self.now, ticket
        )
        return batch if isinstance(batch, Waiting) else Taken(batch, batch.count - 1, 1)

    def settle(self, partition: int) -> None:
        """All that it holds is settled."""
        place = self.hub.partitions.get(("t", partition))
        if place is not None:
            self.hub.settle(place, place.fail_all(CLOSED), self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def gap(self, partition: int) -> None:
        """It is held up from now on; or no more."""
        self.gaps ^= {("t", partition)}
        reserved = self.hub.accumulator.reserved()
        self.hub.shares.judge(self.hub.busy, self.gaps, reserved, self.now)
        self.intake.choose_again()

    def smaller(self, partition: int) -> None:
        """Its broker has called a batch too large."""
        place = self.hub.partitions.get(("t", partition))
        if place is not None:
            place.queue.batch_bytes = max(100, place.queue.batch_bytes // 2)

    def looks(self) -> tuple[Any, ...]:
        """What must be the same in both worlds."""
        return (
            self.hub.accumulator.used_bytes,
            self.hub.accumulator.taken_bytes,
            None if self.waits is None else self.waits[1:],
            [(b.tp, b.count, b.size_bytes, b.charge_bytes, b.closed) for b in self.batches],
            sorted(self.hub.busy),
            self.intake.attention,
            self.placed,
        )

    def close(self) -> None:
        for _ in range(100):  # what waits gets in, and is settled
            for partition in PARTITIONS:
                self.step("settle", partition)
        assert self.waits is None
        assert self.hub.accumulator.used_bytes == 0


def run_of(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    partition: int | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> Run:
    return Run("t", partition, keys, values, headers, 1_700_000_000_000)


blobs = st.none() | st.integers(0, 400).map(lambda n: b"v" * n) | st.just(b"v" * 60)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    values = draw(st.lists(blobs, min_size=1, max_size=12)) * draw(st.integers(1, 6))
    keys: list[bytes | None] | None = None
    if draw(st.booleans()):
        some = draw(st.lists(st.none() | st.binary(max_size=80), min_size=1, max_size=5))
        keys = [some[n % len(some)] for n in range(len(values))]
    headers = draw(st.sampled_from([(), [("trace", b"0" * 55)], [("ä", b""), ("b", b"c")]]))
    partition = draw(st.none() | st.sampled_from(PARTITIONS))
    return run_of(values, keys=keys, partition=partition, headers=headers)


steps = st.lists(
    st.tuples(st.just("send"), runs())
    | st.tuples(st.sampled_from(["settle", "gap", "smaller"]), st.sampled_from(PARTITIONS))
    | st.tuples(st.just("sleep"), st.sampled_from([0.1, 0.6])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=400)
@given(
    seed=st.integers(0, 3),
    batch_bytes=st.sampled_from([0, 100, 700, 2_000, 16_384]),
    buffer_bytes=st.sampled_from([1_500, 5_000, 20_000, 1 << 20]),
    compression=st.sampled_from([0, GZIP]),
    todo=steps,
)
def test_the_same_batches_charges_and_waits(
    seed: int, batch_bytes: int, buffer_bytes: int, compression: int, todo: list[Step]
) -> None:
    chosen = {
        "batch_bytes": batch_bytes, "buffer_bytes": buffer_bytes, "compression": compression
    }  # fmt: skip
    single, many = World(False, seed, **chosen), World(True, seed, **chosen)
    for name, what in todo:
        for world in (single, many):
            world.step(name, what)
        assert single.looks() == many.looks()
    for world in (single, many):
        world.close()
    assert single.looks() == many.looks()
    written = [[batch.records() for batch in world.batches] for world in (single, many)]
    assert written[0] == written[1]
    assert many.calls <= single.calls


@pytest.mark.parametrize("partition", [None, 0])
def test_a_run_is_taken_in_a_few_passes(partition: int | None) -> None:
    world = World(True)
    world.step("send", run_of([b"v" * 100] * 1_000, partition=partition))
    assert len(world.placed) == 1_000
    assert world.calls < 5 * len(world.batches)
    if partition is not None:
        sizes = [batch.size_bytes for batch in world.batches[:-1]]
        assert min(sizes) > 16_384 - 150, "they are filled to the end"


@pytest.mark.parametrize("size", [1, 10_000])
def test_one_pass_is_bounded_however_large_batches_are(size: int) -> None:
    """Others wait for the engine meanwhile."""
    world = World(True, batch_bytes=1 << 26, buffer_bytes=1 << 27)
    run = run_of([b"v" * size] * 5_000, partition=0)
    begin, counts = 0, []
    while begin < 5_000:
        taken = world.intake.append_run(run, begin, 1.0)
        assert isinstance(taken, Taken)
        counts.append(taken.count)
        begin += taken.count
    assert max(counts) <= PASS_RECORDS + 1
    assert max(counts) * size <= PASS_BYTES + size
    [batch] = world.hub.partitions["t", 0].queue.batches
    assert batch.count == 5_000


@pytest.mark.parametrize("held_up", [False, True])
def test_one_pass_takes_what_there_is_room_for_in_the_buffer(held_up: bool) -> None:
    """Where somebody is held up: in half of it, for more must be asked about record by record."""
    world = World(True, batch_bytes=1 << 20, buffer_bytes=20_000)
    if held_up:
        world.step("gap", 2)
    run = run_of([b"v" * 100] * 100, partition=0)
    record_bytes = run.bytes_max(0, 1) + RECORD_OVERHEAD_BYTES
    limit_bytes = 10_000 if held_up else 20_000
    fitting = (limit_bytes - BATCH_OVERHEAD_BYTES) // record_bytes
    taken = world.intake.append_run(run, 0, 1.0)
    assert isinstance(taken, Taken)
    assert (taken.first, taken.count) == (0, fitting)
    world.step("send", run)
    assert world.waits is not None
    assert world.calls == (1 if not held_up else len(world.placed) + 1)


def test_records_of_other_threads_stay_where_they_are_between_those_of_a_run() -> None:
    world, run = World(True, batch_bytes=1_000), run_of([b"v" * 100] * 20, partition=0)
    begin, values = 0, []
    while begin < 20:
        taken = world.intake.append_run(run, begin, 1.0)
        assert isinstance(taken, Taken)
        begin += taken.count
        values += [b"v" * 100] * taken.count
        other = world.intake.append("t", 0, None, b"other", (), 1, 1.0)
        assert isinstance(other, Batch)
        values.append(b"other")
    batches = world.hub.partitions["t", 0].queue.batches
    assert len(batches) > 2
    assert [record.value for batch in batches for record in batch.records()] == values


def test_a_run_that_got_its_turn_takes_no_more_than_that_from_those_who_wait_behind_it() -> None:
    world = World(True, batch_bytes=4_000, buffer_bytes=20_000)
    values = [b"%04d" % n * 250 for n in range(40)]
    world.step("send", run_of(values, partition=0))
    assert world.waits is not None
    taken = len(world.placed)
    behind = world.intake.append("t", 1, None, b"behind" * 1_500, (), 1, 1.0)
    assert isinstance(behind, Waiting)
    [head, *_] = world.hub.partitions["t", 0].queue.batches
    world.hub.accumulator.refund(("t", 0), head.charge_bytes)
    run, begin, waiting = world.waits
    got = world.intake.append_run(run, begin, 1.0, waiting.ticket)
    assert isinstance(got, Taken)
    assert (begin, got.count) == (taken, 1)


class CutOffError(Exception):
    """Of a signal handler."""


def cut_at(step: int, act: Callable[[], Any]) -> bool:
    """Raise at one call or return of what `act` does. Whether it came to that."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        if event in ("call", "return", "c_return") and frame.f_code.co_filename != __file__:
            count += 1
            if count == step:
                raise CutOffError

    try:
        sys.setprofile(profile)
        act()
    except CutOffError:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.source  # a step is a line that is traced
@pytest.mark.parametrize("compression", [0, GZIP])
@pytest.mark.parametrize("partition", [None, 1])
def test_an_exception_at_any_step_leaves_whole_records_and_no_room_taken(
    compression: int, partition: int | None
) -> None:
    step, cut = 1, True
    while cut:
        world = World(True, batch_bytes=1_000, compression=compression)
        world.step("send", run_of([b"before"], partition=partition))
        run = run_of([b"%d" % n for n in range(30)], partition=partition)
        cut = cut_at(step, lambda: world.intake.append_run(run, 0, 1.0))  # noqa: B023
        world.step("send", run_of([b"after"], partition=partition))
        places = world.hub.partitions.values()
        held = [batch for place in places for batch in place.unsettled()]
        assert world.hub.accumulator.used_bytes == sum(batch.charge_bytes for batch in held)
        assert all(batch.count == len(batch.records()) > 0 for batch in held)
        stored = [record.value for batch in held for record in batch.records()]
        of_run = [value for value in stored if value in run.values]
        assert of_run == list(run.values[: len(of_run)])
        assert sorted(set(stored) - set(of_run)) == [b"after", b"before"]
        world.close()
        step += 1
    assert step > 40
