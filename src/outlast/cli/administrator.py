"""An admin client of kafka-python for commands: always closed, and it says why it failed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from kafka.admin import KafkaAdminClient

NO_ANSWER = "no answer in time"


class LastWords(logging.Handler):
    """Keeps why the last connection failed, which kafka-python's exceptions seldom say."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, without what names the connection."""
        text = record.getMessage()
        if text.startswith(("Connection failed: ", "Bootstrap connection to ")):
            text = text.partition(" failed: ")[2].partition(" (backoff ")[0]
            self.reason = NO_ANSWER if "timed out" in text else text.rpartition("Error: ")[2]


@contextlib.contextmanager
def opened(heard: LastWords, configs: Mapping[str, Any]) -> Iterator[KafkaAdminClient]:
    """An admin client with these configs; `heard` listens from before it begins until it ends.

    Raises:
        KafkaError: no broker answers, or none as it should.
    """
    log = logging.getLogger("kafka")
    log.addHandler(heard)
    admin = KafkaAdminClient.__new__(KafkaAdminClient)  # ours even if it fails to begin
    try:
        admin.__init__(**configs)
        yield admin
    finally:
        log.removeHandler(heard)
        if hasattr(admin, "_client"):
            admin._closed = False
            admin.close()
