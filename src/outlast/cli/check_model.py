"""How long a partition can be without acks after each kind of failure, from the cluster's clocks.

Theory. A gap ends when three things have happened one after another: the cluster has noticed and
has chosen another leader, that leader acknowledges (with acks=all: a follower has fetched), and the
producer has found it. The first is a matter of the cluster's time-outs and nothing else, so the
longest gap can be computed before it happens. Every kind is a sum of parts, each the *most* that
part can take, and each with the setting it comes from:

* **planned**: a leader is stopped in order, or moved. Nobody waits for a time-out (A14: 26–241 ms
  to the first refusal); but a follower that asks the new leader too early waits
  `replica.fetch.backoff.ms` before it asks again, and acks=all waits with it: half of all moves,
  rarely twice (S3). Nor is one answered that had begun a long poll, `replica.fetch.wait.max.ms`.
* **crash**: the leader's node dies, and is not the active controller's. It is given up when its
  last heartbeat is `broker.session.timeout.ms` old (A18: 8.0–8.4 s of 9 s). Then everything happens
  in one step (A21), and the first ack came within 340 ms (A23).
* **controller**: the leader's node was the active controller's as well. First the others of the
  quorum must miss it (`controller.quorum.fetch.timeout.ms`), elect another
  (`controller.quorum.election.timeout.ms` and its back-off), and the new one gives every broker a
  whole session from then on (A19: 10.7–12.4 s). Where controllers run apart from brokers it is
  as a crash.
* **silent**: the node hangs, or its network is gone; sockets stay open. The cluster does as after a
  crash (A18: 8.1–9.0 s). The producer must suspect the node, which it does meanwhile.
* **follower**: a follower lives and lags. Its leader waits `replica.lag.time.max.ms` before it
  drops it from the ISR, and looks every half of that; acks=all waits too. A stall, not a gap. (By
  Kafka's source; a *dead* follower is a crash, S7.)

With ZooKeeper a broker is given up by `zookeeper.session.timeout.ms`, the controller's node too;
that was not measured. Bounds are the clocks', for a cluster that is otherwise well: a machine
without memory, a quorum without majority or too few in-sync replicas have no bound.

Rule: no part is without a setting or a measured fact (docs/kafka-facts.md has the numbers). A clock
that could not be read is taken as Kafka's default and named in `assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from outlast.cli.check_view import Cluster
from outlast.engine.settings import Settings

HANDOVER_S = 0.25  # a planned move: told, and every broker knows it (A1, A2, A14)
ELECTED_S = 0.35  # given up → the new leader is known and takes records (A21, A23)
SILENT_LEFT_S = 0.3  # the producer is behind the election by at most that (design §11)
JITTER = 1.2  # the refresh clock's pauses are up to a fifth longer
PATIENT_S = 15.0  # after that the refresh clock's pauses grow to retry_backoff_max_ms

SESSION = "broker.session.timeout.ms"
HEARTBEAT = "broker.heartbeat.interval.ms"
ZOOKEEPER_SESSION = "zookeeper.session.timeout.ms"
FETCH_BACKOFF = "replica.fetch.backoff.ms"
FETCH_WAIT = "replica.fetch.wait.max.ms"
LAG = "replica.lag.time.max.ms"
QUORUM_FETCH = "controller.quorum.fetch.timeout.ms"
QUORUM_ELECTION = "controller.quorum.election.timeout.ms"
QUORUM_BACKOFF = "controller.quorum.election.backoff.max.ms"

DEFAULT_MS = {
    SESSION: 9_000,
    ZOOKEEPER_SESSION: 18_000,
    FETCH_BACKOFF: 1_000,
    FETCH_WAIT: 500,
    LAG: 30_000,
    QUORUM_FETCH: 2_000,
    QUORUM_ELECTION: 1_000,
    QUORUM_BACKOFF: 1_000,
}


class Kind(Enum):
    """What fails."""

    PLANNED = "planned"
    CRASH = "crash"
    CONTROLLER = "controller"
    SILENT = "silent"
    FOLLOWER = "follower"

    @property
    def said(self) -> str:
        """In words, for a table."""
        return {
            Kind.PLANNED: "leader stopped in order, or moved",
            Kind.CRASH: "leader's node crashes",
            Kind.CONTROLLER: "and was the active controller",
            Kind.SILENT: "leader's node goes silent",
            Kind.FOLLOWER: "follower lives and lags: a stall",
        }[self]


@dataclass(frozen=True, slots=True)
class Part:
    """One summand: what takes so long at most, and the setting it comes from ('': measured)."""

    what: str
    each_s: float
    setting: str = ""
    times: int = 1

    @property
    def seconds(self) -> float:
        """What it adds."""
        return self.each_s * self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The longest time without an ack after one kind of failure."""

    kind: Kind
    parts: tuple[Part, ...]
    client_s: float  # the producer's own share, one of the parts
    assumed: tuple[str, ...] = ()  # settings that could not be read: Kafka's defaults
    note: str = ""

    @property
    def seconds(self) -> float:
        """The sum."""
        return sum(part.seconds for part in self.parts)


