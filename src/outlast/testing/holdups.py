"""No partition pays for another: how long those without any fault were held up, by the truth.

A partition is *held up* while one of its records could be sent (it was taken, and linger is over)
and nothing of it is settled. All is read from what the application saw and from what the cluster
and the accidents did; the producer is asked for nothing.

Who is without fault: its leader did not change, none of its replicas was on a node that had any
trouble, and nothing was refused or made late on its own account, neither then nor for some time
before: a second or two if a follower was late, longer if leaders had to be found, or connections.
What may hold it up nevertheless is what holds others up: a request that it shares with them waits
for its slowest partition, once until the broker says who is stuck (`ack_wait`), and once more if
it looks as if it were stuck as well. Hence the bound, for each cause:

    2 × ack_wait + 10 round trips

and without any cause 10 round trips. It holds for each wait; and for all waits together that have
one cause, if that is *hard*: a follower that stops, not one that is now late and now not.

`ack_wait` is `ack_wait_ms`, or 4 × the usual time of the broker's acks if that is more, as the wire
saw them, but at most half of `request_timeout_ms`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from math import inf

from kafka.protocol.producer import InitProducerIdResponse

from outlast.testing.cluster_settings import longest
from outlast.testing.ledger import Entry
from outlast.testing.network import NetworkSettings
from outlast.testing.simulation import Simulation
from outlast.testing.troubles import HOLDS_OTHERS, Trouble, Troubles
from outlast.testing.wire import attempts

ROUND_TRIPS = 10
SETTLING_S = 4.0  # a node is well again → its replicas are in sync again
USUAL_OF = 15  # acks
INIT_PRODUCER_ID = 22
DENIED_S = 0.5  # for so long a new leader may deny that it is one, before its followers find it
SHORT_BACKOFF_S = 0.1  # of followers after a move: nobody is stuck for so little


@dataclass(frozen=True, slots=True)
class HoldUp:
    """One partition's time with something to send and nothing settled."""

    partition: int
    node: int  # its leader
    begin_s: float
    end_s: float
    causes: tuple[Trouble, ...]  # of others, that may have done it

    @property
    def duration_s(self) -> float:
        """How long."""
        return self.end_s - self.begin_s

    @property
    def places(self) -> int:
        """How many nodes and partitions had those troubles."""
        return len({(cause.node, cause.partition) for cause in self.causes})


def hold_ups(sim: Simulation, troubles: Troubles) -> list[HoldUp]:
    """All times in which a partition of 't' that was without fault waited for an ack."""
    ready_s = _ready_s(sim)
    by_partition: dict[int, list[Entry]] = {}
    for entry in sim.ledger.entries:
        if entry.taken_at is not None and entry.topic == "t":
            by_partition.setdefault(entry.partition, []).append(entry)
    found: list[HoldUp] = []
    for partition, entries in sorted(by_partition.items()):
        waits = _waits(entries, sim.settings.linger_s, sim.now)
        later = [(begin_s, end_s) for begin_s, end_s in waits if begin_s >= ready_s]
        found += _of_one(sim, troubles, partition, later)
    return found


def _of_one(
    sim: Simulation, troubles: Troubles, partition: int, waits: list[tuple[float, float]]
) -> Iterator[HoldUp]:
    settings, known = sim.settings, sim.cluster.topics["t"].partitions
    replicas = known[partition].replicas
    own = [t for t in troubles.log if t.strikes(partition, replicas)]
    others = [t for t in troubles.log if t.kind in HOLDS_OTHERS and t not in own]
    moves = [e for e in sim.cluster.elections if (e.topic, e.partition) == ("t", partition)]
    taking_over_s = DENIED_S + 2 * longest(sim.cluster.settings.fetch_backoff_s)
    found_s = SETTLING_S + settings.request_timeout_s + settings.connection_setup_timeout_s
    for begin_s, end_s in waits:
        leads = [(e.epoch, e.leader) for e in moves if e.at_s < begin_s]
        _, node = max(leads, default=(0, replicas[0]))
        if any(t.touches(begin_s, end_s, _aftermath_s(sim, t, node)) for t in own):
            continue
        if any(e.at_s <= end_s and begin_s <= e.at_s + found_s for e in moves):
            continue
        causes = [
            t
            for t in others
            if t.touches(begin_s - settings.ack_wait_s, end_s, taking_over_s if t.is_move else 0.0)
            and (t.partition is None or node in known[t.partition].replicas)
        ]
        yield HoldUp(partition, node, begin_s, end_s, tuple(causes))


