"""The oracles of the field cases: what must hold of a story, whoever told it.

A field case is a fault that users of some Kafka client met. Its right outcome is put in terms of a
few checks, O1 to O12, and this file is those checks. Each raises `AssertionError` with what was
found. They read a `Ledger`'s entries and the logs, so they are the same for the virtual world
(`Simulation` keeps such a ledger) and for TCP (`Account` does). They share no code with
`Ledger.judge`: a mistake there would be seen here.

    sim = c3(1, partitions=3)
    ...
    o1(sim.ledger.entries, logs_of(sim))

Rules: seconds; nothing of the engine but its public views; no waiting.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from statistics import quantiles
from typing import Any

from outlast import KafkaProducer
from outlast.errors import DeliveryError
from outlast.testing.cluster import ClusterSettings
from outlast.testing.ledger import ACKED, NEVER_SENT, NOT_ACCEPTED, REFUSED, UNKNOWN, Entry, Ledger
from outlast.testing.server import ClusterServer
from outlast.testing.simulation import Simulation
from tests.sim.stories import simulation

METADATA = 3
OUT = (NEVER_SENT, NOT_ACCEPTED, REFUSED)
JITTER = 0.2  # of every pause

TopicPartition = tuple[str, int]
Logs = Mapping[TopicPartition, Sequence[tuple[int, bytes]]]  # (offset, value), in the log's order

# --- worlds -------------------------------------------------------------------------------------

D: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": True,
    "max_in_flight_requests_per_connection": 5,
    "linger_ms": 5,
    "batch_size": 16384,
    "buffer_memory": 32 << 20,
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": 10_000,
    "retry_backoff_ms": 50,
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 500,
    "socket_connection_setup_timeout_ms": 500,
    "metadata_max_age_ms": 300_000,
}
"""The settings of every case, short so that seconds are enough. `max_block_ms` is beside them."""

D_MINUS: dict[str, Any] = {**D, "enable_idempotence": False}
MAX_BLOCK_S = 2.0


def c1(seed: int = 1, partitions: int = 1, **options: Any) -> Simulation:
    """One broker, one replica, the settings `D`; options override either."""
    return simulation(
        seed, **{**D, "nodes": 1, "topics": {"t": partitions}, "max_block_s": MAX_BLOCK_S} | options
    )


def c3(seed: int = 1, partitions: int = 3, **options: Any) -> Simulation:
    """Brokers 1, 2, 3 that lead t-0, t-1, t-2; three replicas, two of them in sync at least."""
    usual = {**D, "topics": {"t": partitions}, "min_isr": 2, "max_block_s": MAX_BLOCK_S}
    return simulation(seed, **usual | options)


def logs_of(world: Simulation | ClusterServer, topics: Mapping[str, int] | None = None) -> Logs:
    """What the leaders hold. Over TCP the topics must be told; the default is the story's `t`."""
    if isinstance(world, Simulation):
        read: Callable[[str, int], Iterable[Any]] = world.cluster.records
        places = world.partitions()
    else:
        read = world.records
        places = [(name, p) for name, n in (topics or {"t": 1}).items() for p in range(n)]
    return {tp: [(r.offset, r.value) for r in read(*tp)] for tp in places}


CALM = ClusterSettings(fetch_backoff_p=0.0, deny_p=0.0, creation_deny_p=0.0)