class _Clocks:
    """Reads clocks, in seconds, and remembers which had to be assumed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.assumed: list[str] = []

    def __call__(self, name: str) -> float:
        """The slowest broker's value counts: which one it will hit nobody knows."""
        told = self._cluster.numbers(name).values()
        if not told:
            self.assumed.append(name)
        return max(told, default=DEFAULT_MS[name]) / 1000


def worst_gaps(cluster: Cluster, settings: Settings) -> tuple[Worst, ...]:
    """The longest gap of each kind of failure that this cluster and this producer can have.

    Args:
        settings: the producer's; with acks other than 'all' no follower is waited for.
    """
    return tuple(_worst(kind, cluster, settings) for kind in _kinds(cluster, settings))


def _kinds(cluster: Cluster, settings: Settings) -> Iterator[Kind]:
    replicated = not cluster.topics or any(topic.replication > 1 for topic in cluster.topics)
    for kind in Kind:
        if kind is not Kind.FOLLOWER or (settings.acks == -1 and replicated):
            yield kind


def _worst(kind: Kind, cluster: Cluster, settings: Settings) -> Worst:
    clock, note = _Clocks(cluster), ""
    if kind is Kind.FOLLOWER:
        lag_s = clock(LAG)
        parts = [
            Part("a follower may be behind", lag_s, LAG),
            Part("until its leader looks, every half of that", lag_s / 2),
        ]
        return Worst(kind=kind, parts=tuple(parts), client_s=0.0, assumed=tuple(clock.assumed))
    if kind is Kind.PLANNED:
        parts = [Part("for handing over", HANDOVER_S)]
    else:
        parts, note = _given_up(kind, cluster, clock)
        parts.append(Part("until another leads", ELECTED_S))
    if settings.acks == -1:
        parts += _fetched(kind, clock)
    client_s = _client_s(kind, settings, sum(part.seconds for part in parts))
    parts.append(Part("this producer finds the new leader", client_s, "retry_backoff_ms"))
    return Worst(
        kind=kind, parts=tuple(parts), client_s=client_s, assumed=tuple(clock.assumed), note=note
    )


def _given_up(kind: Kind, cluster: Cluster, clock: _Clocks) -> tuple[list[Part], str]:
    """Until the cluster gives the node up."""
    if cluster.kraft is False:
        said = "not measured for ZooKeeper; a new controller first reads the cluster's state"
        seconds = clock(ZOOKEEPER_SESSION)
        return [Part("the node's ZooKeeper session expires", seconds, ZOOKEEPER_SESSION)], said
    parts, note = [], ""
    if kind is Kind.CONTROLLER and cluster.controllers_apart:
        note = "controllers run apart from brokers: as any crash"
    elif kind is Kind.CONTROLLER:
        parts = [
            Part("the quorum misses its leader", clock(QUORUM_FETCH), QUORUM_FETCH),
            Part("it elects another", clock(QUORUM_ELECTION), QUORUM_ELECTION),
            Part("and once more, if votes are split", clock(QUORUM_BACKOFF), QUORUM_BACKOFF),
        ]
    parts.append(Part("the node's session expires", clock(SESSION), SESSION))
    return parts, note


def _fetched(kind: Kind, clock: _Clocks) -> list[Part]:
    """Until a follower has what the new leader took; after a crash it is not polling any more."""
    backoff_s = clock(FETCH_BACKOFF)
    if kind is not Kind.PLANNED:
        return [Part("a follower asks too early and backs off", backoff_s, FETCH_BACKOFF)]
    return [
        Part("a follower's long poll runs out", clock(FETCH_WAIT), FETCH_WAIT),
        Part("it asks too early and backs off", backoff_s, FETCH_BACKOFF, times=2),
    ]


def _client_s(kind: Kind, settings: Settings, cluster_s: float) -> float:
    """Between the new leader's readiness and our next look for it."""
    pause_s = settings.retry_backoff_s
    if cluster_s > PATIENT_S:
        pause_s = max(pause_s, settings.retry_backoff_max_s)
    pause_s *= JITTER
    if kind is not Kind.SILENT:
        return pause_s
    suspected_s = settings.silence_timeout_s
    if settings.idempotent:
        suspected_s = max(suspected_s, settings.ack_wait_s + 0.25)
    return max(SILENT_LEFT_S, pause_s) + max(0.0, suspected_s - cluster_s)
