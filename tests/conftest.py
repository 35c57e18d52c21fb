"""One real Kafka for the whole run, used last. And which tests measure the time of the machine, and
which are told on a virtual clock.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.real.kafka_cluster import RealCluster
from tests.real.kafka_jars import need_kafka

_running: list[RealCluster] = []


@pytest.fixture(scope="session")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    need_kafka()
    cluster = RealCluster(tmp_path_factory.mktemp("kafka", numbered=True))
    _running.append(cluster)
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()
        _running.clear()


settings.register_profile("outlast", deadline=None)  # how long it takes says nothing
settings.load_profile("outlast")


def pytest_configure() -> None:
    """A shell has SIGINT ignored in what it starts in the background, as `make test` does. What
    tests start would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


MARKS = {"tcp": "timed", "engine": "virtual", "sim": "virtual", "wire": "virtual"}  # whole folders


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    mark = MARKS.get(item.path.parent.name)
    if mark is not None:
        item.add_marker(mark)


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: collecting them as garbage again and again makes the
    whole process stand still, which is what some of them measure.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    late = {"virtual": 1, "real": 2}
    items.sort(key=lambda item: max((late.get(m.name, 0) for m in item.iter_markers()), default=0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed and item.get_closest_marker("real") is not None:
        for cluster in _running:
            for node in cluster.nodes.values():
                report.sections.append((f"the end of node {node.node_id}'s log", node.tail()))
    return report