def _aftermath_s(sim: Simulation, own: Trouble, leader: int) -> float:
    """How long a trouble of the partition itself may be felt after its end."""
    settings = sim.settings
    if own.kind == "SlowFollower":
        return 1.0 + 2 * settings.ack_wait_s
    if own.hard and own.node != leader:
        return SETTLING_S
    return SETTLING_S + settings.request_timeout_s + settings.connection_setup_timeout_s


# --- what is too long ---------------------------------------------------------------------------


def too_long(sim: Simulation, network: NetworkSettings, found: list[HoldUp]) -> Iterator[str]:
    """What no cause explains. `network`: how slow the wire was at its worst."""
    own_s, usual = _own_s(sim, network), _Usual(sim)
    long = [hold_up for hold_up in found if hold_up.duration_s > own_s]
    for hold_up in long:
        most_s = own_s + hold_up.places * _for_one_cause_s(sim, own_s, 0.0)
        if hold_up.duration_s > most_s:
            usual_s = usual.of(hold_up.node, hold_up.begin_s, hold_up.end_s)
            most_s = own_s + hold_up.places * _for_one_cause_s(sim, own_s, usual_s)
        if hold_up.duration_s > most_s:
            yield (
                f"{_of_whom(hold_up)} from {hold_up.begin_s:.3f} to {hold_up.end_s:.3f} s it "
                f"waited for an ack: {hold_up.duration_s:.3f} s, and troubles of "
                f"{hold_up.places} others explain {most_s:.3f} s (usual {usual_s:.3f} s)"
            )
    yield from _together(sim, own_s, usual, long)


def _together(sim: Simulation, own_s: float, usual: _Usual, long: list[HoldUp]) -> Iterator[str]:
    """All waits of a partition that one trouble may have caused, if that and those beside it are
    hard.
    """
    by_cause: dict[tuple[int, Trouble], list[HoldUp]] = {}
    for hold_up in long:
        for cause in hold_up.causes:
            by_cause.setdefault((hold_up.partition, cause), []).append(hold_up)
    for (_, cause), waits in by_cause.items():
        causes = {other for hold_up in waits for other in hold_up.causes}
        if not all(_is_hard(sim, other) for other in causes):
            continue
        episodes = _episodes(causes)
        total_s = sum(hold_up.duration_s - own_s for hold_up in waits)
        if total_s > episodes * _for_one_cause_s(sim, own_s, 0.0):
            node, begin_s, end_s = waits[0].node, waits[0].begin_s, waits[-1].end_s
            usual_s = usual.of(node, begin_s, end_s)
            most_s = episodes * _for_one_cause_s(sim, own_s, usual_s)
            if total_s > most_s:
                yield (
                    f"{_of_whom(waits[0])} it was held up {len(waits)} times, for {total_s:.3f} s "
                    f"in all from {begin_s:.3f} to {end_s:.3f} s, while {cause.kind} of "
                    f"{cause.node or cause.partition} lasted: {episodes} causes explain "
                    f"{most_s:.3f} s (usual {usual_s:.3f} s)"
                )


def _episodes(causes: Iterable[Trouble]) -> int:
    """How many there are: troubles of one place at one time are one."""
    until_s: dict[tuple[int | None, int | None], float] = {}
    count = 0
    for cause in sorted(causes, key=lambda c: c.begin_s):
        place = cause.node, cause.partition
        last_s = until_s.get(place, -inf)
        count += cause.begin_s > last_s
        until_s[place] = max(last_s, cause.end_s)
    return count


def _is_hard(sim: Simulation, trouble: Trouble) -> bool:
    return trouble.hard or (
        trouble.is_move and longest(sim.cluster.settings.fetch_backoff_s) <= SHORT_BACKOFF_S
    )


def _of_whom(hold_up: HoldUp) -> str:
    return f"t-{hold_up.partition} is without fault and node {hold_up.node} leads it;"


