"""Workers of gunicorn, each with its producer, that answer at once and lose nothing when they end.

    outlast cluster --topic clicks:6                # in another terminal
    gunicorn --chdir examples --preload --workers 2 --threads 4 gunicorn_workers:app

    curl -i localhost:8000/home

A click is not worth waiting for: 202 means that this worker has it in its buffer. What becomes of
it is told where it matters: what could not be delivered goes to the log, whole. With `--preload`
the producer is made before the workers are, and a fork gives each worker an engine, connections and
a producer id of its own; without it each worker makes a producer. Both work.

A worker that ends (SIGTERM, SIGHUP, `--max-requests`) delivers what it has. A producer does so by
itself for as long as records get through; `close` below also waits for a leader that is just being
elected. It takes less than gunicorn's `--graceful-timeout` (30 s).

`OUTLAST_BOOTSTRAP_SERVERS` names the brokers, localhost:9092 if it is not set.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable
from typing import Any

from kafka.errors import KafkaError

from outlast import KafkaProducer, Undelivered

CLOSE_S = 20.0
StartResponse = Callable[[str, list[tuple[str, str]]], object]

log = logging.getLogger("clicks")


def keep(record: Undelivered) -> None:
    """On the producer's thread, so it is quick about it."""
    log.error("not delivered (%s): %r", record.outcome.value, record.value)


# Metrics of several processes want prometheus_client's multiprocess mode; here there are none.
producer = KafkaProducer(linger_ms=20, max_block_ms=1000, metrics=None, on_undelivered=keep)
atexit.register(producer.close, CLOSE_S)


def app(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """A WSGI application: each path that is asked for is a click."""
    path = environ.get("PATH_INFO", "/").encode("latin-1")
    status = "202 Accepted"
    try:
        producer.send("clicks", path)
    except KafkaError:  # the buffer is full, or no broker was reached yet: nothing was taken
        status = "503 Service Unavailable"
    start_response(status, [("Content-Length", "0")])
    return [b""]
