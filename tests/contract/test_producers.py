"""What a partition's leader knows of a producer: window, sequences, epochs, ids."""

from __future__ import annotations

import pytest

from tests.contract import wire
from tests.contract.world import World
from tests.contract.writer import Writer, new_producer_id

ALL = (1, 2, 3)


@pytest.fixture(scope="module")
def fresh(any_world: World):
    """Writers for partitions that nobody has written to."""
    topic = any_world.create_topic(*[ALL] * 30)
    free = iter(range(30))
    return lambda: Writer(any_world, topic, next(free))


def test_window(contract, fresh) -> None:
    w = fresh()
    told = [w.told(s) for s in range(7)]
    contract("seven batches in order", ", ".join(told))
    contract("repeats of the last five batches", ", ".join(w.told(s) for s in range(2, 7)))
    contract("repeats of older batches", ", ".join(w.told(s) for s in range(2)))
    contract("the next batch after repeats", w.told(7))


def test_repeats_in_part(contract, fresh) -> None:
    w = fresh()
    w.told(0, count=3)
    w.told(3, count=3)
    contract("the last two batches as one", w.told(0, count=6))
    contract("the last batch with a new record behind", w.told(3, count=4))
    contract("a part of the last batch", w.told(4, count=2))
    contract("the first part of the last batch", w.told(3, count=2))
    contract("the last batch itself", w.told(3, count=3))
    contract("a batch of known records and a hole", w.told(9, count=3))
    contract("the next batch after all these", w.told(6))


def test_other_content(contract, fresh, world) -> None:
    w = fresh()
    w.told(0, value=b"first")
    contract("a known sequence with other content", w.told(0, value=b"other"))
    contract("a known sequence with other content: the log", world.log(1, w.topic, w.partition))
    contract("a known sequence with other acks", w.told(0, acks=1))


def test_holes(contract, fresh) -> None:
    w = fresh()
    w.told(0)
    contract("a hole in the sequence", w.told(2))
    contract("after a hole: the next sequence", w.told(1))
    contract("a sequence below the first", w.told(2_147_483_647))


def test_first_sequence(contract, fresh) -> None:
    w = fresh()
    contract("an unknown producer's first sequence is 5", w.told(5))
    contract("an unknown producer's first sequence is 5, then 0", w.told(0))
    contract("an unknown producer's first sequence is 5, then 6", w.told(6))
    w.producer_id = new_producer_id(w.world)
    contract("another producer's first sequence is 7, at epoch 3", w.told(7, epoch=3))
    w.producer_id += 500
    contract("first sequence 9 of an id that no broker gave", w.told(9))


def test_epochs(contract, fresh) -> None:
    w, other = fresh(), fresh()
    other.producer_id = w.producer_id
    w.told(0)
    contract("a higher epoch with a sequence other than 0", w.told(1, epoch=1))
    contract("a refused higher epoch leaves the old one valid", w.told(1))
    contract("the next epoch with sequence 0", w.told(0, epoch=1))
    contract("an epoch seven higher", w.told(0, epoch=8))
    contract("the highest epoch", w.told(0, epoch=32_767))
    contract("an old epoch, next sequence", w.told(2))
    contract("an old epoch, repeat", w.told(0))
    contract("an old epoch, Produce v9", w.told(0, version=9))
    contract("a repeat at the present epoch", w.told(0, epoch=32_767))
    contract("an old epoch where the new one was never seen", other.told(0))


def test_wrap(contract, fresh) -> None:
    w = fresh()
    contract("five records from sequence 2147483645", w.told(2_147_483_645, count=5))
    contract("five records from sequence 2147483645, then 2", w.told(2))
    contract("a repeat of the batch that wraps", w.told(2_147_483_645, count=5))
    w.producer_id = new_producer_id(w.world)
    w.told(2_147_483_647)
    contract("0 after 2147483647", w.told(0))


def test_two_batches_for_a_partition(contract, fresh, world) -> None:
    w = fresh()
    first, last = wire.batch(value=b"first"), wire.batch(value=b"last")
    data = [(w.topic, w.partition, first), (w.topic, w.partition, last)]
    call = w.wire.send(wire.produce(data), 12)
    contract("a partition twice in a request", call.told())
    contract("a partition twice in a request: the log", world.log(1, w.topic, w.partition))


def test_recreated_topic(contract, world) -> None:
    topic = world.create_topic(ALL)
    w = Writer(world, topic)
    w.told(0)
    w.send(1, timeout_ms=1000).told()
    old_id = world.topic(1, topic).topic_id
    world.delete_topic(topic)
    contract("Produce to a deleted topic by name", w.told(2))
    request = wire.produce([(topic, 0, wire.batch())], topic_ids={topic: old_id})
    contract("Produce to a deleted topic by id", w.wire.send(request, 13).told())


def test_ids(contract, world) -> None:
    first = new_producer_id(world)
    node = world.connect(1)

    def asked(version: int, producer_id: int = -1, epoch: int = -1) -> str:
        told = node.send(wire.init_producer_id(producer_id, epoch), version).answer()
        if told.error_code:
            return f"{told.error_code}: {told.producer_id}/{told.producer_epoch}"
        return f"the next id, epoch {told.producer_epoch}" if told.producer_id > first else "old"

    contract("InitProducerId v2", asked(2))
    contract("InitProducerId with id and epoch, v3", asked(3, first, 0))
    contract("InitProducerId with id and epoch, v5", asked(5, first, 0))
    contract("InitProducerId with an unknown id", asked(4, first + 400, 5))
    contract("InitProducerId with an id without epoch", asked(4, first, -1))
    contract("InitProducerId with an epoch without id", asked(4, -1, 5))


def test_append_time(contract, world) -> None:
    topic = world.create_topic(ALL, message_timestamp_type="LogAppendTime")
    w = Writer(world, topic)
    first, again = w.send(0).part(), w.send(0).part()
    second = w.send(1).part()
    same = first.log_append_time_ms == again.log_append_time_ms
    contract("LogAppendTime, a repeat", f"the first one's time: {same}")
    contract("LogAppendTime, a new batch", second.log_append_time_ms >= first.log_append_time_ms)
    starts = f"{second.log_start_offset}, {again.log_start_offset}"
    contract("log_start_offset of a new batch and a repeat", starts)
    other = Writer(world, world.create_topic(ALL)).send(0).part()
    contract("CreateTime, log_append_time", other.log_append_time_ms)
