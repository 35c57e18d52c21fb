"""What coordinators' answers say."""

from __future__ import annotations

import pytest
from kafka.protocol.producer import InitProducerIdResponse

from outlast.engine.txn_wire import told_of_producer


@pytest.mark.parametrize(
    ("code", "producer_id", "epoch", "told"),
    [
        (0, 7, 0, 0),
        (0, 0, 3, 0),
        (0, -1, 0, -1),
        (0, 7, -1, -1),
        (0, 7, 2**15, -1),
        (53, -1, -1, 53),
    ],
)
def test_success_without_a_producer_id_is_none(
    code: int, producer_id: int, epoch: int, told: int
) -> None:
    answer = InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    assert told_of_producer(answer).error_code == told
