"""A sender among brokers whose every answer the test words itself.

Connections come up at once, and what is asked is answered as one would expect, but for Produce
requests and those that the test keeps for itself (`keep`, by API). They wait in `asked` until the
test answers them: with the bytes of a version, as the driver would hand them over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ProduceResponse,
    TxnOffsetCommitResponse,
)

from outlast.engine.batch import Batch
from outlast.engine.intake import Waiting
from outlast.engine.messages import (
    Compress,
    Connect,
    Connection,
    Disconnect,
    Fact,
    Granted,
    Inspect,
    Loss,
    Outcome,
    Role,
    Send,
    Settled,
)
from outlast.engine.sender import Sender
from outlast.engine.settings import Settings
from tests.engine.test_metadata import answer, part, topic
from tests.engine.usual import USUAL

PRODUCE, METADATA, FIND_COORDINATOR, INIT = 0, 3, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, COMMIT_OFFSETS = 24, 25, 26, 28
FIRST: Mapping[int, tuple[int, int]] = {PRODUCE: (3, 9)}
SECOND = {PRODUCE: (3, 12), END_TXN: (0, 5), COMMIT_OFFSETS: (0, 5)}  # KIP-890's protocol
LEADER, COORDINATOR = 1, 2
GZIP = 1

Topics = ProduceResponse.TopicProduceResponse
Part = Topics.PartitionProduceResponse
Added = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Committed = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Call = Callable[[float, int], Waiting | None]


class Talk:
    """One producer and two brokers: LEADER leads all partitions of topic `t`, COORDINATOR
    coordinates all transactions and groups.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        keep: Collection[int] = (),
        versions: Mapping[int, tuple[int, int]] = FIRST,
        **different: Any,
    ) -> None:
        self.now = 0.0
        self.topics = ["t"]
        self.partitions = partitions  # of each
        self.keep = {PRODUCE, *keep}
        self.versions = versions
        self.refusing: set[int | Role] = set()  # nodes, or roles, whose connects are refused
        self.hanging: set[int | Role] = set()  # those whose connects hang
        self.leaders: dict[int, tuple[int, int]] = {}  # node and epoch, where not (LEADER, 1)
        self.isr: dict[int, tuple[int, ...]] = {}  # where it is not the leader alone
        self.compresses_slowly = False  # then `compress` is called by the test
        self.compressing: list[Batch] = []
        self.throttle_ms = 0  # told with each answer to Produce
        self.coordinator = COORDINATOR
        self.asked: list[Send] = []
        self.coming: list[Connection] = []  # that hang
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.inspect: list[Connection] = []
        self.granted: list[int] = []
        self.settled: list[Batch] = []
        self.facts: list[Fact] = []
        self.sender = Sender(Settings(**(USUAL | different)), random.Random(1), 0.0, 0.0)

    # --- the application ------------------------------------------------------------------------

    def send(
        self, partition: int | None = 0, value: bytes = b"v", topic: str = "t"
    ) -> Batch | Waiting:
        """One record; the topic is learnt first if it must be."""
        record = (topic, partition, None, value, (), 0)
        taken = self.sender.append(*record, self.now)
        if isinstance(taken, Waiting) and taken.reason == "metadata":
            self.pass_time()
            taken = self.sender.append(*record, self.now, taken.ticket)
        return taken

    def request(self, *partitions: int) -> list[Batch]:
        """One record for each of these, all to be sent at once."""
        taken = [self.send(partition) for partition in partitions]
        self.sender.flush(self.now)
        self.pass_time()
        return [batch for batch in taken if isinstance(batch, Batch)]

    def batch(self, records: int = 1, partition: int = 0) -> Batch:
        """A batch of so many records, that may be sent."""
        taken = [self.send(partition, b"v%d" % i) for i in range(records)]
        batch = taken[0]
        assert isinstance(batch, Batch)
        assert all(other is batch for other in taken)
        self.sender.flush(self.now)
        self.pass_time()
        return batch

    def call(self, call: Call) -> Waiting | None:
        """A call of a transaction: asked again when it is told to. None: it is done."""
        waiting = call(self.now, 0)
        self.pass_time()
        return waiting and self.again(call, waiting)

    def again(self, call: Call, waiting: Waiting) -> Waiting | None:
        """The call that waits, if it has been told that something happened."""
        while waiting.ticket in self.granted:
            self.granted.remove(waiting.ticket)
            still = call(self.now, waiting.ticket)
            if still is None:
                return None
            assert still.ticket == waiting.ticket
            self.pass_time()
        return waiting

    # --- time and the driver --------------------------------------------------------------------

    def pass_time(self, seconds: float = 0.001) -> None:
        """Let so much pass, and tick whenever the engine wants it."""
        end_s = self.now + seconds
        self.obey()
        while (due_s := self.sender.next_deadline(self.now)) is not None and due_s <= end_s:
            self.now = due_s
            self.sender.tick(self.now)
            self.obey()
        self.now = end_s

    def obey(self) -> None:
        """Do what the engine says, until it says nothing more."""
        while out := self.sender.take():
            self.facts += out.facts
            for completion in out.completions:
                match completion:
                    case Settled(batch):
                        self.settled.append(batch)
                    case Granted(ticket):
                        self.granted.append(ticket)
                    case Compress(batch):
                        self.compressing.append(batch)
                        if not self.compresses_slowly:
                            self.compress()
            for command in out.commands:
                match command:
                    case Connect(connection):
                        self._connect(connection)
                    case Disconnect(connection):
                        self.closed.append(connection)
                        self._forget(connection)
                    case Inspect(connection):
                        self.inspect.append(connection)
                    case Send():
                        self._take(command)

    def compress(self) -> None:
        """What is being compressed is done."""
        batches, self.compressing = self.compressing, []
        for left, batch in zip(range(len(batches) - 1, -1, -1), batches, strict=True):
            self.sender.compressed(batch, batch.compressed(GZIP), self.now, more=left > 0)

    def _connect(self, connection: Connection) -> None:
        kinds = {connection.node_id, connection.role}
        if kinds & self.refusing:
            self.sender.disconnected(connection, Loss.REFUSED, "refused", self.now)
        elif kinds & self.hanging:
            self.coming.append(connection)
        else:
            self.opened.append(connection)
            features = {"transaction.version": 2} if self.versions is SECOND else {}
            self.sender.connected(connection, self.versions, self.now, features)

    def connecting(self, node_id: int, role: Role) -> Connection:
        """The last connect of this kind that hangs."""
        kind = node_id, role
        return next(c for c in reversed(self.coming) if (c.node_id, c.role) == kind)

    def _forget(self, connection: Connection) -> None:
        self.asked = [send for send in self.asked if send.connection != connection]

    def _take(self, send: Send) -> None:
        if send.request.API_KEY not in self.keep:
            self._respond(send, self.usual(send.request))
        elif send.expects_answer:
            self.asked.append(send)

    def _respond(self, send: Send, response: Any) -> None:
        self.sender.responded(send.connection, send.token, response, self.now)

    # --- brokers --------------------------------------------------------------------------------

    def usual(self, request: Any, code: int = 0) -> Any:
        """What a broker answers, with this code wherever it is about something."""
        match request.API_KEY:
            case 3:
                parts = [
                    part(p, *self.leaders.get(p, (LEADER, 1)), isr=self.isr.get(p, (LEADER,)))
                    for p in range(self.partitions)
                ]
                topics = [
                    topic(name, *parts, topic_id=UUID(int=number))
                    for number, name in enumerate(self.topics, 1)
                ]
                return answer(*topics, nodes=(LEADER, COORDINATOR))
            case 10:
                return found(self.coordinator, code)
            case 22:
                return numbered(7, request.producer_epoch + 1, code)
            case 24:
                asked = request.v3_and_below_topics
                topics = [
                    Added(
                        name=topic.name,
                        results_by_partition=[
                            Added.AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=code
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in asked
                ]
                return through_bytes(
                    AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics), 3
                )
            case 25:
                return through_bytes(AddOffsetsToTxnResponse(error_code=code), 3)
            case 26:
                second = self.versions is SECOND
                return through_bytes(
                    EndTxnResponse(
                        error_code=code,
                        producer_id=request.producer_id,
                        producer_epoch=request.producer_epoch + 1,
                    ),
                    5 if second else 3,
                )
            case 28:
                asked = request.topics
                topics = [
                    Committed(
                        name=topic.name,
                        partitions=[
                            Committed.TxnOffsetCommitResponsePartition(
                                partition_index=entry.partition_index, error_code=code
                            )
                            for entry in topic.partitions
                        ],
                    )
                    for topic in asked
                ]
                return through_bytes(TxnOffsetCommitResponse(topics=topics), 3)
        raise AssertionError(request)

    def next_asked(self, api: int = PRODUCE) -> Send:
        """The oldest request of this API that is not answered."""
        assert self.apis().count(api), f"nobody asks {api}: {self.asked}"
        return self.asked[self.apis().index(api)]

    def apis(self) -> list[int]:
        """What is asked and not answered."""
        return [send.request.API_KEY for send in self.asked]

    def answer(self, send: Send, response: Any) -> None:
        """The broker answers a request in these words: the oldest on its connection."""
        assert send is next(s for s in self.asked if s.connection == send.connection)
        self.asked.remove(send)
        self._respond(send, response)
        self.pass_time()

    def answers(self, api: int, code: int = 0) -> Any:
        """The broker answers the oldest request of this API; returns the request."""
        send = self.next_asked(api)
        self.answer(send, self.usual(send.request, code))
        return send.request

    def produced(
        self,
        *parts: Any,
        version: int = 9,
        role: Role | None = None,
        send: Send | None = None,
    ) -> None:
        """The broker answers the oldest Produce request (of this lane), or this one."""
        if send is None:
            send = self.next_asked() if role is None else self.on(role)[0]
        response = ProduceResponse(
            responses=[Topics(name="t", partition_responses=list(parts))],
            throttle_time_ms=self.throttle_ms,
        )
        self.answer(send, through_bytes(response, version))

    def on(self, role: Role) -> list[Send]:
        """What is asked over connections of this role and not answered."""
        return [send for send in self.asked if send.connection.role is role]

    def lose(
        self,
        role: Role,
        loss: Loss = Loss.CLOSED,
        unsent: Collection[int] = (),
        node_id: int | None = None,
    ) -> None:
        """The last connection of this role (to this node) breaks; requests of these tokens were
        never handed to it.
        """
        nodes = {node_id} if node_id is not None else {c.node_id for c in self.opened}
        connection = next(c for c in reversed(self.opened) if c.role is role and c.node_id in nodes)
        self._forget(connection)
        self.sender.disconnected(connection, loss, loss.value, self.now, unsent)
        self.pass_time()


# --- answers ------------------------------------------------------------------------------------


def through_bytes(response: Any, version: int) -> Any:
    """A response as the driver would hand it over."""
    return type(response).decode(bytes(response.encode(version=version)), version=version)


def told(
    code: int = 0,
    *,
    index: int = 0,
    offset: int = -1,
    errors: Mapping[int, str | None] | None = None,
    message: str | None = None,
    hint: tuple[int, int] | None = None,
) -> Any:
    """What a Produce answer says of one partition."""
    return Part(
        index=index,
        error_code=code,
        base_offset=offset,
        log_append_time_ms=-1,
        log_start_offset=0,
        record_errors=[
            Part.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=text)
            for i, text in (errors or {}).items()
        ],
        error_message=message,
        current_leader=hint and Part.LeaderIdAndEpoch(leader_id=hint[0], leader_epoch=hint[1]),
    )


def found(node_id: int, code: int = 0) -> Any:
    """An answer to FindCoordinator."""
    response = FindCoordinatorResponse(
        error_code=code, node_id=node_id, host=f"h{node_id}", port=9000 + node_id
    )
    return through_bytes(response, 3)


def numbered(producer_id: int, epoch: int, code: int = 0) -> Any:
    """An answer to InitProducerId."""
    response = InitProducerIdResponse(
        error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    return through_bytes(response, 4)


def outcome(batch: Batch) -> Outcome | None:
    """None: delivered."""
    assert batch.result is not None, "not settled"
    return None if batch.result.failure is None else batch.result.failure.outcome
