"""What transactional producers ask of the coordinator of their id.

InitProducerId 0–5: with a transactional id the coordinator takes the producer over; without one any
broker gives a new producer id (`apis`).
AddPartitionsToTxn 0–5: from 4 as brokers ask it, for many transactions, or only to verify.
AddOffsetsToTxn 0–4: adds the group's partition of `__consumer_offsets`.
EndTxn 0–5: from 5 the end raises the epoch, and the answer tells the next one (KIP-890).

Old versions are told 47 where new ones get 90. Not the coordinator: 16; it reads its log: 14; a
change is being written, or a transaction ends: 51; the log cannot be written: 15. An `Error` fault
answers in place of the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from outlast.testing import coordinator_log, transactions
from outlast.testing.apis import (
    DEFERRED,
    HANDLERS,
    INIT_PRODUCER_ID,
    Handler,
    Later,
    fault_code,
    new_producer_id,
    no_producer_id,
    serve_init_producer_id,
)
from outlast.testing.codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from outlast.testing.coordinator import Decided, TransactionSeat
from outlast.testing.coordinator_log import OFFSETS, TRANSACTIONS
from outlast.testing.transactions import Decision, Partition, Producer, Transaction

if TYPE_CHECKING:
    from outlast.testing.cluster import MockCluster
    from outlast.testing.connection import Exchange
    from outlast.testing.node import Node

ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN = 24, 25, 26


FENCED_FROM = {INIT_PRODUCER_ID: 4, ADD_PARTITIONS_TO_TXN: 2, ADD_OFFSETS_TO_TXN: 2, END_TXN: 2}
BUMP_VERSION = 5  # EndTxn
BROKER_VERSION = 4  # AddPartitionsToTxn


def _seat(node: Node, transactional_id: str) -> TransactionSeat | int:
    """Where this node coordinates the id, or why it does not."""
    if not transactional_id:
        return INVALID_REQUEST
    seat = coordinator_log.find_seat(node, TRANSACTIONS, transactional_id)
    assert isinstance(seat, (TransactionSeat, int)), seat
    return seat


def _told(exchange: Exchange, code: int) -> int:
    """The code as this version of the API knows it."""
    old = exchange.version < FENCED_FROM[exchange.record.api_key]
    return INVALID_PRODUCER_EPOCH if code == PRODUCER_FENCED and old else code


# --- InitProducerId -----------------------------------------------------------------------------


def serve_transactional_init(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Take a transactional id over; without one, a new producer id."""
    request = exchange.request
    key: str | None = request.transactional_id
    if key is None:
        return serve_init_producer_id(cluster, node, exchange, now)
    given = Producer(request.producer_id, request.producer_epoch)
    code = fault_code(cluster, node, exchange, now)
    if not code and exchange.version >= 3 and (given.producer_id >= 0) != (given.epoch >= 0):
        code = INVALID_REQUEST
    timeout_ms = request.transaction_timeout_ms
    if not code and key and not 0 < timeout_ms <= cluster.settings.transaction_timeout_max_ms:
        code = INVALID_TRANSACTION_TIMEOUT
    if code:
        return no_producer_id(code)
    seat = _seat(node, key)
    if isinstance(seat, int):
        return no_producer_id(seat)
    known = seat.known.get(key)
    spare_id = -1
    if known is None or known.exhausted:
        fresh_id = new_producer_id(cluster, node, now)
        if fresh_id is None:
            return no_producer_id(COORDINATOR_LOAD_IN_PROGRESS)
        spare_id = fresh_id

    def question(known: Transaction | None) -> Decision:
        known = known or transactions.begun(key, spare_id, timeout_ms / 1000)
        who = given if exchange.version >= 3 and given.producer_id >= 0 else None
        return transactions.take_over(known, who, timeout_ms / 1000, spare_id)

    def done(code: int, after: Transaction | None, now: float) -> None:
        if code == 0 and after is not None and after.state.ending:
            code = CONCURRENT_TRANSACTIONS  # an old one is aborted first
        if code or after is None:
            response = no_producer_id(_told(exchange, code))
        else:
            response = InitProducerIdResponse(
                throttle_time_ms=0,
                error_code=0,
                producer_id=after.producer_id,
                producer_epoch=after.epoch,
            )
        cluster.answer(exchange, response, now)

    seat.decide(key, question, done, now)
    return DEFERRED


# --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------


