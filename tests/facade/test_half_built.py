"""A producer that cannot be built leaves nothing behind: no thread, no descriptor."""

from __future__ import annotations

import gc
import threading
from typing import Any

import psutil
import pytest
from kafka.errors import KafkaConfigurationError

from outlast import KafkaProducer

BAD = [
    {"nonsense": 1},
    {"acks": 7},
    {"bootstrap_servers": ""},
    {"delivery_timeout_ms": 1},
    {"on_gap": 3},
    {"metrics_registry": 3},
    {
        "security_protocol": "SSL",
        "ssl_cafile": "/nonexistent",
    },  # found last, when all else is right
    {"security_protocol": "SSL", "ssl_ciphers": "NOPE"},
]


def held() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds()


@pytest.mark.parametrize("keywords", BAD, ids=",".join)
def test_nothing_stays_of_a_producer_that_was_refused(keywords: dict[str, Any]) -> None:
    before = held()
    with pytest.raises(KafkaConfigurationError):
        KafkaProducer(**{"bootstrap_servers": "127.0.0.1:1", **keywords})
    assert held() == before
