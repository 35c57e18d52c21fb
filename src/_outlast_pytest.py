"""pytest's door to outlast: the fixtures `mock_kafka` and `kafka_gaps`.

pytest imports this file in every run of every project that has outlast installed, used or not. It
lies beside the package and not in it, since the package brings Kafka's client with it, which takes
half a second. Rule: nothing of outlast is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import pytest

if TYPE_CHECKING:
    from outlast import Gap, KafkaProducer, Stall
    from outlast.testing import MockCluster

MARKER = (
    "mock_kafka(nodes=3, topics=(), settings=FAST, seed=1, ...): how the fixture mock_kafka makes "
    "its cluster; the arguments are those of outlast.testing.MockCluster"
)
GAPS = "kafka_gaps"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def mock_kafka(request: pytest.FixtureRequest) -> Iterator[MockCluster]:
    """A mock Kafka cluster on TCP ports for this test: an `outlast.testing.MockCluster`, open.

    `@pytest.mark.mock_kafka(nodes=4, topics={"orders": 3})` gives its arguments.
    """
    from outlast.testing import MockCluster

    marker = request.node.get_closest_marker("mock_kafka")
    args, keywords = (marker.args, marker.kwargs) if marker else ((), {})
    with MockCluster(*args, **keywords) as cluster:
        yield cluster


class GapWatch(Sequence["Gap"]):
    """The gaps, so far, of all outlast producers that were made since the watch began, oldest
    first. A sequence: `len(kafka_gaps)`, `kafka_gaps[-1].duration_s`, `for gap in kafka_gaps`.
    """

    def __init__(self) -> None:
        self.producers: list[KafkaProducer] = []

    def __repr__(self) -> str:
        return f"<GapWatch {self}>"

    def __str__(self) -> str:
        return self.report() or "no gap"

    def _all(self) -> list[Gap]:
        gaps = [gap for producer in self.producers for gap in producer.gaps()]
        return sorted(gaps, key=lambda gap: gap.begin_s)

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> Gap: ...

    @overload
    def __getitem__(self, index: slice) -> list[Gap]: ...

    def __getitem__(self, index: int | slice) -> Gap | list[Gap]:
        return self._all()[index]

    def of(self, topic: str, partition: int | None = None) -> list[Gap]:
        """Those of a topic, or of one partition."""
        return [g for g in self if g.topic == topic and partition in (None, g.partition)]

    def open(self) -> list[Gap]:
        """Those that last on."""
        return [gap for gap in self if gap.phase is not None]

    def stalls(self) -> list[Stall]:
        """The stalls of the same producers: time without acks in which nothing was rejected."""
        return [stall for producer in self.producers for stall in producer.stalls()]

    def report(self) -> str:
        """A line for each gap and stall."""
        return "\n".join([*map(_gap_line, self), *map(_stall_line, self.stalls())])


def _gap_line(gap: Gap) -> str:
    ended = f"ended by {gap.ended_by.value}" if gap.ended_by else "open"
    outcome = gap.outcome.value if gap.outcome else "not settled"
    return (
        f"gap of {gap.topic}-{gap.partition}: {gap.duration_s:.3f} s, "
        f"{gap.cause.value}, {ended}, {outcome}"
    )


def _stall_line(stall: Stall) -> str:
    return f"stall of {stall.topic}-{stall.partition}: {stall.duration_s:.3f} s"


@pytest.fixture
def kafka_gaps(monkeypatch: pytest.MonkeyPatch) -> GapWatch:
    """The rejection gaps of the outlast producers that the test makes, wherever it makes them. If
    the test fails, pytest's report lists them.
    """
    from outlast import KafkaProducer

    watch = GapWatch()
    made: Callable[..., None] = KafkaProducer.__init__

    def make(self: KafkaProducer, *args: Any, **keywords: Any) -> None:
        made(self, *args, **keywords)
        watch.producers.append(self)

    monkeypatch.setattr(KafkaProducer, "__init__", make)
    return watch


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:  # noqa: ARG001
    """A failed test that watched gaps tells them."""
    outcome: Any = yield
    watch = getattr(item, "funcargs", {}).get(GAPS)
    report = outcome.get_result()
    if report.when == "call" and report.failed and isinstance(watch, GapWatch):
        report.sections.append(("Gaps of Kafka producers", str(watch)))
