from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings, strategies as st
from kafka.partitioner import murmur2 as kafka_python_murmur2

from outlast.engine.partitioner import StickyPartitioner, keyed_partition, murmur2


@settings(max_examples=1000)
@given(st.binary(max_size=300))
def test_murmur2_is_kafka_pythons(key):
    assert murmur2(key) == kafka_python_murmur2(key)


def test_murmur2_is_the_java_clients():
    # UtilsTest.testMurmur2 of Apache Kafka, as unsigned numbers
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for key, signed in expected.items():
        assert murmur2(key) == signed % 2**32


def test_a_key_goes_to_its_place_among_all_partitions():
    partitions = (0, 1, 2, 3, 4, 5, 6)
    for n in range(100):
        key = b"key-%d" % n
        expected = (kafka_python_murmur2(key) & 0x7FFFFFFF) % 7
        assert keyed_partition(key, partitions) == expected


def test_records_stay_together_until_the_batch_is_full():
    sticky = StickyPartitioner(1000, random.Random(1))
    usable = (0, 1, 2)
    chosen = [sticky.choose("t", usable, 100) for _ in range(400)]
    runs = [chosen[i : i + 10] for i in range(0, 400, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(a[0] != b[0] for a, b in pairwise(runs))


def test_a_batch_that_leaves_moves_the_next_record_elsewhere():
    sticky = StickyPartitioner(1000, random.Random(1))
    usable = (0, 1, 2)
    first = sticky.choose("t", usable, 10)
    sticky.batch_left("t", (first + 1) % 3)  # another partition's batch: no matter
    sticky.batch_left("u", first)  # another topic's
    assert sticky.choose("t", usable, 10) == first
    sticky.batch_left("t", first)
    assert sticky.choose("t", usable, 10) != first


def test_an_unusable_partition_is_left_at_once_and_not_drawn():
    sticky = StickyPartitioner(1000, random.Random(1))
    first = sticky.choose("t", (0, 1, 2), 10)
    rest = tuple(p for p in (0, 1, 2) if p != first)
    for _ in range(50):
        assert sticky.choose("t", rest, 300) in rest
    assert sticky.choose("t", (first,), 10) == first
    sticky.batch_left("t", first)
    assert sticky.choose("t", (first,), 10) == first  # there is no other


def test_partitions_get_even_shares():
    sticky = StickyPartitioner(100, random.Random(7))
    usable = tuple(range(6))
    shares = Counter(sticky.choose("t", usable, 100) for _ in range(6000))
    assert min(shares.values()) > 900
    assert max(shares.values()) < 1100


def test_topics_are_apart_and_the_same_seed_gives_the_same_choices():
    def run():
        sticky = StickyPartitioner(100, random.Random(3))
        return [sticky.choose(topic, (0, 1, 2, 3), 60) for topic in "tutttuuu"], repr(sticky)

    assert run() == run()
    sticky = StickyPartitioner(100, random.Random(3))
    sticky.choose("t", (4,), 60)
    assert repr(sticky) == "<StickyPartitioner {'t': 4}>"
    sticky.forget("t")
    assert repr(sticky) == "<StickyPartitioner {}>"


def test_a_partition_whose_batches_leave_late_gets_no_more_than_the_others():
    """A turn ends when the batch leaves: at once for two of three, never for the slow one."""
    sticky = StickyPartitioner(1000, random.Random(4))
    usable = (0, 1, 2)
    shares: Counter[int] = Counter()
    for _ in range(6000):
        partition = sticky.choose("t", usable, 10)
        shares[partition] += 10
        if partition != 2:
            sticky.batch_left("t", partition)
        assert max(shares.values()) <= sum(shares.values()) / 3 + 2100
    assert min(shares.values()) > 18_000


def test_one_that_comes_back_has_nothing_to_catch_up_on():
    sticky = StickyPartitioner(1000, random.Random(5))
    for _ in range(5000):
        sticky.batch_left("t", sticky.choose("t", (0, 1, 2), 100))
    back: Counter[int] = Counter()
    for _ in range(1200):
        partition = sticky.choose("t", (0, 1, 2, 3), 100)
        back[partition] += 1
        sticky.batch_left("t", partition)
    assert min(back.values()) > 250
    assert max(back.values()) < 350
