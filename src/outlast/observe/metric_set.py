"""The series of one registry, or of one OpenTelemetry meter: shared by all producers of a process.

What is here is independent of who shows it: which series there are, how many at most, what several
producers make of one gauge, and what goes away. A `Backend` makes the series.

* Series of closed labels are made at 0: those of a topic with its first record, those without a
  topic at once (`observe.metrics` says why).
* At most `limit` partitions have series of their own, later ones share `partition="_other"` of
  their topic; `TOPICS_SHOWN` topics likewise, so that an application with a topic for each customer
  does not grow a page without end. What is told of single gaps (phase, last gap) is not told of
  `_other`.
* A topic that is gone takes its series along, and makes room for others.
* A gauge is set to what all parts of it make together, never moved by one.

Rule: everything is called with the backend's `lock` held. It is held over a fork, too: a child
whose parent's thread was just counting would never get the library's own lock.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from itertools import product
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet, ref

from opentelemetry.trace import SpanContext

from outlast.engine.messages import LaneReason, Role
from outlast.observe import metrics
from outlast.observe.metrics import METRICS, OTHER, Joins, Kind, Metric

TOPICS_SHOWN = 1000
NODES_SHOWN = 100
FORK_WAIT_S = 1.0

LANE_OF = {
    LaneReason.STUCK: Role.SLOW,
    LaneReason.SUSPECT: Role.SLOW,
    LaneReason.FOLLOWER_DOWN: Role.SLOW,
    LaneReason.USUAL: Role.OPEN,
    LaneReason.IDLE: Role.OPEN,
    LaneReason.MOVED: Role.OPEN,
}


Labels = dict[str, str]  # own ones first, then the metric's, in its order


class Counter(Protocol):
    """A series that only grows."""

    def inc(self, amount: float, /) -> object:
        """Add to it."""


class Gauge(Protocol):
    """A series that tells how things stand."""

    def set(self, value: float, /) -> object:
        """It is this now."""


class Histogram(Protocol):
    """A series of buckets."""

    def observe(self, value: float, exemplar: Any = None, /) -> object:
        """One more; with an example of it, as the backend's `exemplar` made it."""


class Backend(ABC):
    """Makes series and shows them.

    Attributes:
        lock: of all sets of this backend.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # which only its owner can release: see `hold_for_fork`

    @abstractmethod
    def child(self, metric: Metric, labels: Labels) -> Any:
        """A Counter, Gauge or Histogram, by the metric's kind. The same labels come again only
        after `remove`.
        """

    @abstractmethod
    def remove(self, metric: Metric, labels: Labels) -> None:
        """The series goes away, if that can be had."""

    @abstractmethod
    def exemplar(self, span: SpanContext | None) -> Any:
        """What `Histogram.observe` takes."""

    def rest(self) -> None:
        """A producer is closed: hold nothing back any more. Another may go on counting."""
        return

    def begin_again(self) -> None:
        """In a forked child."""
        self.lock = threading.RLock()


class TopicSeries(NamedTuple):
    """What is counted for each batch."""

    name: str  # as shown
    acked: Counter
    failed: Counter
    send_duration: Histogram


class PartitionSeries(NamedTuple):
    """A partition's counters."""

    labels: tuple[str, str]
    gap: Counter
    stalled: Counter


_JOINS: dict[Joins, Callable[[Iterable[float]], float]] = {
    Joins.SUM: sum,
    Joins.MAX: lambda values: max(values, default=0.0),
    Joins.MIN: lambda values: min(values, default=math.inf),
}