def _for_one_cause_s(sim: Simulation, own_s: float, usual_s: float) -> float:
    settings = sim.settings
    ack_wait_s = min(max(settings.ack_wait_s, 4 * usual_s), settings.request_timeout_s / 2)
    return 2 * (ack_wait_s + longest(sim.cluster.settings.timeout_slack_s)) + own_s


def _own_s(sim: Simulation, network: NetworkSettings) -> float:
    """Ten round trips: what a partition may take alone."""
    cluster = sim.cluster.settings
    one_way_s = network.latency_s[1] + (network.spike_s[1] if network.spike_probability else 0.0)
    own_s = ROUND_TRIPS * (2 * one_way_s + longest(cluster.replication_s)) + sim.compress_s[1]
    backoff_s = 2 * longest(cluster.fetch_backoff_s)  # after a move beside it
    return own_s + (backoff_s if backoff_s <= 2 * SHORT_BACKOFF_S else 0.0)


# --- when something waited ----------------------------------------------------------------------


def _waits(entries: list[Entry], linger_s: float, now: float) -> Iterator[tuple[float, float]]:
    """From when something could be sent, or the last was settled, to when the next was settled."""
    entries = sorted(entries, key=lambda e: inf if e.settled_at is None else e.settled_at)
    first_s = inf
    since = []  # of each and those settled after it: when the first of them could be sent
    for entry in reversed(entries):
        assert entry.taken_at is not None
        first_s = min(first_s, entry.taken_at + linger_s)
        since.append(first_s)
    last_s = 0.0
    for entry, first_s in zip(entries, reversed(since), strict=True):
        end_s = now if entry.settled_at is None else entry.settled_at
        if end_s > max(last_s, first_s):
            yield max(last_s, first_s), end_s
        last_s = end_s


def _ready_s(sim: Simulation) -> float:
    """When all partitions could be written to: before that, hold-ups are the beginning's."""
    cluster = sim.cluster.settings
    taken_up_s = longest(cluster.creation_deny_s) + longest(cluster.metadata_lag_s)
    taken_up_s += 2 * longest(cluster.fetch_backoff_s) + 0.2
    for request in sim.network.requests:
        if request.api_key == INIT_PRODUCER_ID and request.answered_at is not None:
            version = InitProducerIdResponse[request.api_version]
            stream = BytesIO(request.answer)
            version.parse_header(stream)
            if version.decode(stream.read()).error_code == 0:
                return max(request.answered_at, taken_up_s)
    return inf


class _Usual:
    """What acks of each broker usually take, as the wire saw them; found out when first asked."""

    __slots__ = ("_known", "_sim")

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._known: dict[int, list[tuple[float, float, float]]] | None = None

    def of(self, node: int, begin_s: float, end_s: float) -> float:
        """The most that it was at any time between."""
        if self._known is None:
            self._known = self._find()
        times = self._known.get(node, ())
        return max(
            (s for since, until, s in times if since <= end_s and begin_s <= until), default=0.0
        )

    def _find(self) -> dict[int, list[tuple[float, float, float]]]:
        """By broker: from when to when the median of the last acks was what; each ack from its
        batch's first sending, each answer by its slowest.
        """
        first_s: dict[tuple[object, int], float] = {}
        acks = []
        for attempt in attempts(self._sim.network.requests):
            key = (attempt.tp, attempt.records)
            first_s.setdefault(key, attempt.sent_at)
            if attempt.accepted and attempt.ended_at is not None:
                acks.append((attempt.ended_at, attempt.request, attempt.ended_at - first_s[key]))
        latest: dict[int, deque[float]] = {}
        known: dict[int, list[tuple[float, float, float]]] = {}
        last = None
        for at_s, request, took_s in sorted(acks, key=lambda ack: ack[0]):
            times = latest.setdefault(request.node_id, deque(maxlen=USUAL_OF))
            if request is last:
                times[-1] = max(times[-1], took_s)
            else:
                times.append(took_s)
            last = request
            spans = known.setdefault(request.node_id, [])
            if spans:
                spans[-1] = (spans[-1][0], at_s, spans[-1][2])
            spans.append((at_s, inf, sorted(times)[len(times) // 2]))
        return known
