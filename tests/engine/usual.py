"""Settings as most tests of the engine want them, and a random source that does nothing."""

from __future__ import annotations

import math

USUAL = {
    "bootstrap": (("localhost", 9092),),
    "client_id": "c",
    "acks": -1,
    "idempotent": True,
    "retries": math.inf,
    "max_in_flight": 5,
    "batch_bytes": 16384,
    "linger_s": 0.0,
    "compression": 0,
    "max_request_bytes": 1 << 20,
    "buffer_bytes": 32 << 20,
    "delivery_timeout_s": 120.0,
    "request_timeout_s": 30.0,
    "retry_backoff_s": 0.1,
    "retry_backoff_max_s": 1.0,
    "reconnect_backoff_s": 0.05,
    "reconnect_backoff_max_s": 1.0,
    "silence_timeout_s": 1.0,
    "ack_wait_s": 1.0,
    "metadata_max_age_s": 300.0,
    "connections_max_idle_s": 540.0,
    "connection_setup_timeout_s": 10.0,
    "allow_auto_create_topics": True,
    "retry_wait": None,
    "retry_stop": None,
    "reconnect_wait": None,
    "metadata_wait": None,
}


class Still:
    """A random source in the middle: jitter is then nothing."""

    def random(self):
        return 0.5

    def randrange(self, _stop, /):
        return 0