class Joint:
    """A gauge that several parts make together."""

    __slots__ = ("_gauge", "_join", "parts")

    def __init__(self, gauge: Gauge, join: Joins) -> None:
        self._gauge = gauge
        self._join = _JOINS[join]
        self.parts: dict[Hashable, float] = {}
        self.show()

    def __repr__(self) -> str:
        return f"<Joint {self._join(self.parts.values())} of {len(self.parts)}>"

    def set(self, part: Hashable, value: float | None) -> None:
        """The part is this now; None: there is no such part any more."""
        if value is not None:
            self.parts[part] = value
        elif self.parts.pop(part, None) is None:
            return
        self.show()

    def show(self) -> None:
        """Set the gauge."""
        self._gauge.set(self._join(self.parts.values()))


class Sets:
    """The sets of one backend: one for all producers with the same labels of their own."""

    def __init__(self, backend: Backend, names: tuple[str, ...]) -> None:
        self._backend = backend
        self._names = names
        self._sets: dict[tuple[str, ...], MetricSet] = {}

    def of(self, own_labels: Labels) -> MetricSet:
        """The set of producers with these labels.

        Raises:
            ValueError: others have labels of other names.
        """
        if tuple(own_labels) != self._names:
            raise ValueError(
                f"metrics_labels={own_labels} has other names than those that came first, "
                f"{self._names}: all producers that share a registry need the same names"
            )
        key = tuple(own_labels.values())
        if key not in self._sets:
            self._sets[key] = MetricSet(self._backend, own_labels)
        return self._sets[key]


