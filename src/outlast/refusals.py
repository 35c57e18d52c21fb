"""Records that were not taken: their futures tell, where kafka-python's would."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from outlast.errors import never_sent
from outlast.future import Delivery, Hearing
from outlast.transactions import TransactionCalls

if TYPE_CHECKING:
    from outlast.many_records import RecordParts

log = logging.getLogger("outlast.producer")


class Refusals:
    """What one producer does with records that it cannot take.

    Args:
        name: the producer's, for the log.
        hearing: whom futures tell.
        transactions: one that is open cannot be committed without the record.
        driver: runs what gives records back.
    """

    def __init__(
        self, name: str, hearing: Hearing, transactions: TransactionCalls, driver: Any
    ) -> None:
        self._name = name
        self._hearing = hearing
        self._transactions = transactions
        self._driver = driver
        self._told_s: dict[str, float] = {}  # when the log was told that a topic is refused

    def __repr__(self) -> str:
        return f"<Refusals topics={list(self._told_s)}>"

    def one(
        self, error: Exception, topic: str, partition: int | None, record: RecordParts
    ) -> Delivery:
        """Not taken, and the future tells: as in kafka-python, where the cluster will not have the
        topic.
        """
        return self.many(error, topic, partition, 1, [record], by_cluster=True)

    def many(
        self,
        error: Exception,
        topic: str,
        partition: int | None,
        count: int,
        records: Iterable[RecordParts],
        *,
        by_cluster: bool,
    ) -> Delivery:
        """For `send_many`, also where others were taken before. `records` are read if somebody
        wants them back.
        """
        from outlast.assembly import EPISODE_S, Record
        from outlast.io.thread import Refused

        since_s = time.monotonic() - self._told_s.get(topic, -EPISODE_S)
        if by_cluster and since_s >= EPISODE_S:
            self._told_s[topic] = time.monotonic()
            log.error("%s: cannot write to topic %s: %s", self._name, topic, str(error))
        topic_partition = TopicPartition(topic, partition)
        delivery = Delivery.refused(topic_partition, never_sent(error), count, self._hearing)
        self._transactions.refused(str(error))
        if self._hearing.on_undelivered is not None:
            given_back = [Record(index, *record) for index, record in enumerate(records)]
            give_back = partial(delivery.give_back, given_back)
            self._driver.give_back(Refused(delivery, count, give_back))
        return delivery
