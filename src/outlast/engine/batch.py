"""Records on their way: one batch of one partition, its attempts and its outcome.

Rules:
* A batch's bytes never change once it was sent, except that a restart or a renumbering in place
  stamps another producer epoch or base sequence (rules 1, 7a). Compression runs once.
* Certainty belongs to the attempt. A batch is *unsure* when an attempt was doubtful or left and
  none was accepted; no later refusal takes that doubt away, only a 0 does.
* The engine and the application meet at two slots: `delivery`, which the driver fills with what
  the records' futures share, and `result`, which is set once, when the batch is settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from uuid import UUID

from outlast.engine.failure_reasons import FailureReason
from outlast.engine.messages import (
    AttemptRecord,
    AttemptState,
    Connection,
    Failure,
    Outcome,
)
from outlast.engine.record_batch import (
    Headers,
    Record,
    RecordBatchBuilder,
    read_records,
    stamp,
)
from outlast.engine.run import Run

ATTEMPTS_KEPT = 7  # from the start, and again from the end
NOT_NUMBERED = -1


class Attempt:
    """One try to deliver one batch."""

    __slots__ = (
        "base_offset",
        "connection",
        "error",
        "leader_epoch",
        "sent_s",
        "stalled",
        "state",
        "topic_id",
    )

    def __init__(
        self, connection: Connection, leader_epoch: int, topic_id: UUID | None, sent_s: float
    ) -> None:
        self.connection = connection
        self.leader_epoch = leader_epoch
        self.topic_id = topic_id
        self.sent_s = sent_s
        self.state = AttemptState.OPEN
        self.error = ""
        self.stalled = False  # answered 7 with an offset
        self.base_offset = -1  # told with a refusal: where that leader appended it (S2)

    def same_leader(self, other: Attempt) -> bool:
        """Whether both went to the same node while it led at the same epoch."""
        return (
            self.connection.node_id == other.connection.node_id
            and self.leader_epoch == other.leader_epoch
        )

    def __repr__(self) -> str:
        return (
            f"<Attempt {self.connection} epoch={self.leader_epoch} {self.state.value} {self.error}>"
        )


@dataclass(slots=True)
class Result:
    """The final outcome of a batch's records.

    `failure` is None when they were accepted; `base_offset` is then the first record's offset, or
    −1 where the broker could not tell it. `record_failures` (by index in the batch) speak of
    single records and override `failure`.
    """

    base_offset: int = -1
    log_append_time_ms: int = -1
    failure: Failure | None = None
    record_failures: Mapping[int, Failure] = field(default_factory=dict)


class Batch:
    """Records of one partition that travel together and are settled together."""

    __slots__ = (
        "attempts",
        "attempts_left_out",
        "base_sequence",
        "builder",
        "charge_bytes",
        "closed",
        "compressing",
        "count",
        "created_s",
        "data",
        "delivery",
        "doubt",
        "first_index",
        "gaps",
        "open_attempt",
        "plain_bytes",
        "proved",
        "result",
        "retries",
        "tp",
        "unknown_errors",
    )

    def __init__(self, tp: tuple[str, int], now: float) -> None:
        self.tp = tp
        self.builder: RecordBatchBuilder | None = RecordBatchBuilder()
        self.count = 0
        self.created_s = now  # its first record's append
        self.charge_bytes = 0
        self.closed = False  # takes no more records
        self.compressing = False  # somebody does it, with the lock released
        self.data: bytearray | None = None  # the record batch as sent
        self.plain_bytes = 0  # its size before compression, once it is sealed
        self.base_sequence = NOT_NUMBERED
        self.attempts: list[Attempt] = []
        self.attempts_left_out = 0
        self.open_attempt: Attempt | None = None
        self.doubt = False  # an attempt was doubtful or left
        self.proved: tuple[int, int] | None = None  # in the log: (base_offset, log_append_time)
        self.retries = 0  # used up, of `retries`
        self.unknown_errors = 0  # UNKNOWN_SERVER_ERROR has a limit of its own
        self.gaps: tuple[int, ...] = ()  # numbers of the gaps that it met
        self.delivery: object | None = None
        self.first_index = 0
        self.result: Result | None = None

    def __repr__(self) -> str:
        topic, partition = self.tp
        number = "unnumbered" if self.base_sequence < 0 else f"seq={self.base_sequence}"
        flags = "".join(
            f" {name}"
            for name, on in (
                ("in-flight", self.open_attempt),
                ("unsure", self.unsure),
                ("proved", self.proved),
                ("settled", self.result),
            )
            if on
        )
        return f"<Batch {topic}-{partition} {number} records={self.count}{flags}>"

    # --- records ---

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.tp[0]

    @property
    def partition(self) -> int:
        """The partition's index."""
        return self.tp[1]

    @property
    def size_bytes(self) -> int:
        """Bytes of the record batch: as it will be uncompressed, or as it was sealed."""
        return len(self.data) if self.data is not None else self._building().size_bytes

    def append(
        self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> int:
        """Take one record; returns the batch's size with it."""
        builder = self.builder
        assert builder is not None, "a sealed batch takes no record"
        builder.append(timestamp_ms, key, value, headers)
        self.count += 1
        return builder.size_bytes

    def extend(self, run: Run, begin: int, end: int) -> None:
        """Take these records of a run."""
        builder = self._building()
        keys = repeat(None) if run.keys is None else run.keys[begin:end]
        builder.extend(run.timestamp_ms, keys, run.values[begin:end], run.headers)
        self.count = builder.count

    def compressed(self, compression: int) -> bytearray:
        """The bytes, compressed by the codec of this number. The batch must be closed."""
        assert self.closed
        return self._building().seal(compression)

    def seal(self, data: bytearray) -> None:
        """These are the bytes, for good; no record joins any more."""
        assert self.data is None, f"{self} is sealed already"
        self.closed = True
        self.compressing = False
        self.plain_bytes = self._building().size_bytes
        self.data = data
        self.builder = None

    def records(self) -> list[Record]:
        """The records, decoded back from the bytes. No record joins any more."""
        if self.data is None:  # it was never sent
            self.closed = True
            self.seal(self.compressed(0))
        assert self.data is not None
        return read_records(self.data)

    def pieces(self, starts: Sequence[int]) -> tuple[Batch, ...]:
        """Closed batches that begin at these indices and together have this one's records, age,
        gaps and charge. This one is done with.
        """
        assert starts[0] == 0
        ends = [*starts[1:], self.count]
        records = self.records()
        return tuple(
            self._piece(records[begin:end], begin) for begin, end in zip(starts, ends, strict=True)
        )

    def _piece(self, records: Sequence[Record], begin: int) -> Batch:
        piece = Batch(self.tp, self.created_s)
        for record in records:
            piece.append(record.timestamp_ms, record.key, record.value, record.headers)
        piece.closed = True
        piece.first_index = self.first_index + begin
        piece.delivery = self.delivery
        piece.attempts = list(self.attempts)
        piece.attempts_left_out = self.attempts_left_out
        piece.retries = self.retries
        piece.unknown_errors = self.unknown_errors
        piece.gaps = self.gaps
        last = begin + piece.count == self.count
        piece.charge_bytes = (
            self.charge_bytes if last else self.charge_bytes * piece.count // (self.count - begin)
        )
        self.charge_bytes -= piece.charge_bytes
        return piece

    def _building(self) -> RecordBatchBuilder:
        assert self.builder is not None, f"{self} is sealed"
        return self.builder

    # --- attempts ---

    @property
    def sent(self) -> bool:
        """Whether any attempt was made."""
        return bool(self.attempts)

    @property
    def unsure(self) -> bool:
        """May be in a log, and nothing proved that it is."""
        return self.doubt and self.proved is None

    @property
    def pending(self) -> bool:
        """Still to be sent: neither on its way, nor in the log, nor failed."""
        return self.open_attempt is None and self.proved is None and self.result is None

    def number(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool = False,
    ) -> None:
        """Give the batch its place in the partition's numbering."""
        assert self.data is not None
        assert self.open_attempt is None
        self.base_sequence = base_sequence
        stamp(self.data, producer_id, producer_epoch, base_sequence, transactional=transactional)

    def begin_attempt(self, attempt: Attempt) -> None:
        """The batch was handed to a connection."""
        assert self.open_attempt is None, f"{self} is in flight already"
        self.open_attempt = attempt
        self.attempts.append(attempt)
        if len(self.attempts) > 2 * ATTEMPTS_KEPT:
            del self.attempts[ATTEMPTS_KEPT]
            self.attempts_left_out += 1

    def end_attempt(self, state: AttemptState, error: str) -> Attempt:
        """The answer came, or the connection ended without it."""
        attempt = self.open_attempt
        assert attempt is not None, f"{self} is not in flight"
        self.open_attempt = None
        attempt.state = state
        attempt.error = error
        if state in (AttemptState.DOUBTFUL, AttemptState.LEFT):
            self.doubt = True
        return attempt

    def withdraw_attempt(self) -> None:
        """The request was never handed over: as if the attempt had not been made."""
        assert self.open_attempt is not None
        assert self.open_attempt is self.attempts[-1]
        self.attempts.pop()
        self.open_attempt = None

    # --- outcome ---

    @property
    def outcome_if_failed(self) -> Outcome:
        """What a failure now would have to say about the records."""
        if not self.attempts:
            return Outcome.NEVER_SENT
        if self.doubt or self.open_attempt is not None:
            return Outcome.UNKNOWN
        return Outcome.NOT_ACCEPTED

    def failure(self, why: FailureReason, unix_offset_s: float) -> Failure:
        """A failure with this batch's outcome and attempts."""
        return Failure(
            kind=why.kind,
            error_code=why.error_code,
            message=why.message,
            outcome=self.outcome_if_failed,
            attempts=tuple(
                AttemptRecord(
                    at_unix_s=a.sent_s + unix_offset_s,
                    node_id=a.connection.node_id,
                    connection=str(a.connection),
                    leader_epoch=a.leader_epoch,
                    state=a.state,
                    error=a.error,
                )
                for a in self.attempts
            ),
            attempts_left_out=self.attempts_left_out,
        )
