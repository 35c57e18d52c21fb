"""The cluster's questions: metadata and producer ids, and whom to ask them.

Any live broker can answer both, so a question is never tied to one. Rules:

* Questions go over control connections of their own: a waiting produce blocks everything behind
  it on its connection, Metadata too (S8).
* First choice is a ready control connection; then the node that answered most recently; then
  others whose reconnect back-off is over; bootstrap addresses when no node is known or can be
  reached. A link that has owed an answer for `HEDGE_S` is *slow*: a second node is asked as well,
  and the first answer counts. At most two control links exist, and a third to a bootstrap address
  while both others hang in their connects: all known addresses may be gone.
* One producer id is shared by all partitions (their epochs are their own, rule 6); only a
  partition whose numbering was refused for good asks for one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.producer import InitProducerIdRequest

from outlast.engine.brokers import Brokers, Link, Pending, Question
from outlast.engine.messages import Command, Disconnect, Role, Send
from outlast.engine.metadata import Metadata, RefreshClock
from outlast.engine.partition import Partition
from outlast.engine.retry import Schedules
from outlast.engine.settings import Settings
from outlast.engine.txn_wire import Key, find_coordinator

HEDGE_S = 0.25
ANSWER_TIMEOUT_S = 2.0  # a metadata request's own; shorter if `request_timeout_ms` is
CONTROL_LINKS_MAX = 2
SECOND_OPINION_ATTEMPTS = 4  # answers that did not help, until another broker is asked by turns
NO_PRODUCER_ID = (-1, -1)
BOOTSTRAP_FIRST = -1  # node ids of bootstrap addresses count down from here

COORDINATOR_EPISODE_S = 15.0  # as `retry.METADATA_STEADY_S`: a later want begins anew

Candidate = tuple[int, str, int, float]  # node id, host, port, and when it may be dialled


class _Wanted:
    """A coordinator that is, or was, to be found."""

    __slots__ = ("failures", "next_s", "open", "since_s")

    def __init__(self, now: float) -> None:
        self.since_s = self.next_s = now
        self.failures = 0
        self.open = True

    def due(self, now: float) -> bool:
        """Whether it is to be asked for now."""
        return self.open and now >= self.next_s


class Inquiries:
    """Decides when metadata and producer ids are asked for, and of whom."""

    __slots__ = (
        "_back_to_names",
        "_brokers",
        "_coordinators",
        "_metadata",
        "_pid_failures",
        "_pid_retry_s",
        "_schedules",
        "_settings",
        "_wants_pid",
        "clock",
        "producer_id",
    )

    def __init__(
        self, settings: Settings, schedules: Schedules, brokers: Brokers, metadata: Metadata
    ) -> None:
        self._settings = settings
        self._schedules = schedules
        self._brokers = brokers
        self._metadata = metadata
        self.clock = RefreshClock(settings, schedules)
        self.producer_id = NO_PRODUCER_ID  # shared: (id, epoch)
        self._wants_pid: dict[tuple[str, int], Partition] = {}
        self._back_to_names = False  # told of, in this episode
        self._pid_retry_s = 0.0
        self._pid_failures = 0
        self._coordinators: dict[Key, _Wanted] = {}  # that are to be found

    def __repr__(self) -> str:
        return f"<Inquiries producer={self.producer_id} links={self.links()}>"

    # --- what is wanted ---

    def want_producer_id(self, partition: Partition) -> None:
        """The partition cannot number its batches before it has a producer id."""
        if not partition.fresh_producer_id and self.producer_id != NO_PRODUCER_ID:
            partition.use_producer_id(*self.producer_id)
        else:
            self._wants_pid[partition.tp] = partition

    def want_coordinator(self, key: Key, now: float) -> None:
        """Who coordinates this group or transactional id: ask soon."""
        wanted = self._coordinators.setdefault(key, _Wanted(now))
        if not wanted.open:
            wanted.open = True
            wanted.next_s = max(now, wanted.next_s)

    def forget_coordinator(self, key: Key) -> None:
        """Nobody needs to know any more."""
        self._coordinators.pop(key, None)

    def coordinator_told(self, key: Key, *, ok: bool, now: float) -> None:
        """It was told, or nobody knows yet: then the question is put again at metadata's pace."""
        wanted = self._coordinators.get(key)
        if wanted is None:
            return
        wanted.open = not ok
        wanted.failures += 1
        if ok and now - wanted.since_s > COORDINATOR_EPISODE_S:
            wanted.failures, wanted.since_s = 1, now
        wanted.next_s = now + self._schedules.metadata_delay_s(
            wanted.failures, now - wanted.since_s
        )

    def _due_coordinator(self, now: float) -> Key | None:
        if any(self._asks(link, Question.COORDINATOR) for link in self.links()):
            asked = self._outstanding(Question.COORDINATOR)
            if not all(self._slow(link, now) for link in asked):
                return None
        due = (key for key, wanted in self._coordinators.items() if wanted.due(now))
        return next(due, None)

    def links(self) -> list[Link]:
        """The control links that are up or coming up."""
        return [link for link in self._brokers.up() if link.role is Role.CONTROL]

    def next_deadline(self, looked_s: float) -> float | None:
        """When to call `step` next, if no event comes before. It was last called at `looked_s`:
        what has fallen due since then counts, and what was due by then could not be asked.
        """
        due_s = self.clock.due_at(looked_s)
        if self._only_metadata() and (due_s is None or due_s > looked_s):
            return due_s
        times = [due_s]
        if self._wants_pid and not self._outstanding(Question.PRODUCER_ID):
            times.append(self._pid_retry_s)
        if not self._outstanding(Question.COORDINATOR):
            times += [wanted.next_s for wanted in self._coordinators.values() if wanted.open]
        for link in self.links():
            since_s = link.waiting_since_s()
            if since_s is not None:
                times.append(since_s + HEDGE_S if not self._slow(link, looked_s) else None)
        waits = [t for t in times if t is not None]
        if waits and min(waits) <= looked_s:
            # a question is due and nobody can be asked: wait for the first back-off to end
            retries = [at for _, _, _, at in self._candidates(looked_s) if at > looked_s]
            muted = [link.throttled_until_s for link in self.links()]
            waits = [t for t in [*waits, *muted] if t > looked_s] + retries
        return min(waits, default=None)

    # --- asking ---

    def step(self, now: float) -> list[Command]:
        """Ask what is due."""
        due_s = self.clock.due_at(now)
        metadata = due_s is not None and due_s <= now
        if not metadata and self._only_metadata():
            return []
        hedged = self._hedge_metadata(now)
        producer_id = bool(self._wants_pid) and now >= self._pid_retry_s
        if producer_id:
            asked = self._outstanding(Question.PRODUCER_ID)
            producer_id = all(self._slow(link, now) for link in asked)
        coordinator = self._due_coordinator(now)
        if not (metadata or hedged or producer_id or coordinator):
            return []
        commands: list[Command] = []
        if metadata and self._doubts_the_answers():
            commands += self._ask_around(now)
        link = self._usable(now)
        if link is None:
            return commands + self._open_another(now)
        if metadata or (hedged and not self._asks(link, Question.METADATA)):
            commands.append(self._ask_metadata(link, now, hedge=not metadata))
        if producer_id and not self._asks(link, Question.PRODUCER_ID):
            commands.append(self._ask_producer_id(link, now))
        if coordinator and not self._asks(link, Question.COORDINATOR):
            commands.append(self._ask_coordinator(link, coordinator, now))
        return commands

    def _only_metadata(self) -> bool:
        """Whether nothing else may be wanted now, and no control link owes an answer: so it is in
        nearly every step.
        """
        if self._wants_pid or self._coordinators:
            return False
        return all(link.waiting_since_s() is None for link in self.links())

    def _hedge_metadata(self, now: float) -> bool:
        asked = self._outstanding(Question.METADATA)
        return bool(asked) and len(asked) < 2 and all(self._slow(link, now) for link in asked)

    def _outstanding(self, question: Question) -> list[Link]:
        return [link for link in self.links() if self._asks(link, question)]

    @staticmethod
    def _asks(link: Link, question: Question) -> bool:
        return any(pending.question is question for pending in link.pending)

    @staticmethod
    def _slow(link: Link, now: float) -> bool:
        if now < link.throttled_until_s:
            return True
        since_s = link.waiting_since_s()
        return since_s is not None and now - since_s >= HEDGE_S

    def _usable(self, now: float) -> Link | None:
        ready = [link for link in self.links() if link.ready and not self._slow(link, now)]
        trusted = [link for link in ready if link.node_id not in self._brokers.suspected]
        if ready and not trusted and self._can_open_another(now):
            return None
        usable = trusted or ready
        if self._doubts_the_answers():
            usable.sort(key=lambda link: link.used_s)  # by turns
        return next(iter(usable), None)

    def _doubts_the_answers(self) -> bool:
        """Whether the broker that was asked may be the one that is wrong: others are asked too."""
        return self.clock.attempts >= SECOND_OPINION_ATTEMPTS

    def _ask_around(self, now: float) -> list[Command]:
        """Make room for a second broker: a bootstrap address may be any of them, the same again."""
        commands: list[Command] = []
        for link in self.links():
            spent = link.ready and not link.pending and link.answered_s > link.ready_s
            if link.node_id < 0 and spent and self._metadata.nodes:
                assert link.connection is not None
                commands.append(Disconnect(link.connection, abort=False))
                self._brokers.drop(link, now)
        if self._can_open_another(now):
            commands += self._open(self._candidates(now), now)
        return commands

    def _can_open_another(self, now: float) -> bool:
        """Whether a node could be asked that is not suspected and has no control link."""
        taken = {link.node_id for link in self.links()}
        return len(taken) < CONTROL_LINKS_MAX and any(
            node_id not in taken and node_id not in self._brokers.suspected and now >= retry_s
            for node_id, _, _, retry_s in self._candidates(now)
        )

    def _open_another(self, now: float) -> list[Command]:
        """Begin a control connection, unless one that is not slow is coming up."""
        links = self.links()
        coming = [
            link
            for link in links
            if not self._slow(link, now) and link.node_id not in self._brokers.suspected
        ]
        if coming:
            return []
        if len(links) < CONTROL_LINKS_MAX:
            return self._open(self._candidates(now), now)
        if len(links) == CONTROL_LINKS_MAX and all(k.node_id >= 0 and not k.ready for k in links):
            return self._open(self._bootstrap(), now)  # do all known addresses swallow connects?
        return []

    def _open(self, candidates: Sequence[Candidate], now: float) -> list[Command]:
        taken = {link.node_id for link in self.links()}
        for node_id, host, port, retry_s in candidates:
            if node_id not in taken and now >= retry_s:
                if node_id < 0:
                    self._tell_of_names()
                link = self._brokers.link(node_id, Role.CONTROL)
                return [self._brokers.connect(link, host, port, now)]
        return []

    def _tell_of_names(self) -> None:
        """Say once, until brokers answer again, that the bootstrap names are asked (KIP-899)."""
        if self._metadata.nodes and not self._back_to_names:
            self._back_to_names = True
            names = ", ".join(f"{host}:{port}" for host, port in self._settings.bootstrap)
            self._schedules.complaints.append(
                f"no answer from the {len(self._metadata.nodes)} known brokers: "
                f"bootstrap_servers is resolved again ({names})"
            )

    def _candidates(self, now: float) -> Sequence[Candidate]:
        """Nodes that could be asked: those that answered last come first, bootstrap last."""
        answered_s = self._brokers.answered_s
        nodes = sorted(
            self._metadata.nodes.values(),
            key=lambda node: (
                node.node_id in self._brokers.suspected,
                -answered_s.get(node.node_id, -1.0),
                node.node_id,
            ),
        )
        known = [
            (n.node_id, n.host, n.port, self._brokers.link(n.node_id, Role.CONTROL).retry_s)
            for n in nodes
        ]
        if any(
            retry_s <= now and not self._brokers.link(node_id, Role.CONTROL).failures
            for node_id, _, _, retry_s in known
        ):
            return known
        return sorted([*known, *self._bootstrap()], key=lambda candidate: candidate[3])

    def _bootstrap(self) -> list[Candidate]:
        candidates = []
        for index, (host, port) in enumerate(self._settings.bootstrap):
            node_id = BOOTSTRAP_FIRST - index
            retry_s = self._brokers.link(node_id, Role.CONTROL).retry_s
            candidates.append((node_id, host, port, retry_s))
        return candidates

    def _ask_metadata(self, link: Link, now: float, *, hedge: bool) -> Command:
        if not hedge:
            self.clock.started(now)
        timeout_s = min(ANSWER_TIMEOUT_S, self._settings.request_timeout_s)
        return self._send(
            link, Question.METADATA, self._metadata.build_request(), now + timeout_s, now
        )

    def _ask_producer_id(self, link: Link, now: float) -> Command:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        deadline_s = now + min(ANSWER_TIMEOUT_S, self._settings.request_timeout_s)
        return self._send(link, Question.PRODUCER_ID, request, deadline_s, now)

    def _ask_coordinator(self, link: Link, key: Key, now: float) -> Command:
        deadline_s = now + min(ANSWER_TIMEOUT_S, self._settings.request_timeout_s)
        request = find_coordinator(key)
        command = self._send(link, Question.COORDINATOR, request, deadline_s, now)
        link.pending[-1].about = key
        return command

    def _send(
        self, link: Link, question: Question, request: object, deadline_s: float, now: float
    ) -> Command:
        pending = Pending(self._brokers.next_token(), question, now, deadline_s, [])
        link.pending.append(pending)
        link.used_s = now
        assert link.connection is not None
        return Send(link.connection, pending.token, request)

    # --- answers ---

    def metadata_ended(self, link: Link, ok: bool, now: float) -> list[Command]:
        """An answer came, or the last link that owed one is gone. Slow links are given up."""
        if not ok and self._outstanding(Question.METADATA):
            return []  # the other one may still answer
        self.clock.finished(ok, now)
        self._back_to_names = self._back_to_names and not ok
        commands: list[Command] = []
        for other in self.links():
            if ok and other is not link and self._slow(other, now):
                assert other.connection is not None
                commands.append(Disconnect(other.connection, abort=True))
                self._brokers.drop(other, now)
                self._brokers.fail(other, now)
                other.retry_s = now + self._schedules.reconnect_delay_s(other.failures, 0.0)
        return commands

    def producer_id_came(self, producer_id: int, producer_epoch: int) -> None:
        """Hand it to who waits: to one partition that needs its own, or to all others."""
        self._pid_failures = 0
        own = [p for p in self._wants_pid.values() if p.fresh_producer_id]
        if own and self.producer_id != NO_PRODUCER_ID:
            del self._wants_pid[own[0].tp]
            own[0].use_producer_id(producer_id, producer_epoch)
            return
        self.producer_id = (producer_id, producer_epoch)
        for tp, partition in list(self._wants_pid.items()):
            if not partition.fresh_producer_id:
                del self._wants_pid[tp]
                partition.use_producer_id(producer_id, producer_epoch)

    def producer_id_failed(self, *, loading: bool, now: float) -> None:
        """Ask again: after 10 ms, doubling, where the broker is only starting (S10)."""
        self._pid_failures += 1
        if loading:
            delay_s = self._schedules.producer_id_delay_s(self._pid_failures)
        else:
            delay_s = self._schedules.retry_delay_s(self._pid_failures, 0.0, "")
        self._pid_retry_s = now + delay_s

    def give_up_producer_id(self) -> list[Partition]:
        """No id is to be had: returns who waited, so that their records can be failed."""
        waiting = list(self._wants_pid.values())
        self._wants_pid.clear()
        return waiting
