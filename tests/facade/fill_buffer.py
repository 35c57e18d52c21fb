"""Fill a producer's buffer while no broker lives, and tell how the process grew.

Run by test_memory.py in a process of its own:
    fill_buffer.py BOOTSTRAP TOPIC RECORDS VALUE_BYTES BUFFER_BYTES MAX_BLOCK_MS
Says "ready" once it has written one record, waits for a line (the brokers are dead now), sends, and
says what it saw as one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import psutil
from kafka.errors import KafkaTimeoutError

from outlast import KafkaProducer

SAMPLE_EVERY = 2_000
BLOCKED_CALLS = 3


def main() -> None:
    bootstrap, topic = sys.argv[1:3]
    records, value_bytes, buffer_bytes, max_block_ms = map(int, sys.argv[3:7])
    process = psutil.Process()
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, buffer_memory=buffer_bytes, max_block_ms=max_block_ms
    )
    producer.send(topic, b"first").get(timeout=30)
    print("ready", flush=True)
    sys.stdin.readline()

    gc.collect()
    before_bytes = largest_bytes = process.memory_info().rss
    futures: list[Any] = []
    blocked_s: list[float] = []
    while len(futures) < records and len(blocked_s) < BLOCKED_CALLS:
        began_s = time.monotonic()
        try:
            # The number makes each value an object of its own, as an application's values are.
            futures.append(producer.send(topic, b"%0*d" % (value_bytes, len(futures))))
        except KafkaTimeoutError:
            blocked_s.append(time.monotonic() - began_s)
        if len(futures) % SAMPLE_EVERY == 0:
            largest_bytes = max(largest_bytes, process.memory_info().rss)
    largest_bytes = max(largest_bytes, process.memory_info().rss)
    told = {
        "grown_bytes": largest_bytes - before_bytes,
        "taken": len(futures),
        "done": sum(future.is_done for future in futures),
        "blocked_s": blocked_s,
    }
    print(json.dumps(told), flush=True)
    producer.close(timeout=0)


if __name__ == "__main__":
    main()
