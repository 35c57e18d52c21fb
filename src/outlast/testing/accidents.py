"""What goes wrong in a random run, drawn by weight, and what puts it right again.

Theory. Most of the time nothing is under way, and then most accidents are harmless; so three in
four lie in wait until a connection owes some answers, and half of all come soon after another, and
often at the same node. The worst stories need two or three misfortunes within milliseconds.

Rules:
* A node is in one kind of trouble at a time. Every trouble has a cure, and `heal_all` ends all.
* An accident is something that happens to real clusters and networks. A broker may be slow, dead,
  deaf or full of doubts, but it does not lie: no error code says "not written" of what is written.
* A broker forgets a producer (`forget`) only while nothing of it is on its way anywhere: else no
  client could avoid a second copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from outlast.testing import faults
from outlast.testing.simulation import Simulation

STOPPING_S = 2.3  # a controlled shutdown takes so long (A6)
LONGEST_PAUSE_S = 3.0  # of the driver
PATIENCE_S = (0.05, 0.5)  # an ambush in which nothing comes by is given up
TOPIC_IDS_VERSION = 10  # of Metadata
SETTLING_S = 4.0  # healed → every replica is in sync again, also where the death went unnoticed

WEIGHTS = {
    "move": 6,
    "sweep": 12,
    "kill": 6,
    "crash": 5,
    "blackout": 2,
    "stop": 1,
    "pause": 2,
    "reset": 6,
    "cut": 2,
    "refuse": 1,
    "deafen": 2,
    "freeze": 1,
    "slow": 1,
    "error": 4,
    "lose": 2,
    "break_request": 3,
    "throttle": 1,
    "garble": 1,
    "stale": 2,
    "leaderless": 1,
    "forget": 2,
    "create": 2,
    "recreate": 1,
    "grow": 1,
    "pause_driver": 1,
}

ELSEWHERE = (3, 5, 6, 9, 56, 74, 75, 100, 103)
NOT_NOW = (2, 8, 14, 15, 16, 19, 51, 89)
NEVER = (10, 17, 29, 32, 42, 76, 87)
NUMBERING = (47, 49, 90)
IN_DOUBT = (-1, 7, 20)


class _Ambush:
    """An accident that waits until a connection owes so many answers."""

    __slots__ = ("owed", "sprung")

    def __init__(self, owed: int) -> None:
        self.owed = owed
        self.sprung = False


class Accidents:
    """The accidents of one run. `burst(partition, records, topic)` sends some records."""

    __slots__ = (
        "_all_up_s",
        "_ambushes",
        "_burst",
        "_cures",
        "_ended",
        "_node_id",
        "_sim",
        "rng",
        "struck",
    )

    def __init__(self, sim: Simulation, burst: Callable[[int | None, int, str], None]) -> None:
        self._sim = sim
        self._ambushes: list[_Ambush] = []
        sim.network.watch = self._look
        self._burst = burst
        self._cures: dict[int, Callable[[int], None]] = {}  # by node, while it is in trouble
        self._node_id = 1
        self._all_up_s = 0.0
        self._ended = False
        self.rng = sim.stream("accidents")
        self.struck: dict[str, int] = {}  # how many of which kind

    def __repr__(self) -> str:
        return f"<Accidents open={sorted(self._cures)} {self.struck}>"

    # --- when ---

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
        self._node_id = node_id
        self.happen()

    def happen(self) -> None:
        """One more accident, drawn by weight."""
        if self._ended:
            return
        [kind] = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if self.rng.random() < 0.3:  # else misfortunes come together
            self._node_id = self.rng.choice(list(self._sim.cluster.addresses))
        self.struck[kind] = self.struck.get(kind, 0) + 1
        getattr(self, f"_{kind}")(self._node_id)

    def heal_all(self) -> None:
        """Nothing is in trouble any more, and nothing will be."""
        self._ended = True
        for node_id in list(self._cures):
            self._cure(node_id)
        self._sim.cluster.faults.clear()

    # --- leaders ---

    def _move(self, node_id: int) -> None:
        with suppress(ValueError):  # this node cannot lead it now
            self._sim.move_leader(self.rng.randrange(self._sim.topics["t"]), node_id)

    def _sweep(self, node_id: int) -> None:
        """Leaders are balanced anew: many partitions move at once (A14)."""
        sim = self._sim
        for partition in range(sim.topics["t"]):
            if self.rng.random() < 0.7:
                with suppress(ValueError):
                    sim.move_leader(partition, self.rng.choice([None, node_id]))

    # --- nodes ---

    def _kill(self, node_id: int) -> None:
        sim = self._sim
        self._trouble(node_id, sim.kill, sim.start, self.rng.choice([0.02, 0.4, 2.0]))

    def _crash(self, node_id: int) -> None:
        """Answers are lost, and then its memory of all batches but one (S1)."""
        sim = self._sim
        sim.reset(node_id)
        delay_s = self.rng.uniform(0.0, 3 * sim.network.settings.latency_s[1])
        sim.at(sim.now + delay_s, partial(self._trouble, node_id, sim.kill, sim.start, 0.02))

    def _blackout(self, _node_id: int) -> None:
        sim = self._sim
        for each in sim.cluster.addresses:
            self._trouble(each, sim.kill, sim.start, self.rng.uniform(0.02, 0.5))

    def _stop(self, node_id: int) -> None:
        sim = self._sim
        over_s = sim.now + STOPPING_S  # until then it cannot be started
        start = partial(self._start_at, over_s)
        self._trouble(node_id, sim.stop, start, self.rng.uniform(STOPPING_S, 4.0))

    def _pause(self, node_id: int) -> None:
        sim = self._sim
        self._trouble(node_id, sim.pause, sim.resume, self.rng.uniform(0.05, 3.0))

    # --- the network ---

    def _reset(self, node_id: int) -> None:
        self._sim.reset(node_id)

    def _cut(self, node_id: int) -> None:
        sim = self._sim
        self._trouble(node_id, sim.cut, sim.heal, self.rng.uniform(0.05, 2.0))

    def _refuse(self, node_id: int) -> None:
        sim = self._sim
        self._trouble(node_id, sim.refuse, sim.accept, self.rng.uniform(0.02, 1.0))

    def _deafen(self, _node_id: int) -> None:
        standing = self._sim.network.standing()
        if standing:
            self._sim.deafen(self.rng.choice(standing))

    # --- requests ---

    def _freeze(self, node_id: int) -> None:
        self._fault(faults.Freeze(node=node_id, until_s=self._until_s(1.5)))

    def _slow(self, node_id: int) -> None:
        """Late answers, some later than every time-out."""
        delay_s = self.rng.choice([0.05, 0.8, 1.2 * self._sim.settings.request_timeout_s])
        self._fault(faults.Slow(delay_s, node=node_id, until_s=self._until_s(1.0)))

    def _error(self, _node_id: int) -> None:
        code = self.rng.choice(self.rng.choice([ELSEWHERE, NOT_NOW, NEVER, NUMBERING, IN_DOUBT]))
        fault = faults.Error
        if code in IN_DOUBT and self.rng.random() < 0.7:
            fault = faults.ErrorAfter  # type: ignore[assignment]
        partition, times = self._partition(), self.rng.choice([1, 1, 2, 5])
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
        if not sim.application.open_sends and sim.network.still() and not sim.cluster.unread():
            self._fault(faults.ForgetProducer(topic="t", partition=self._partition(), times=1))

    # --- topics ---

    def _create(self, _node_id: int) -> None:
        """A new topic, written to from the first moment: its leaders have no state (S11)."""
        name = f"new{self.struck['create']}"
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
            for at_s in (0.0, 0.1, 0.3, 0.8):
                sim.at(sim.now + at_s, partial(self._burst, partition, 3, "t"))

    def _write_to(self, topic: str) -> None:
        for _ in range(10):
            burst = partial(self._burst, self.rng.randrange(2), self.rng.randint(1, 5), topic)
            self._sim.at(self._sim.now + self.rng.uniform(0.0, 0.4), burst)

    # --- this process ---

    def _pause_driver(self, _node_id: int) -> None:
        self._sim.pause_driver(self.rng.choice([0.02, 0.3, LONGEST_PAUSE_S]))

    # --- helpers ---

    def _partition(self) -> int:
        return self.rng.randrange(self._sim.topics["t"])

    def _until_s(self, longest_s: float) -> float:
        return self._sim.now + self.rng.uniform(0.05, longest_s)

    def _fault(self, fault: faults.Fault) -> None:
        """Add it, and clear away those that will strike no more."""
        listed, now = self._sim.cluster.faults, self._sim.now
        listed[:] = [f for f in listed if now < f.until_s and (f.times is None or f.used < f.times)]
        self._sim.fault(fault)

    def _start_at(self, at_s: float, node_id: int) -> None:
        self._sim.at(at_s, partial(self._sim.start, node_id))

    def _trouble(
        self,
        node_id: int,
        cause: Callable[[int], None],
        cure: Callable[[int], None],
        duration_s: float,
    ) -> None:
        if node_id not in self._cures and not self._ended:
            self._cures[node_id] = cure
            cause(node_id)
            self._sim.at(self._sim.now + duration_s, lambda: self._cure(node_id))

    def _cure(self, node_id: int) -> None:
        cure = self._cures.pop(node_id, None)
        if cure is not None:
            self._all_up_s = self._sim.now + SETTLING_S
            cure(node_id)
