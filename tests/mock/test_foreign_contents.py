"""What outlast wrote to the mock, read by three foreign consumers."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from outlast.testing.cluster import ClusterSettings, MockCluster
from outlast.testing.server import ClusterServer
from tests.mock.foreign_contents import STORIES, Judged
from tests.mock.foreign_readers import agree
from tests.real.kafka_cluster import until

# kafka-python leaves the sockets of refused connects to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Mock:
    """The mock as the stories ask for it."""

    def __init__(self, server: ClusterServer) -> None:
        self._server = server
        self.bootstrap = server.bootstrap

    def log(self, topic: str, partition: int) -> bytes:
        return self._server.call(
            lambda cluster, _: b"".join(b.raw for b in cluster.batches(topic, partition))
        )

    @contextmanager
    def silenced(self, topic: str) -> Iterator[None]:
        silent, _ = self._server.leader(topic, 0)
        self._server.pause(silent)
        yield
        assert self._server.leader(topic, 0)[0] == silent
        self._server.resume(silent)
        until(lambda: agree(self._server, topic), "the cluster is calm")

    def crash_and_return(self, topic: str) -> None:
        victim, _ = self._server.leader(topic, 0)
        self._server.kill(victim)
        self._server.start(victim)
        until(lambda: agree(self._server, topic), "the cluster is calm")


@pytest.fixture
def mock() -> Iterator[Mock]:
    settings = ClusterSettings(detect_s=5.0)
    with ClusterServer(MockCluster(3, settings=settings, rng=random.Random(5))) as server:
        server.call(lambda cluster, now: cluster.create_internal_topics(now))
        yield Mock(server)
    gc.collect()


@pytest.mark.parametrize("story", STORIES)
def test_foreign_consumers_read_what_outlast_wrote(
    mock: Mock, story: Callable[[Judged], None]
) -> None:
    story(mock)