class _Asked:
    """One transaction of an AddPartitionsToTxn request, and the code of each partition."""

    __slots__ = ("codes", "key", "topics", "verify_only", "who")

    def __init__(self, key: str, who: Producer, topics: Any, *, verify_only: bool) -> None:
        self.key = key
        self.who = who
        self.topics = topics
        self.verify_only = verify_only
        self.codes: dict[Partition, int] = {}

    @property
    def partitions(self) -> list[Partition]:
        """All that it names."""
        return [(topic.name, index) for topic in self.topics for index in topic.partitions]

    def settle(self, code: int) -> None:
        """The same for every partition."""
        self.codes = dict.fromkeys(self.partitions, code)

    def results(self) -> list[Any]:
        """As the answer has it."""
        topic_result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        result = topic_result.AddPartitionsToTxnPartitionResult
        return [
            topic_result(
                name=topic.name,
                results_by_partition=[
                    result(
                        partition_index=index,
                        partition_error_code=self.codes[(topic.name, index)],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in self.topics
        ]


def serve_add_partitions(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Partitions of an ongoing transaction, or the first ones of the next."""
    asked = list(_asked(exchange))
    left = [len(asked)]
    code = fault_code(cluster, node, exchange, now)

    def one_is_done(now: float) -> None:
        left[0] -= 1
        if left[0] == 0:
            cluster.answer(exchange, _added(exchange, asked), now)

    for one in asked:
        if code:
            one.settle(code)
            one_is_done(now)
        else:
            _add(node, exchange, one, one_is_done, now)
    return DEFERRED if asked else _added(exchange, asked)


def _asked(exchange: Exchange) -> Iterable[_Asked]:
    request = exchange.request
    if exchange.version < BROKER_VERSION:
        who = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        key, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
        yield _Asked(key, who, topics, verify_only=False)
        return
    for one in request.transactions:
        who = Producer(one.producer_id, one.producer_epoch)
        yield _Asked(one.transactional_id, who, one.topics, verify_only=one.verify_only)


def _add(node: Node, exchange: Exchange, one: _Asked, done: Any, now: float) -> None:
    partitions = one.partitions
    strange = [p for p in partitions if node.view.state(*p) is None]
    if strange:
        one.settle(OPERATION_NOT_ATTEMPTED)
        one.codes.update(dict.fromkeys(strange, UNKNOWN_TOPIC_OR_PARTITION))
        done(now)
        return
    seat = _seat(node, one.key)
    if isinstance(seat, int):
        one.settle(seat)
        done(now)
    elif one.verify_only:
        known = seat.known.get(one.key)
        one.codes = {p: transactions.verify(known, one.who, p) for p in partitions}
        done(now)
    else:

        def decided(code: int, _: Transaction | None, now: float) -> None:
            one.settle(_told(exchange, code))
            done(now)

        question = _adding(one.who, partitions, now)
        seat.decide(one.key, question, decided, now)


def _adding(who: Producer, partitions: Iterable[Partition], now: float) -> Any:
    wanted = list(partitions)
    return lambda known: transactions.add(known, who, wanted, now)


def _added(exchange: Exchange, asked: list[_Asked]) -> ApiMessage:
    if exchange.version < BROKER_VERSION:
        return AddPartitionsToTxnResponse(
            throttle_time_ms=0, results_by_topic_v3_and_below=asked[0].results()
        )
    result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
    results = [result(transactional_id=one.key, topic_results=one.results()) for one in asked]
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0, error_code=0, results_by_transaction=results
    )


def serve_add_offsets(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """The offsets of a group go with the transaction."""
    request = exchange.request
    coordinator_log.coordinator_of(cluster, node, OFFSETS, request.group_id, now)  # makes the topic
    partition = (OFFSETS, coordinator_log.partition_at(node, OFFSETS, request.group_id))
    code = fault_code(cluster, node, exchange, now)
    seat = _seat(node, request.transactional_id)
    if not code and partition[1] < 0:
        code = COORDINATOR_NOT_AVAILABLE
    if code or isinstance(seat, int):
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code or seat)

    def done(code: int, _: Transaction | None, now: float) -> None:
        response = AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=_told(exchange, code))
        cluster.answer(exchange, response, now)

    who = Producer(request.producer_id, request.producer_epoch)
    seat.decide(request.transactional_id, _adding(who, [partition], now), done, now)
    return DEFERRED


# --- EndTxn -------------------------------------------------------------------------------------


def serve_end_txn(
    cluster: MockCluster, node: Node, exchange: Exchange, now: float
) -> ApiMessage | Later:
    """Commit or abort. Answered when that is decided for good; the markers follow."""
    request, bump = exchange.request, exchange.version >= BUMP_VERSION
    code = fault_code(cluster, node, exchange, now)
    if code:
        return _ended(code, None)
    seat = _seat(node, request.transactional_id)
    if isinstance(seat, int):
        return _ended(seat, None)
    who = Producer(request.producer_id, request.producer_epoch)
    known = seat.known.get(request.transactional_id)
    spare_id = -1
    if bump and known is not None and known.exhausted:
        fresh_id = new_producer_id(cluster, node, now)
        if fresh_id is None:
            return _ended(COORDINATOR_LOAD_IN_PROGRESS, None)
        spare_id = fresh_id

    def question(known: Transaction | None) -> Decision:
        if not bump:
            return transactions.end(known, who, commit=request.committed)
        return transactions.end_and_bump(known, who, commit=request.committed, spare_id=spare_id)

    def done(code: int, after: Transaction | None, now: float) -> None:
        cluster.answer(exchange, _ended(_told(exchange, code), after if bump else None), now)

    if not bump:
        _check_first(seat, request, who, question, done, now)
    else:
        seat.decide(request.transactional_id, question, done, now)
    return DEFERRED


def _check_first(
    seat: TransactionSeat, request: Any, who: Producer, question: Any, done: Decided, now: float
) -> None:
    """Up to version 4 a stranger is told so even while a change is being written."""
    known = seat.known.get(request.transactional_id)
    code = transactions.stranger(known, who)
    if code:
        done(code, known, now)
    else:
        seat.decide(request.transactional_id, question, done, now)


def _ended(code: int, after: Transaction | None) -> ApiMessage:
    producer = Producer(-1, -1) if code or after is None else after.producer
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=code,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


HANDLERS[INIT_PRODUCER_ID] = Handler(InitProducerIdRequest, (0, 5), serve_transactional_init)
HANDLERS[ADD_PARTITIONS_TO_TXN] = Handler(AddPartitionsToTxnRequest, (0, 5), serve_add_partitions)
HANDLERS[ADD_OFFSETS_TO_TXN] = Handler(AddOffsetsToTxnRequest, (0, 4), serve_add_offsets)
HANDLERS[END_TXN] = Handler(EndTxnRequest, (0, 5), serve_end_txn)
