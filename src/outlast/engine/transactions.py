"""Transactions: what the application wants, what coordinators are asked for it, and what follows.

Theory
------
A transaction is the partitions that the coordinator of its id was told of, and an end. Records of
a partition may be sent once the coordinator knows it; a commit may be asked for once every record
is acknowledged. Coordinators are asked one thing at a time, and each may be asked again: they keep
what they have decided, and find their own decision in a repeat. So there is one *errand*
(`errands`), run until it is answered, whoever coordinates meanwhile.

The producer id and epoch are one for all partitions (`transactional_partition`). Where numbering is
lost, or something that was sent is not certain, the transaction *fails*: nothing more is sent, and
after `abort_transaction()` the producer takes its next epoch (InitProducerId with its own id:
KIP-360). That keeps late copies out, and all partitions number from 0.

A coordinator that refuses the epoch has seen a newer producer of the same id, or given up the
transaction, its time being over. Before that time it is the first, and final. After it the next
epoch is asked for: that fails only if there is a newer one (sooner it would abort what that has).

Rules
-----
* Calls change the state by the table (`transaction_state`), here and nowhere else. A call that
  waits asks again with its ticket. Its result stays until somebody has taken it, so that a call
  that ran into its time-out may be made again.
* An errand that cannot be run opens a gap of the unit `txn:<transactional id>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kafka import errors as kafka_errors

from outlast.engine import txn_errands, txn_wire
from outlast.engine.batch import Batch
from outlast.engine.errands import Errand, Errands
from outlast.engine.failure_reasons import FailureReason
from outlast.engine.hub import Hub
from outlast.engine.intake import Waiting
from outlast.engine.partition import Partition
from outlast.engine.transaction import PendingOffsets, Transaction
from outlast.engine.transaction_state import TABLE, Event, State, after
from outlast.engine.transactional_partition import TransactionalPartition
from outlast.engine.txn_errands import END, INIT
from outlast.engine.txn_verdict import TxnJudgement, TxnVerdict
from outlast.engine.txn_waiters import Waiters, again
from outlast.engine.txn_wire import TRANSACTION, Group, Key, Offset, Producer, Told

TopicPartition = tuple[str, int]
NO_PRODUCER = Producer()
THEN = "Call abort_transaction(), then begin again"


class Transactions:
    """The transactions of one producer."""

    def __init__(self, hub: Hub, transactional_id: str, timeout_ms: int) -> None:
        self._hub = hub
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._key: Key = (TRANSACTION, transactional_id)
        self.unit: TopicPartition = (f"txn:{transactional_id}", -1)
        self.state = State.UNINITIALIZED
        self._producer, self._present = NO_PRODUCER, Transaction()
        self._speaks_second = self.second = False  # KIP-890's protocol: brokers; the present one
        self._error: Exception | None = None  # why it cannot be committed, or why a call failed
        self._ended = False  # the call under way has its result, and nobody has taken it
        self.waiters = Waiters()
        self.errands = Errands(hub, self.unit, self._refused)
        self._failed_text = ""  # of a record, until the transaction has failed by it
        self.attention = False  # another step should be made soon

    def __repr__(self) -> str:
        return f"<Transactions {self._id!r} {self.state.value} {self._producer} {self.errands!r}>"

    def learn(
        self, api_versions: Mapping[int, tuple[int, int]], features: Mapping[str, int]
    ) -> None:
        """What a broker speaks: the next transaction goes by it."""
        self._speaks_second = txn_wire.speaks_second(api_versions, features)

    # --- the application's calls ----------------------------------------------------------------

    def check_send(self) -> None:
        """Records are taken within a transaction only.

        Raises:
            IllegalStateError: there is none.
            KafkaError: it has failed, or the producer is fenced.
        """
        if self.state is State.IN_TRANSACTION:
            return
        if self.state is State.ABORTABLE:
            raise kafka_errors.KafkaError(
                f"The transaction of {self._id!r} has failed, and takes no more: call "
                f"abort_transaction(). ({self._error})"
            ) from self._error
        self._raise_failure()
        after(self.state, Event.SEND)

    def init(self, now: float, ticket: int = 0) -> Waiting | None:
        """Take the transactional id over: whoever had it is fenced, and its transaction aborted."""
        return self._call(Event.INIT, State.INITIALIZING, now, ticket)

    def begin(self, now: float) -> None:
        """What is sent from now on belongs to one transaction."""
        self._raise_failure()
        self.state = after(self.state, Event.BEGIN)
        self._present, self.second = Transaction(begun_s=now), self._speaks_second

    def commit(self, now: float, ticket: int = 0) -> Waiting | None:
        """All of it becomes visible, or the call raises."""
        return self._call(Event.COMMIT, State.COMMITTING, now, ticket)

    def abort(self, now: float, ticket: int = 0) -> Waiting | None:
        """Nothing of it becomes visible."""
        return self._call(Event.ABORT, State.ABORTING, now, ticket)

    def end_open(self, now: float, ticket: int = 0) -> Waiting | None:
        """The producer is being closed: whatever is open comes to an end."""
        if self.state is State.COMMITTING:
            return self.commit(now, ticket)
        is_open = self.state in (State.IN_TRANSACTION, State.ABORTABLE, State.ABORTING)
        return self.abort(now, ticket) if is_open else None

    def send_offsets(
        self, offsets: Mapping[TopicPartition, Offset], group: Group, now: float
    ) -> Callable[[float, int], Waiting | None]:
        """Begin to make offsets part of the transaction; returns what tells whether they are."""
        self._raise_failure()
        self.state = after(self.state, Event.OFFSETS)
        entry = PendingOffsets(group, offsets, done=not offsets)
        present = self._present
        present.offsets.append(entry)

        def look(_now: float, ticket: int) -> Waiting | None:
            if entry.done:
                self.waiters.forget(ticket)
                return None
            self._raise_failure(ticket)
            if present is not self._present or self.state is not State.IN_TRANSACTION:
                self.waiters.forget(ticket)
                after(self.state, Event.OFFSETS)  # raises, unless the next one has begun
                raise kafka_errors.KafkaError("The transaction of these offsets has ended")
            return self.waiters.wait(present, ticket)

        self.step(now)
        return look

    def _call(self, event: Event, doing: State, now: float, ticket: int) -> Waiting | None:
        """A call that ends with a state: begin it, or take its result, or wait for it."""
        if self.waiters.was_told(ticket, event):
            return None
        if self.state is doing and self._ended:
            self._take_result(event, ticket)
            return None
        if (event, self.state, self._present.end_asked) == (Event.ABORT, State.COMMITTING, False):
            self.state = after(self.state, Event.FAILED)  # nobody was asked to commit
        if event is not Event.ABORT or self.state is State.FATAL:
            self._raise_failure(ticket)
        following = after(self.state, event)
        if following is not doing:
            self.waiters.forget(ticket)
            return None  # there is nothing to do
        if self.state is not doing:
            self._ended, self._present.outcome = False, None
            self.state = following
            if event is Event.COMMIT:
                self._flush()
            elif event is Event.ABORT:
                self._drop_records(now)
            self.step(now)
            if self._ended:
                self._take_result(event, ticket)
                return None
            if event is not Event.ABORT:
                self._raise_failure(ticket)
        return self.waiters.wait(self._present, ticket)

    def _take_result(self, event: Event, ticket: int) -> None:
        self.waiters.forget(ticket)
        error, self._error = self._error, None
        self._ended = False
        self._present.outcome = event, error
        if error is None:
            self.state = after(self.state, Event.STARTED if event is Event.INIT else Event.ENDED)
            return
        self.state = after(self.state, Event.LOST)
        raise error

    def gave_up(self, ticket: int, now: float) -> int:
        """A call ran into its time-out. Returns a coordinator's last error code; 0: none."""
        if self.waiters.forget(ticket):  # its gap tells, if there is one
            self._hub.tell(self._hub.recorder.send_refused(self.unit, now))
        return self.errands.last_error_code

    def _raise_failure(self, ticket: int = 0) -> None:
        if self._error is not None and self.state in (State.ABORTABLE, State.FATAL):
            self.waiters.forget(ticket)
            raise again(self._error)

    # --- records --------------------------------------------------------------------------------

    def admits(self, place: Partition) -> bool:
        """Whether the partition's records may be sent now; if not yet, it is being seen to."""
        if self.state not in (State.IN_TRANSACTION, State.COMMITTING):
            return False
        if self.second:  # the leader tells the coordinator
            self._present.begun = True
            self._present.added.add(place.tp)
        if place.tp in self._present.added:
            assert isinstance(place, TransactionalPartition)
            place.renew(self._producer.producer_id, self._producer.epoch)
            return True
        if place.tp not in self._present.wanted:
            self._present.wanted[place.tp] = place
            self.attention = True
        return False

    def record_refused(self, text: str) -> None:
        """A record was not taken, and its future tells: the same."""
        if self.state is State.IN_TRANSACTION:
            self._failed_text = self._failed_text or text

    def record_failed(self, batch: Batch) -> None:
        """Records failed for good: the transaction cannot be committed any more. (It fails in the
        next step, when nobody is in the middle of settling.)
        """
        result = batch.result
        assert result is not None
        failure = result.failure or next(iter(result.record_failures.values()))
        if self.state in (State.IN_TRANSACTION, State.COMMITTING) and not self._failed_text:
            self._failed_text = f"{batch.topic}-{batch.partition}: {failure.message}"

    def lost_numbering(self) -> None:
        """A partition's numbering is broken: the next epoch is needed."""
        self._present.broken = True

    def _flush(self) -> None:
        for place in self._hub.busy.values():
            place.queue.end_linger()
        self._hub.agenda.look_at_all(self._hub.busy)

    def _drop_records(self, now: float) -> None:
        """Nothing of an aborted transaction is sent any more."""
        self._error = None
        self._give_up_records(FailureReason("aborted", None, "its transaction was aborted"), now)
        if self.errands.present is None or self.errands.present.what != INIT:
            self.errands.drop()  # also a commit that nobody was asked for yet

    def _fail(self, error: Exception, now: float) -> None:
        """The transaction fails: nothing of it is sent any more."""
        if (self.state, Event.FAILED) not in TABLE:
            return
        self.state = after(self.state, Event.FAILED)
        if self.state is not State.ABORTABLE:
            return
        self._error = self._error or error
        why = FailureReason("aborted", None, f"its transaction has failed: {error}")
        self._give_up_records(why, now)

    def _abortable(self, text: str) -> Exception:
        text = f"The transaction of {self._id!r} {text}.{self._present.doubt} {THEN}"
        return kafka_errors.KafkaError(text)  # type: ignore[no-any-return]

    def _fence(self, now: float) -> None:
        self.state = after(self.state, Event.FENCED)
        self._error = kafka_errors.ProducerFencedError(
            f"a newer producer has taken over transactional_id={self._id!r}: this one is done "
            f"with; close it.{self._present.doubt}"
        )
        self.errands.start(None, now)
        self._give_up_records(FailureReason("fenced", 90, str(self._error)), now)

    def _end(self, error: Exception | None = None) -> None:
        """The call under way has its result."""
        self._ended, self._error = True, error
        self._wake()

    def _give_up_records(self, why: FailureReason, now: float) -> None:
        for place in list(self._hub.busy.values()):
            self._hub.settle(place, place.fail_all(why), now)
        self._wake()

    def _wake(self) -> None:
        """Those who wait look again."""
        self._hub.out.completions += self.waiters.granted()

    # --- errands --------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        """Run the errand that is due, if there is one."""
        self.attention = False
        if self._failed_text:
            text, self._failed_text = f"cannot be committed: {self._failed_text}", ""
            self._fail(self._abortable(text), now)
        if self.errands.present is None:
            self.errands.start(self._next_errand(), now)
        self.errands.step(now)

    def _next_errand(self) -> Errand | None:
        present = self._present
        if self._ended:
            return None
        match self.state:
            case State.INITIALIZING:
                return self._init_errand()
            case State.IN_TRANSACTION | State.COMMITTING:
                if present.wanted:
                    return self._partitions_errand()
                for entry in present.offsets:
                    if not entry.done:
                        return self._offsets_errand(entry)
                if self.state is State.IN_TRANSACTION or self._hub.busy:
                    return None
                return self._end_errand(commit=True)
            case State.ABORTING if not self._hub.busy:
                if present.broken and not present.begun:
                    return self._init_errand()
                return self._end_errand(commit=False)
        return None

    def _init_errand(self) -> Errand:
        return txn_errands.take_over(self._key, self._timeout_ms, self._who, self._initialized)

    def _who(self) -> Producer:
        return self._producer

    def _initialized(self, response: Any, now: float) -> None:
        self._producer = Producer(response.producer_id, response.producer_epoch)
        if self.state is State.INITIALIZING:
            self._end()
        elif self.state is State.ABORTING:  # that is done by it; batches may be under way
            self._present.begun = self._present.broken = False
        else:  # it was to prove whether the producer is fenced: its transaction is over
            text = "is over: the coordinator ended it, most likely after transaction_timeout_ms="
            self._fail(self._abortable(f"{text}{self._timeout_ms}"), now)
            self._present.begun = self._present.broken = False

    def _partitions_errand(self) -> Errand:
        wanted = dict(self._present.wanted)
        self._present.begun = True

        def done(_response: Any, _now: float) -> None:
            for tp, place in wanted.items():
                self._present.wanted.pop(tp, None)
                self._present.added.add(tp)
                self._hub.agenda.changed(place)

        return txn_errands.add_partitions(self._key, self._who, wanted, done)

    def _offsets_errand(self, entry: PendingOffsets) -> Errand:
        self._present.begun = True

        def added(_response: Any, _now: float) -> None:
            entry.added = True

        def done(_response: Any, _now: float) -> None:
            entry.done = True
            self._wake()

        if entry.added or self.second:
            return txn_errands.commit_offsets(self._key, self._who, entry, done, second=self.second)
        return txn_errands.add_group(self._key, self._who, entry, added)

    def _end_errand(self, *, commit: bool) -> Errand | None:
        if not self._present.begun:
            self._end()  # the coordinator has never heard of it
            return None
        ask = partial(self._ask_for_end, commit=commit)
        return txn_errands.end(self._key, ask, self._has_ended)

    def _ask_for_end(self, *, commit: bool) -> Any:
        self._present.end_asked |= commit
        return txn_wire.end(self._id, self._producer, commit=commit, second=self.second)

    def _has_ended(self, response: Any, _now: float) -> None:
        self._present.begun = False
        if self.second:
            self._producer = Producer(response.producer_id, response.producer_epoch)
            self._present.broken = False
        if not self._present.broken:
            self._end()

    def _refused(self, errand: Errand, judgement: TxnJudgement, told: Told, now: float) -> None:
        """A coordinator gave an answer that will be the same next time."""
        if errand.what == END and errand.left and self.state is State.COMMITTING:
            self._present.may_be_committed = True
        if judgement.verdict is not TxnVerdict.PROVE:
            self._refused_for_good(errand, judgement, told, now)
        elif judgement.error_code in (47, 90) and self._is_fenced(errand, now):
            self._fence(now)
        elif errand.what != INIT:  # its time may be over: is there a newer producer? (see above)
            self._present.broken = True
            self.errands.start(self._init_errand(), now)
        else:  # it has forgotten us: begin as a new one
            self._producer = NO_PRODUCER
            self.errands.again(errand, judgement, now)

    def _is_fenced(self, errand: Errand, now: float) -> bool:
        """Whether there is no other reason to refuse the epoch than a newer producer: to ask would
        abort what that has open. Who has no epoch yet is the newer one.
        """
        if errand.what == INIT:
            return self._producer != NO_PRODUCER
        return self.second or now - self._present.begun_s < self._timeout_ms / 1000

    def _refused_for_good(
        self, errand: Errand, judgement: TxnJudgement, told: Told, now: float
    ) -> None:
        self.errands.start(None, now)
        about, doubt = f" for {told.about}" if told.about else "", self._present.doubt
        text = f"{errand.what} was refused{about}: {told.message or judgement.name}.{doubt}"
        error = kafka_errors.for_code(judgement.error_code)(text)
        if self.state in (State.INITIALIZING, State.ABORTING):
            if errand.what == INIT:
                self._producer = NO_PRODUCER  # whoever calls init_transactions() takes it over
            self._end(error)  # the coordinator's own time-out will abort what was begun
        else:
            self._present.wanted.clear()
            self._fail(error, now)