class Account:
    """Sends through a real producer and remembers what was said, as the simulator does."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.ledger = Ledger()
        self.thread_of: dict[bytes, str] = {}
        self.futures: list[Any] = []
        self.blocked_s: list[float] = []  # how long each send took that raised
        self._lock = threading.Lock()

    @property
    def entries(self) -> list[Entry]:
        return self.ledger.entries

    def send(self, topic: str = "t", partition: int | None = 0, size_bytes: int = 0, **more: Any):
        """Send one record. Returns its future, or the exception that `send()` raised."""
        begin_s = time.monotonic()
        with self._lock:
            entry = self.ledger.sending(topic, begin_s, key=more.get("key"), size_bytes=size_bytes)
            self.thread_of[entry.value] = threading.current_thread().name
        try:
            future = self.producer.send(topic, entry.value, partition=partition, **more)
        except Exception as error:
            now = time.monotonic()
            self.blocked_s.append(now - begin_s)
            with self._lock:
                self.ledger.refused(entry, now)
            return error
        future.add_callback(lambda metadata: self._acked(entry, metadata))
        future.add_errback(lambda error: self._failed(entry, error))
        with self._lock:
            self.futures.append(future)
            entry.place = len(self.futures)
        return future

    def _acked(self, entry: Entry, metadata: Any) -> None:
        with self._lock:
            entry.partition = metadata.partition
            self.ledger.acked(entry, metadata.offset, time.monotonic())

    def _failed(self, entry: Entry, error: BaseException) -> None:
        with self._lock:
            assert isinstance(error, DeliveryError), f"{error!r} tells no outcome"
            self.ledger.failed(entry, error.outcome.value, time.monotonic())


# --- O1 to O5: records --------------------------------------------------------------------------


def _acked(entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if e.outcome == ACKED]


def _one_thread(_: Entry) -> Hashable:
    return None


def o1(entries: Sequence[Entry], logs: Logs, thread_of: Callable[..., Hashable] = _one_thread):
    """Every record that was accepted is acknowledged, and each log is those records, each once, in
    the order of sending (of each thread, where several share a partition). Nothing else is there.
    """
    failed = [e for e in entries if e.outcome not in (ACKED, REFUSED)]
    assert not failed, f"{len(failed)} accepted records were not delivered: {_few(failed)}"
    assert len(_acked(entries)), "a story without a single delivery shows nothing"
    known = {e.value: e for e in entries}
    for tp, log in logs.items():
        sent = [e for e in _acked(entries) if (e.topic, e.partition) == tp]
        found = Counter(value for _, value in log)
        twice = [value for value, n in found.items() if n > 1]
        assert not twice, f"{tp} holds {len(twice)} records more than once: {twice[:3]}"
        lost = [e for e in sent if e.value not in found]
        assert not lost, f"{tp} lacks {len(lost)} records: {_few(lost)}"
        alien = found.keys() - {e.value for e in sent}
        assert not alien, f"{tp} holds {len(alien)} that are not its own: {sorted(alien)[:3]}"
        _assert_rising(tp, [known[value] for _, value in log], thread_of)


def o2(entries: Sequence[Entry], logs: Logs, thread_of: Callable[..., Hashable] = _one_thread):
    """Every acknowledged record is in its log at least once; first copies are in order."""
    for tp, log in logs.items():
        first = dict.fromkeys(value for _, value in log)
        sent = {e.value: e for e in _acked(entries) if (e.topic, e.partition) == tp}
        lost = [e for value, e in sent.items() if value not in first]
        assert not lost, f"{tp} lacks {len(lost)} acknowledged records: {_few(lost)}"
        _assert_rising(tp, [sent[value] for value in first if value in sent], thread_of)


def _assert_rising(
    tp: TopicPartition, log: Iterable[Entry], thread_of: Callable[..., Hashable]
) -> None:
    newest: dict[Hashable, Entry] = {}
    for entry in log:
        before = newest.get(thread_of(entry))
        assert before is None or before.number < entry.number, f"{tp}: {entry} behind {before}"
        newest[thread_of(entry)] = entry


def o3(entries: Iterable[Entry], settings: Mapping[str, Any] = D, slack_s: float = 0.2) -> None:
    """Every future resolves exactly once, and in time."""
    limit_s = (settings["delivery_timeout_ms"] + settings["request_timeout_ms"]) / 1000 + slack_s
    for entry in entries:
        assert entry.settlements == 1, f"{entry} was settled {entry.settlements} times"
        began_s = entry.sent_at if entry.taken_at is None else entry.taken_at
        took_s = entry.settled_at - began_s
        assert entry.outcome == REFUSED or took_s <= limit_s, f"{entry} took {took_s:.3f} s"


def o4(entries: Iterable[Entry], logs: Logs) -> None:
    """A future that succeeds names the offset at which the log holds that very record."""
    for entry in _acked(entries):
        log = dict(logs[entry.topic, entry.partition])
        held = log.get(entry.offset, b"nothing")
        assert held == entry.value, f"{entry} was told offset {entry.offset}, and there is {held!r}"


def o5(entries: Sequence[Entry], logs: Logs) -> None:
    """What failed as never sent is nowhere; what failed as unknown is there once or not at all."""
    copies = Counter(value for log in logs.values() for _, value in log)
    for entry in entries:
        if entry.outcome in OUT:
            assert not copies[entry.value], f"{entry} was told {entry.outcome!r} and is in a log"
        elif entry.outcome == UNKNOWN:
            assert copies[entry.value] <= 1, f"{entry} is in a log {copies[entry.value]} times"


def _few(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{e} {e.outcome or 'open'}" for e in entries[:3])


# --- O6 to O10: what it costs -------------------------------------------------------------------


def o6(blocked_s: Iterable[float], max_block_s: float = MAX_BLOCK_S, slack_s: float = 0.2) -> None:
    """`send()` returned or raised in time."""
    longest_s = max(blocked_s, default=0.0)
    assert longest_s <= max_block_s + slack_s, f"a send blocked for {longest_s:.3f} s"


def blocked(entries: Iterable[Entry]) -> list[float]:
    """How long each refused send blocked, where each thread sends one record at a time."""
    return [e.settled_at - e.sent_at for e in entries if e.outcome == REFUSED]


class Room:
    """O7 in the simulator: looks at the buffer every `every_s` for as long as the story goes."""

    def __init__(self, sim: Simulation, until_s: float, every_s: float = 0.05) -> None:
        self.peak_bytes = 0
        self._sim = sim
        for n in range(int((until_s - sim.now) / every_s) + 1):
            sim.at(sim.now + n * every_s, self._look)

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._sim.sender.health(self._sim.now).buffer_bytes)

    def check(self) -> None:
        o7(self._sim.sender.health(self._sim.now), self.peak_bytes)


def o7(health: Any, peak_bytes: int) -> None:
    """The buffer never held more than it may, and holds nothing now that all is settled."""
    limit = health.buffer_limit_bytes
    assert peak_bytes <= limit, f"the buffer held {peak_bytes} of {limit} bytes"
    assert health.buffer_bytes == 0, f"{health.buffer_bytes} bytes were not given back"


Span = tuple[float, float]


def o8(
    entries: Iterable[Entry],
    partitions: Collection[TopicPartition],
    calm: Span,
    trouble: Span,
    floor_s: float = 0.02,
) -> None:
    """Partitions without fault keep 95 % of their rate, and their slowest hundredth does not get
    twice as slow (times below `floor_s` are not compared).
    """
    entries = list(entries)
    for tp in partitions:
        own = [e for e in entries if (e.topic, e.partition) == tp and e.outcome == ACKED]
        before, during = _rate(own, calm), _rate(own, trouble)
        assert before, f"{tp} has no rate in {calm} to compare with"
        assert during >= 0.95 * before, f"{tp} fell from {before:.1f} to {during:.1f} records/s"
        usual_s, now_s = _p99_s(own, calm), _p99_s(own, trouble)
        assert now_s <= max(2 * usual_s, floor_s), f"{tp}: p99 went from {usual_s} to {now_s} s"


def _rate(entries: Sequence[Entry], span: Span) -> float:
    """Of those sent in this time: so a backlog from before it makes no rate."""
    return sum(span[0] <= e.sent_at < span[1] for e in entries) / (span[1] - span[0])


def _p99_s(entries: Sequence[Entry], span: Span) -> float:
    took = [e.settled_at - e.sent_at for e in entries if span[0] <= e.sent_at < span[1]]
    return quantiles(took, n=100)[-1] if len(took) > 1 else 0.0


def metadata_times(sim: Simulation, begin_s: float = 0.0, end_s: float = 1e9) -> list[float]:
    """When Metadata was asked."""
    return [
        r.sent_at
        for r in sim.network.requests
        if r.api_key == METADATA and begin_s <= r.sent_at < end_s
    ]


def o9(sim: Simulation, begin_s: float, end_s: float) -> None:
    """Metadata is asked at most once in a back-off, once a second after 15 s; nobody is connected
    to faster than the reconnect back-off allows. (Pauses vary by a fifth.)
    """
    early_s = min(end_s, begin_s + 15.0)
    allowed = (early_s - begin_s) / (sim.settings.retry_backoff_s * (1 - JITTER))
    allowed += (end_s - early_s) / (1 - JITTER) + 2
    asked = len(metadata_times(sim, begin_s, end_s))
    assert asked <= allowed, f"metadata was asked {asked} times, {allowed:.0f} are allowed"
    failed: dict[tuple[int, str], float] = {}
    for connect in sim.network.connects:
        who = connect.node_id, connect.role
        if who in failed and begin_s <= connect.began_at < end_s:
            pause_s = connect.began_at - failed[who]
            least_s = sim.settings.reconnect_backoff_s * (1 - JITTER)
            assert pause_s >= least_s - 1e-6, f"{who}: connected again after {pause_s:.4f} s"
        failed.pop(who, None)
        if connect.loss is not None and connect.ended_at is not None:
            failed[who] = connect.ended_at


def o10(cpu_s: float, wall_s: float) -> None:
    """While nothing can be sent the engine uses at most 5 % of a core."""
    assert cpu_s <= 0.05 * wall_s, f"{cpu_s:.3f} s of CPU in {wall_s:.3f} s"


# --- O11, O12: afterwards -----------------------------------------------------------------------


def o11(sim: Simulation, timeout_s: float = 5.0) -> None:
    """It still works: one more record per partition is delivered."""
    futures = [sim.send(topic, p, thread=f"after-{topic}-{p}") for topic, p in sim.partitions()]
    sim.run_until(lambda: all(f.done for f in futures), timeout_s)
    assert all(f.acked for f in futures), [str(f) for f in futures if not f.acked]


def o12(sim: Simulation, harmed: Collection[TopicPartition]) -> None:
    """Each harmed partition has one gap, as long as the wire says; nobody else has any."""
    true = sim.true_gaps()
    slack_s = sim.settings.retry_backoff_s + 0.1
    for tp in sim.partitions():
        gaps = sim.gaps(tp[1], tp[0])
        if tp not in harmed:
            assert not gaps, f"{tp} was not harmed and has {gaps}"
            continue
        assert len(gaps) == 1, f"{tp} was harmed once and has {len(gaps)} gaps: {gaps}"
        [expected] = true[tp]
        assert expected.end_s is not None
        assert gaps[0].attempts > 0
        length_s = expected.end_s - expected.begin_s
        assert abs(gaps[0].duration_s - length_s) <= slack_s, (tp, gaps[0].duration_s, length_s)
