"""What goes wrong in a random run, drawn by weight, and what puts it right again.

Theory. Most of the time nothing is under way, and then most accidents are harmless; so three in
four lie in wait until a connection owes some answers, and half of all come soon after another, and
often at the same node. The worst stories need two or three misfortunes within milliseconds.

Rules:
* A node is in one kind of trouble at a time. Every trouble has a cure, and `heal_all` ends all.
* An accident is something that happens to real clusters and networks. A broker may be slow, dead,
  deaf or full of doubts, but it does not lie: no error code says "not written" of what is written.
* A broker forgets a producer (`forget`) only while nothing of it is on its way anywhere, and not
  just after it refused a batch: else no client could avoid a second copy, or a wrong order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from outlast.testing import faults
from outlast.testing.odds import (
    BESIDE,
    ELSEWHERE,
    IN_DOUBT,
    LATE_S,
    NEVER,
    NOT_NOW,
    NUMBERING,
    WEIGHTS,
)
from outlast.testing.simulation import Simulation
from outlast.testing.troubles import NOWHERE, Trouble, Troubles

STOPPING_S = 2.3  # a controlled shutdown takes so long (A6)
LONGEST_PAUSE_S = 3.0  # of the driver
STUCK_S = 3.0  # a follower that is so late is not merely slow
PATIENCE_S = (0.05, 0.5)  # an ambush in which nothing comes by is given up
TOPIC_IDS_VERSION = 10  # of Metadata
SETTLING_S = 4.0  # healed → every replica is in sync again, also where the death went unnoticed

KEEP_ON = ("deafen", "SlowFollower")  # also when all is healed: what has begun goes on
OF_ONE_PARTITION = (faults.Error, faults.ErrorAfter, faults.ForgetProducer, faults.SlowFollower)


class _Ambush:
    """An accident that waits until a connection owes so many answers."""

    __slots__ = ("owed", "sprung")

    def __init__(self, owed: int) -> None:
        self.owed = owed
        self.sprung = False


class Accidents:
    """The accidents of one run. `burst(partition, records, topic)` sends some records.

    `nodes`, `partitions`: those that have all the trouble (None: anyone may).
    """

    __slots__ = (
        "_all_up_s",
        "_ambushes",
        "_burst",
        "_cures",
        "_ended",
        "_lasting",
        "_node_id",
        "_nodes",
        "_partitions",
        "_sim",
        "_weights",
        "rng",
        "struck",
        "troubles",
    )

    def __init__(
        self,
        sim: Simulation,
        burst: Callable[[int | None, int, str], None],
        *,
        nodes: Sequence[int] | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        self._sim = sim
        self._ambushes: list[_Ambush] = []
        sim.network.watch = self._look
        self._burst = burst
        self._cures: dict[int, tuple[Callable[[int], None], Trouble]] = {}  # by node in trouble
        self._nodes = nodes
        self._partitions = partitions
        self._weights = WEIGHTS if nodes is None else BESIDE
        self._lasting = 1.0 if nodes is None else 4.0  # how long, beside the usual
        self._node_id = 1 if nodes is None else nodes[0]
        self._all_up_s = 0.0
        self._ended = False
        self.rng = sim.stream("accidents")
        self.struck: dict[str, int] = {}  # how many of which kind
        self.troubles = Troubles()

    def __repr__(self) -> str:
        return f"<Accidents open={sorted(self._cures)} {self.struck}>"

    # --- when ---

    def spread(self, count: int, within_s: float) -> None:
        """So many will happen in this time: a quarter at their moment, the others lie in wait."""
        at_s = 0.0
        for _ in range(count):
            soon = self.rng.random() < 0.5  # after another
            at_s = at_s + self.rng.uniform(0.0, 0.1) if soon else self.rng.uniform(0.0, within_s)
            self._sim.at(at_s, self.happen if self.rng.random() < 0.25 else self.lie_in_wait)

    def lie_in_wait(self) -> None:
        """Strike when something is under way, or if nothing will be."""
        ambush = _Ambush(self.rng.choice([1, 3, 5, 5]))
        self._ambushes.append(ambush)
        at_s = self._sim.now + self.rng.uniform(*PATIENCE_S)
        self._sim.at(at_s, partial(self._spring, ambush, self._node_id))

    def _look(self, node_id: int, owed: int) -> None:
        """A Produce request has left; its node now owes so many answers on that connection."""
        for ambush in [a for a in self._ambushes if a.owed <= owed]:
            self._ambushes.remove(ambush)
            delay_s = self.rng.uniform(0.0, 3 * self._sim.network.settings.latency_s[1])
            self._sim.at(self._sim.now + delay_s, partial(self._spring, ambush, node_id))

    def _spring(self, ambush: _Ambush, node_id: int) -> None:
        if ambush.sprung:
            return
        ambush.sprung = True
        with suppress(ValueError):  # it was seen already
            self._ambushes.remove(ambush)
        if self._nodes is None:
            self._node_id = node_id
        self.happen()

    def happen(self) -> None:
        """One more accident, drawn by weight."""
        if self._ended:
            return
        [kind] = self.rng.choices(list(self._weights), list(self._weights.values()))
        if self.rng.random() < 0.3:  # else misfortunes come together
            self._node_id = self.rng.choice(self._nodes or list(self._sim.cluster.addresses))
        self.struck[kind] = self.struck.get(kind, 0) + 1
        getattr(self, f"_{kind}")(self._node_id)

    def heal_all(self) -> None:
        """Nothing is in trouble any more, and nothing will be."""
        self._ended = True
        for node_id in list(self._cures):
            self._cure(node_id)
        self._sim.cluster.faults.clear()
        for trouble in self.troubles.log:
            if trouble.kind not in KEEP_ON:
                trouble.end_s = min(trouble.end_s, self._sim.now)

    # --- leaders ---

    def _move(self, node_id: int) -> None:
        with suppress(ValueError):  # this node cannot lead it now
            partition = self._partition()
            self._sim.move_leader(partition, node_id)
            self._note("move", partition=partition)

    def _sweep(self, node_id: int) -> None:
        """Leaders are balanced anew: many partitions move at once (A14)."""
        sim = self._sim
        for partition in self._partitions or range(sim.topics["t"]):
            if self.rng.random() < 0.7:
                with suppress(ValueError):
                    sim.move_leader(partition, self.rng.choice([None, node_id]))
                    self._note("sweep", partition=partition)

    # --- nodes ---

    def _kill(self, node_id: int) -> None:
        sim = self._sim
        down_s = self._lasting * self.rng.choice([0.02, 0.4, 2.0])
        self._trouble("kill", node_id, sim.kill, sim.start, down_s)

    def _crash(self, node_id: int) -> None:
        """Answers are lost, and then its memory of all batches but one (S1)."""
        sim = self._sim
        self._reset(node_id)
        delay_s = self.rng.uniform(0.0, 3 * sim.network.settings.latency_s[1])
        crash = partial(self._trouble, "crash", node_id, sim.kill, sim.start, 0.02)
        sim.at(sim.now + delay_s, crash)

    def _blackout(self, _node_id: int) -> None:
        sim = self._sim
        for each in sim.cluster.addresses:
            self._trouble("blackout", each, sim.kill, sim.start, self.rng.uniform(0.02, 0.5))

    def _stop(self, node_id: int) -> None:
        sim = self._sim
        over_s = sim.now + STOPPING_S  # until then it cannot be started
        start = partial(self._start_at, over_s)
        self._trouble("stop", node_id, sim.stop, start, self.rng.uniform(STOPPING_S, 4.0))

    def _pause(self, node_id: int) -> None:
        sim = self._sim
        still_s = self._lasting * self.rng.uniform(0.05, 3.0)
        self._trouble("pause", node_id, sim.pause, sim.resume, still_s)

    # --- the network ---

    def _reset(self, node_id: int) -> None:
        self._sim.reset(node_id)
        self._note("reset", node=node_id)

    def _cut(self, node_id: int) -> None:
        sim = self._sim
        self._trouble("cut", node_id, sim.cut, sim.heal, self.rng.uniform(0.05, 2.0))

    def _refuse(self, node_id: int) -> None:
        sim = self._sim
        self._trouble("refuse", node_id, sim.refuse, sim.accept, self.rng.uniform(0.02, 1.0))

    def _deafen(self, _node_id: int) -> None:
        standing = self._sim.network.standing()
        if standing:
            connection = self.rng.choice(standing)
            self._sim.deafen(connection)
            self.troubles.note("deafen", self._sim.now, node=connection.node_id)

    # --- requests ---

    def _freeze(self, node_id: int) -> None:
        self._fault(faults.Freeze(node=node_id, until_s=self._until_s(1.5)))

    def _slow(self, node_id: int) -> None:
        """Late answers, some later than every time-out."""
        delay_s = self.rng.choice([0.05, 0.8, 1.2 * self._sim.settings.request_timeout_s])
        self._fault(faults.Slow(delay_s, node=node_id, until_s=self._until_s(1.0)))

    def _slow_follower(self, node_id: int) -> None:
        """Acks that need this node's copy come late, now more and now less."""
        until_s = self._until_s(3.0 * self._lasting)
        self._late(faults.SlowFollower(self._late_s(), node=node_id, until_s=until_s))

    def _slow_partition(self, _node_id: int) -> None:
        """The same for one partition, wherever its followers are."""
        partition, until_s = self._partition(), self._until_s(3.0 * self._lasting)
        self._late(
            faults.SlowFollower(self._late_s(), topic="t", partition=partition, until_s=until_s)
        )

    def _late_s(self) -> float:
        return self.rng.choice(LATE_S)

    def _late(self, fault: faults.SlowFollower) -> None:
        """Add it. It may get better or worse while it lasts: each time another trouble begins."""
        self._fault(fault)
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            at_s = self._sim.now + self.rng.uniform(0.0, 3.0 * self._lasting)
            self._sim.at(at_s, partial(self._vary, fault, self._late_s()))

    def _vary(self, fault: faults.SlowFollower, delay_s: float) -> None:
        now = self._sim.now
        if now < fault.until_s and not self._ended:
            self.troubles.over(fault, now + fault.delay_s)  # what has begun keeps its own
            fault.delay_s = delay_s
            self._note_fault(fault)

    def _limit(self, node_id: int) -> None:
        """The node takes no second connection, or no third (max.connections.per.ip)."""
        limit = self.rng.choice([1, 2])
        self._fault(faults.ConnectionLimit(limit, node=node_id, until_s=self._until_s(4.0)))

    def _error(self, _node_id: int) -> None:
        code = self.rng.choice(self.rng.choice([ELSEWHERE, NOT_NOW, NEVER, NUMBERING, IN_DOUBT]))
        fault = faults.Error
        if code in IN_DOUBT and self.rng.random() < 0.7:
            fault = faults.ErrorAfter  # type: ignore[assignment]
        partition, times = self._partition(), self.rng.choice([1, 1, 2, 5])
        if code in NUMBERING:
            self._sim.ledger.unfenced.add(("t", partition))
        self._fault(fault(code, topic="t", partition=partition, times=times))

    def _lose(self, node_id: int) -> None:
        """Nothing is answered, and the connection stays open."""
        kind = self.rng.choice([faults.LoseRequest, faults.LoseResponse])
        self._fault(kind(node=node_id, times=1, blocks=self.rng.random() < 0.7))

    def _break_request(self, node_id: int) -> None:
        """A reset inside a request, or after it was served."""
        kind = self.rng.choice([faults.CutBefore, faults.CutAfter, faults.CutAfter])
        self._fault(kind(node=node_id, times=self.rng.choice([1, 2, 3])))

    def _throttle(self, node_id: int) -> None:
        throttle_s = self.rng.choice([0.05, 0.8, 1.5])
        self._fault(faults.Throttle(throttle_s, node=node_id, times=self.rng.choice([1, 3])))

    def _garble(self, node_id: int) -> None:
        """An answer is cut short."""
        self._fault(faults.Garble(keep=self.rng.randint(0, 30), node=node_id, times=1))

    # --- what brokers know ---

    def _stale(self, node_id: int) -> None:
        lag_s = self.rng.uniform(0.05, 1.5)
        self._fault(faults.MetadataLag(lag_s, node=node_id, until_s=self._until_s(2.0)))

    def _leaderless(self, node_id: int) -> None:
        kind = self.rng.choice([faults.MetadataLeaderless, faults.LeaderNotListed])
        where = self.rng.choice([None, node_id])
        self._fault(
            kind(topic="t", partition=self._partition(), node=where, until_s=self._until_s(1.0))
        )

    def _forget(self, _node_id: int) -> None:
        sim = self._sim
        quiet = not sim.application.open_sends and sim.network.still()
        if quiet and not sim.cluster.unread() and not self._unspent():
            self._fault(faults.ForgetProducer(topic="t", partition=self._partition(), times=1))

    # --- topics ---

    def _create(self, _node_id: int) -> None:
        """A new topic, written to from the first moment: its leaders have no state (S11)."""
        name = f"new{self.struck['create']}"
        self._note("create", node=NOWHERE)
        with suppress(ValueError):  # no node can take it now
            self._sim.create_topic(name, 2)
            self._write_to(name)

    def _recreate(self, _node_id: int) -> None:
        """A topic is deleted under the producer, and soon there is another one of its name."""
        sim = self._sim
        others = [name for name in sim.topics if name != "t"]
        if others:
            name = self.rng.choice(others)
            ids = sim.cluster.settings.api_versions[3][1] >= TOPIC_IDS_VERSION
            least = 1 if ids else sim.topics[name]  # else nobody could tell that some are gone
            sim.delete_topic(name)
            self._note("recreate", node=NOWHERE)
            self._write_to(name)
            again_s = sim.now + self.rng.choice([0.0, 0.02, 0.5])
            sim.at(again_s, partial(self._make_anew, name, least))

    def _make_anew(self, name: str, least: int) -> None:
        try:
            self._sim.create_topic(name, max(least, self.rng.choice([1, 2, 3])))
        except ValueError:  # no node can take it now
            self._sim.at(self._sim.now + 0.2, partial(self._make_anew, name, least))

    def _grow(self, _node_id: int) -> None:
        """Only while all are up: a replica placed on a dead node would never lead."""
        sim = self._sim
        if not self._cures and sim.now >= self._all_up_s and sim.topics["t"] < 16:
            partition = sim.grow_topic("t")
            self._note("grow", partition=partition)
            for at_s in (0.0, 0.1, 0.3, 0.8):
                sim.at(sim.now + at_s, partial(self._burst, partition, 3, "t"))

    def _write_to(self, topic: str) -> None:
        for _ in range(10):
            burst = partial(self._burst, self.rng.randrange(2), self.rng.randint(1, 5), topic)
            self._sim.at(self._sim.now + self.rng.uniform(0.0, 0.4), burst)

    # --- this process ---

    def _pause_driver(self, _node_id: int) -> None:
        pause_s = self.rng.choice([0.02, 0.3, LONGEST_PAUSE_S])
        self._sim.pause_driver(pause_s)
        self.troubles.note("pause_driver", self._sim.now, self._sim.now + pause_s)

    # --- helpers ---

    def _partition(self) -> int:
        return self.rng.choice(self._partitions or range(self._sim.topics["t"]))

    def _until_s(self, longest_s: float) -> float:
        return self._sim.now + self.rng.uniform(0.05, longest_s)

    def _fault(self, fault: faults.Fault) -> None:
        """Add it, and clear away those that will strike no more."""
        self._sim.cluster.faults[:] = self._unspent()
        self._sim.fault(fault)
        self._note_fault(fault)

    def _note_fault(self, fault: faults.Fault) -> None:
        trouble = self.troubles.note(
            type(fault).__name__,
            self._sim.now,
            fault.until_s,
            node=fault.node,
            partition=fault.partition if isinstance(fault, OF_ONE_PARTITION) else None,
        )
        trouble.fault = fault
        trouble.hard = isinstance(fault, faults.SlowFollower) and fault.delay_s >= STUCK_S

    def _unspent(self) -> list[faults.Fault]:
        """Faults that may strike yet, but for a broker's forgetting: it must come first."""
        return [
            fault
            for fault in self._sim.cluster.faults
            if self._sim.now < fault.until_s
            and (fault.times is None or fault.used < fault.times)
            and not isinstance(fault, faults.ForgetProducer)
        ]

    def _note(self, kind: str, *, node: int | None = None, partition: int | None = None) -> Trouble:
        """Something that is over at once, but for what comes of it."""
        now = self._sim.now
        return self.troubles.note(kind, now, now, node=node, partition=partition)

    def _start_at(self, at_s: float, node_id: int) -> None:
        self._sim.at(at_s, partial(self._sim.start, node_id))

    def _trouble(
        self,
        kind: str,
        node_id: int,
        cause: Callable[[int], None],
        cure: Callable[[int], None],
        duration_s: float,
    ) -> None:
        if node_id not in self._cures and not self._ended:
            trouble = self.troubles.note(kind, self._sim.now, node=node_id)
            trouble.hard = kind in ("kill", "crash", "blackout", "pause")
            self._cures[node_id] = cure, trouble
            cause(node_id)
            self._sim.at(self._sim.now + duration_s, lambda: self._cure(node_id))

    def _cure(self, node_id: int) -> None:
        if node_id in self._cures:
            cure, trouble = self._cures.pop(node_id)
            self._all_up_s = trouble.end_s = self._sim.now
            self._all_up_s += SETTLING_S
            cure(node_id)
