"""What the wire saw, and the gaps that follow from it: the truth that gap records are held to.

The wire log is written by the simulator's network. `attempts` decodes it into what became of each
partition's batches; `expected_gaps` reads that and the times at which records were taken, and
applies the words of the definition. They share no code and no opinion with the engine:

* a gap opens at the first refusal of a partition's batch, or when its connection ended without
  the answer; its begin is when that attempt was *sent*;
* where nothing could be sent, it opens at a failed connect to the leader or at metadata without
  one, if a record was ready by then; its begin is when that record became *ready*;
* what this host gave up because of a 7 with an offset on the same connection says nothing: the
  broker lives and leads, and somebody else's follower is late;
* it ends when the next acceptance reaches this host; the next begins no earlier than that.

It counts the records that have left by the sequence numbers in the frames, so it is for runs in
which no partition restarted its numbering.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from struct import unpack_from
from typing import Any

from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

TopicPartition = tuple[str, int]

# A refusal opens a gap if it means: elsewhere, not now, or in doubt. 10, 18 and the codes of a bad
# record say nothing about the partition, and 7 with an offset is a stall.
ELSEWHERE = frozenset((3, 5, 6, 9, 13, 56, 72, 74, 75, 100, 103))
NOT_NOW = frozenset((19, 2, 8, 14, 15, 16, 51, 89))
IN_DOUBT = frozenset((20, -1, 45, 47, 49, 53, 59, 90, 120))
REJECTIONS = ELSEWHERE | NOT_NOW | IN_DOUBT
ACCEPTED = frozenset((0, 46))


@dataclass(slots=True)
class WireRequest:
    """One request as the wire saw it. Times are None where it did not come to that."""

    conn: int
    node_id: int
    token: int
    api_key: int
    api_version: int
    frame: bytes
    sent_at: float
    arrived_at: float | None = None  # at the broker
    answered_at: float | None = None  # the answer reached this host
    answer: bytes = b""
    failed_at: float | None = None  # the host learned that no answer will come
    given_up: bool = False  # `failed_at` is when this host gave the connection up itself


@dataclass(slots=True)
class WireConnect:
    """One connect: to whom, when, and how it ended (`loss` None: it stood)."""

    conn: int
    node_id: int
    role: str
    began_at: float
    ended_at: float | None = None
    loss: str | None = None
    closed_at: float | None = None  # this host gave it up or learned of its end


@dataclass(frozen=True, slots=True)
class WireAttempt:
    """One batch of one partition in one request."""

    tp: TopicPartition
    request: WireRequest
    records: int  # its last record's number, from 1, in the partition's present numbering
    code: int | None  # of the answer; None: no answer came
    base_offset: int = -1
    hint: tuple[int, int] | None = None  # leader and epoch that a refusal named

    @property
    def sent_at(self) -> float:
        """When it was handed to the connection."""
        return self.request.sent_at

    @property
    def ended_at(self) -> float | None:
        """When this host learned what became of it."""
        return self.request.answered_at if self.code is not None else self.request.failed_at

    @property
    def accepted(self) -> bool:
        """The broker has it."""
        return self.code in ACCEPTED

    @property
    def appended(self) -> bool:
        """The broker has it, and some follower does not yet: 7 with an offset."""
        return self.code == 7 and self.base_offset >= 0

    @property
    def rejected(self) -> bool:
        """Answered with a no that means: elsewhere, not now, or in doubt."""
        return self.code in REJECTIONS or (self.code == 7 and self.base_offset < 0)


@dataclass(slots=True)
class ExpectedGap:
    """A gap as the wire tells it. `end_s` is None while it lasts."""

    begin_s: float
    opened_s: float  # the first signal
    errors: list[str] = field(default_factory=list)
    end_s: float | None = None
    accepted_sent_s: float | None = None  # when the attempt that ended it was sent


def attempts(requests: Sequence[WireRequest]) -> list[WireAttempt]:
    """All batches that were sent, in the order of sending, with what was answered."""
    names = _topic_names(requests)
    found = []
    for request in requests:
        if request.api_key != ProduceRequest.API_KEY:
            continue
        produce = ProduceRequest.decode(request.frame, version=request.api_version, header=True)
        told = _produce_answers(request, names)
        for topic in produce.topic_data:
            for part in topic.partition_data:
                tp = (topic.name or names[topic.topic_id], part.index)
                base_sequence, count = unpack_from(">ii", bytes(part.records), 53)
                found.append(
                    WireAttempt(tp, request, base_sequence + count, *told.get(tp, (None,)))
                )
    return found


def expected_gaps(
    requests: Sequence[WireRequest],
    connects: Iterable[WireConnect],
    ready_s: Mapping[TopicPartition, Sequence[float]],
) -> dict[TopicPartition, list[ExpectedGap]]:
    """The gaps of every partition. `ready_s`: when each record was due (taken + linger)."""
    tracks = {tp: _Track(times) for tp, times in ready_s.items()}
    # at one instant answers come first: what is sent at that instant follows from them
    events: list[tuple[float, int, Any]] = []
    found = attempts(requests)
    stuck = {(a.request.conn, a.ended_at) for a in found if a.appended}
    for attempt in found:
        events.append((attempt.sent_at, 2, attempt))
        for_a_lane = attempt.request.given_up and (attempt.request.conn, attempt.ended_at) in stuck
        if attempt.ended_at is not None and not for_a_lane:
            events.append((attempt.ended_at, 0, attempt))
    events += [
        (request.answered_at, 0, request)
        for request in requests
        if request.api_key == MetadataRequest.API_KEY and request.answered_at is not None
    ]
    events += [(c.ended_at, 1, c) for c in connects if c.loss and c.ended_at is not None]
    for at, order, subject in sorted(events, key=lambda event: event[:2]):
        match subject:
            case WireAttempt():
                tracks[subject.tp].attempt(at, subject, is_end=order == 0)
            case WireRequest():
                _metadata(tracks, subject, at)
            case WireConnect():
                for track in tracks.values():
                    if track.leader == subject.node_id:
                        track.nothing_sendable(at, "CONNECT")
    return {tp: track.gaps for tp, track in tracks.items()}


@dataclass(slots=True)
class _Track:
    """One partition on its way through the log."""

    ready_s: Sequence[float]  # of its records, in the order of taking
    sent: int = 0  # records that have left at least once
    leader: int = -1
    epoch: int = -1
    gaps: list[ExpectedGap] = field(default_factory=list)

    def attempt(self, at: float, attempt: WireAttempt, *, is_end: bool) -> None:
        """It was sent, or its end became known."""
        if not is_end:
            self.sent = max(self.sent, attempt.records)
        elif attempt.accepted:
            if self.gaps and self.gaps[-1].end_s is None:
                self.gaps[-1].end_s = at
                self.gaps[-1].accepted_sent_s = attempt.sent_at
        elif attempt.code is None or attempt.rejected:
            self._signal(at, attempt.sent_at, str(attempt.code or "CONNECTION"))
        if is_end and attempt.hint is not None and attempt.hint[1] > self.epoch:
            self.leader, self.epoch = attempt.hint

    def named(self, leader: int, epoch: int) -> None:
        """Metadata names a leader that is alive."""
        if epoch >= self.epoch:
            self.leader, self.epoch = leader, epoch

    def nothing_sendable(self, at: float, error: str) -> None:
        """No leader, or no connection to it: a signal if a record is ready that never left."""
        if self.sent < len(self.ready_s) and self.ready_s[self.sent] <= at:
            self._signal(at, self.ready_s[self.sent], error)

    def _signal(self, at: float, begin_s: float, error: str) -> None:
        last = self.gaps[-1] if self.gaps else None
        if last is None or last.end_s is not None:
            after_s = begin_s if last is None or last.end_s is None else last.end_s
            self.gaps.append(ExpectedGap(max(begin_s, after_s), at, [error]))
            return
        if last.opened_s == at:  # several attempts came to nothing at once: the first counts
            last.begin_s = min(last.begin_s, begin_s)
        last.errors.append(error)


def _produce_answers(
    request: WireRequest, names: Mapping[Any, str]
) -> dict[TopicPartition, tuple[int, int, tuple[int, int] | None]]:
    if request.answered_at is None:
        return {}
    told = {}
    for topic in _decode(ProduceResponse, request).responses:
        for part in topic.partition_responses:
            leader = part.current_leader
            named = leader is not None and leader.leader_id >= 0
            hint = (leader.leader_id, leader.leader_epoch) if named else None
            tp = (topic.name or names[topic.topic_id], part.index)
            told[tp] = (part.error_code, part.base_offset, hint)
    return told


def _metadata(tracks: Mapping[TopicPartition, _Track], request: WireRequest, at: float) -> None:
    response = _decode(MetadataResponse, request)
    alive = {broker.node_id for broker in response.brokers}
    for topic in response.topics:
        for part in topic.partitions:
            track = tracks.get((topic.name, part.partition_index))
            if track is None:
                continue
            if part.leader_id in alive:
                track.named(part.leader_id, part.leader_epoch if request.api_version >= 7 else 0)
            else:
                track.nothing_sendable(at, "NO_LEADER")


def _topic_names(requests: Iterable[WireRequest]) -> dict[Any, str]:
    """By topic id: Produce from v13 on names topics by id only."""
    names: dict[Any, str] = {}
    for k in requests:
        if k.api_key == MetadataRequest.API_KEY and k.answer and k.api_version >= 10:
            for topic in _decode(MetadataResponse, k).topics:
                names[topic.topic_id] = topic.name
    return names


def _decode(cls: Any, request: WireRequest) -> Any:
    stream = BytesIO(request.answer)
    versioned = cls[request.api_version]
    versioned.parse_header(stream)
    return versioned.decode(stream.read())
