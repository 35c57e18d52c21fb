"""What outlast wrote to a real Kafka, read by kafka-python, confluent-kafka and aiokafka.

The stories are those that the mock is judged by (tests/mock/foreign_contents.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.mock.foreign_admin import administer
from tests.mock.foreign_contents import STORIES, Judged
from tests.real.kafka_cluster import RealCluster, until

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(240),
    # kafka-python leaves the sockets of refused connects to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]


class Real:
    """The real cluster as the stories ask for it."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self.bootstrap = ",".join(cluster.bootstrap)

    def log(self, topic: str, partition: int) -> bytes:
        leader, _ = self._cluster.leader(topic, partition)
        folder = self._cluster.nodes[leader].folder / "data" / f"{topic}-{partition}"
        (segment,) = folder.glob("*.log")
        return segment.read_bytes()

    @contextmanager
    def silenced(self, topic: str) -> Iterator[None]:
        silent, epoch = self._cluster.leader(topic, 0)
        self._cluster.sigstop(silent)
        yield
        self._cluster.sigcont(silent)
        assert self._cluster.leader(topic, 0) == (silent, epoch)

    def crash_and_return(self, topic: str) -> None:
        victim, _ = self._cluster.leader(topic, 0)
        self._cluster.sigkill(victim)
        until(lambda: not self._cluster.nodes[victim].running, "the node is gone")
        self._cluster.start(victim)
        self._cluster.heal()


@pytest.fixture
def real(cluster: RealCluster) -> Iterator[Real]:
    yield Real(cluster)
    gc.collect()


@pytest.mark.parametrize("story", STORIES)
def test_foreign_consumers_read_what_outlast_wrote(
    real: Real, story: Callable[[Judged], None]
) -> None:
    story(real)


def test_administration_is_what_the_mock_says_it_is(real: Real) -> None:
    administer(real.bootstrap)