class MetricSet:
    """All series of one backend that have the same labels of the application's own."""

    def __init__(self, backend: Backend, own_labels: Labels) -> None:
        self._own_labels = own_labels
        self.backend = backend
        self.lock = backend.lock
        self.topics: dict[str, TopicSeries] = {}
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._joints: dict[tuple[str, tuple[str, ...]], Joint] = {}
        self._partitions: dict[tuple[str, int], PartitionSeries] = {}
        self._nodes: set[int] = set()
        self.forked = False  # gauges show what the parent's producers do
        for metric in METRICS.values():
            if metric.labels[:1] not in (("topic",), ("node_id",)):
                self._begin(metric, ())
        number = id(self)
        _sets[number] = ref(self, lambda _: _sets.pop(number, None))

    def __repr__(self) -> str:
        return f"<MetricSet topics={len(self.topics)} partitions={len(self._partitions)}>"

    def child(self, metric: Metric, *labels: str) -> Any:
        """A series."""
        key = (metric.name, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self.backend.child(metric, self._named(metric, labels))
        return child

    def _named(self, metric: Metric, labels: tuple[str, ...]) -> Labels:
        return {**self._own_labels, **dict(zip(metric.labels, labels, strict=True))}

    def joint(self, metric: Metric, *labels: str) -> Joint:
        """A gauge that has parts."""
        key = (metric.name, labels)
        joint = self._joints.get(key)
        if joint is None:
            joint = self._joints[key] = Joint(self.child(metric, *labels), metric.joins)
        return joint

    def exemplar(self, span: SpanContext | None) -> Any:
        """What a histogram of this backend takes for an example."""
        return self.backend.exemplar(span)

    def _begin(self, metric: Metric, labels: tuple[str, ...]) -> None:
        """Make all series that begin with these labels, at 0."""
        rest = metric.labels[len(labels) :]
        if metric is metrics.LANE_CHANGES:
            for reason, lane in LANE_OF.items():
                self.child(metric, lane.value, reason.value)
        elif all(label in metric.closed for label in rest):
            for values in product(*(metric.closed[label] for label in rest)):
                if metric.kind is Kind.GAUGE:
                    self.joint(metric, *labels, *values)
                else:
                    self.child(metric, *labels, *values)

    # --- topics, partitions, nodes ---

    def topic(self, topic: str) -> TopicSeries:
        """The topic's series, or the common ones once the limit is reached."""
        series = self.topics.get(topic)
        if series is None:
            own = len(self.topics) - (OTHER in self.topics)
            shown = topic if own < TOPICS_SHOWN else OTHER
            series = self.topics.get(shown) or self._new_topic(shown)
        return series

    def _new_topic(self, shown: str) -> TopicSeries:
        for metric in METRICS.values():
            # of a gap's causes there are too many; they begin when a gap does
            if metric.labels[:1] == ("topic",) and metric is not metrics.GAP_DURATION:
                self._begin(metric, (shown,))
        series = self.topics[shown] = TopicSeries(
            shown,
            self.child(metrics.RECORDS, shown, "acked"),
            self.child(metrics.RECORDS, shown, "failed"),
            self.child(metrics.SEND_DURATION, shown),
        )
        return series

    def partition(self, topic: str, partition: int, limit: int) -> PartitionSeries:
        """The partition's series, or its topic's common ones once the limit is reached."""
        series = self._partitions.get((topic, partition))
        if series is None:
            name = self.topic(topic).name
            own = name == topic and len(self._partitions) < limit
            labels = (name, str(partition) if own else OTHER)
            series = PartitionSeries(
                labels,
                self.child(metrics.PARTITION_GAP_SECONDS, *labels),
                self.child(metrics.PARTITION_STALLED_SECONDS, *labels),
            )
            if own:
                self._partitions[topic, partition] = series
        return series

    def throttled(self, node_id: int) -> Counter:
        """The node's counter, or the common one once the limit is reached."""
        if node_id not in self._nodes:
            if len(self._nodes) >= NODES_SHOWN:
                return self.child(metrics.THROTTLE_SECONDS, OTHER)  # type: ignore[no-any-return]
            self._nodes.add(node_id)
        name = str(node_id) if node_id >= 0 else metrics.BOOTSTRAP
        return self.child(metrics.THROTTLE_SECONDS, name)  # type: ignore[no-any-return]

    def gone(self, topic: str, partition: int | None) -> None:
        """The topic, or this partition of it, is no more."""
        if partition is None:
            self.topics.pop(topic, None)
        prefix = (topic,) if partition is None else (topic, str(partition))
        for key in list(self._children):
            name, labels = key
            of_it = METRICS[name].labels[:2] == ("topic", "partition") or partition is None
            if of_it and METRICS[name].labels[:1] == ("topic",) and labels[: len(prefix)] == prefix:
                self.backend.remove(METRICS[name], self._named(METRICS[name], labels))
                del self._children[key]
                self._joints.pop(key, None)
        for tp in list(self._partitions):
            if tp[0] == topic and partition in (None, tp[1]):
                del self._partitions[tp]

    # --- producers and processes ---

    def forget(self, producer: object) -> None:
        """The producer is closed: gauges without its parts, and nothing held back."""
        for joint in self._joints.values():
            for part in [part for part in joint.parts if part[0] is producer]:  # type: ignore[index]
                joint.set(part, None)
        self.backend.rest()

    def begin_again(self) -> None:
        """In a forked child: the parent's parts are nobody's business here. What counters were
        copied with stays, as it does for every metric of the process.
        """
        self.lock = self.backend.lock
        self.forked = True
        for joint in self._joints.values():
            joint.parts.clear()

    def show_all(self) -> None:
        """In a forked child, before the first fact: gauges of its own."""
        self.forked = False
        for joint in self._joints.values():
            joint.show()


_sets: dict[int, ref[MetricSet]] = {}  # no WeakSet: other threads may make one meanwhile
after_fork: WeakSet[Any] = WeakSet()  # observers: each has a `begin_again`


def _known() -> list[MetricSet]:
    return [each for known in list(_sets.values()) if (each := known()) is not None]


def hold_for_fork(held: list[Any]) -> None:
    """Before a fork (`io.process`): take the locks, each of which is in `held` before."""
    for lock in {known.lock for known in _known()}:
        held.append(lock)
        lock.acquire(timeout=FORK_WAIT_S)


def become_child() -> None:
    """After a fork, in the child."""
    sets = _known()
    # in this order: a set takes its backend's new lock, and observers add their parts to sets
    for known in [*{each.backend for each in sets}, *sets, *after_fork]:
        known.begin_again()
