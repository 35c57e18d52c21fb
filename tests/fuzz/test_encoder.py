"""Records of any make, sent by a whole producer: others' decoders give back what went in.

All examples of a codec go to the mock at once and are read once, by kafka-python's consumer and by
librdkafka's, both of which check the CRC. (Batches byte for byte: tests/wire.)

`TESTS_FUZZ` multiplies the examples, and makes them new ones in each run.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from outlast import KafkaProducer
from outlast.testing import MockCluster
from tests.fuzz.masks import MORE
from tests.mock.foreign_readers import Seen, confluent, kafka_python

NOW_MS = 1_700_000_000_000


class Sent(NamedTuple):
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


large = st.integers(0, 40_000).map(lambda size: b"v" * size)
blobs = st.binary(max_size=200) | large
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"))  # librdkafka ends at a NUL
pairs = st.tuples(names, st.binary(max_size=20))
kept = st.tuples(st.none() | blobs, blobs)
deleted = st.tuples(blobs, st.none())
records = st.builds(
    lambda timestamp_ms, pair, headers: Sent(timestamp_ms, pair[0], pair[1], tuple(headers)),
    st.integers(0, 5) | st.integers(NOW_MS - 10_000, NOW_MS + 10_000),
    kept | deleted,
    st.lists(pairs, max_size=4),
)


def generated() -> list[Sent]:
    """The records of all examples."""
    every: list[Sent] = []

    @settings(max_examples=60 * MORE, derandomize=MORE == 1, deadline=None, database=None)
    @given(batch=st.lists(records, min_size=1, max_size=20))
    def collect(batch: list[Sent]) -> None:
        every.extend(batch)

    collect()
    return every


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_went_in_comes_out_of_others_decoders(codec: str | None) -> None:
    every = generated()
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, compression_type=codec, linger_ms=5
        ) as producer:
            futures = [
                producer.send("t", value, key, list(headers), 0, timestamp_ms)
                for timestamp_ms, key, value, headers in every
            ]
            producer.flush(timeout=60)
        offsets = [future.get(timeout=0).offset for future in futures]
        assert offsets == list(range(len(every)))
        expected = [Seen(offset, *sent) for offset, sent in zip(offsets, every, strict=True)]
        for reader in (kafka_python, confluent):
            assert reader(cluster.bootstrap_servers, "t", 1)[0] == expected, reader
