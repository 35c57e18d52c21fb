"""Keeps kafka-python's log lines about our connections out of the user's log.

kafka.net writes two ERROR lines for each connection that ends; while a broker is down that is a
flood. What happened is told once, as a fact. And its DEBUG lines show requests as they are, with
passwords, tokens and records in them. Lines of other threads pass, and so do DEBUG lines of those
parts that see no contents.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

_LOGGERS = (
    *("kafka.net.connection", "kafka.net.transport", "kafka.net.selector", "kafka.net.inet"),
    *("kafka.net.socks5", "kafka.net.http_connect", "kafka.net.sasl.oauth"),
    *("kafka.net.sasl.plain", "kafka.net.sasl.scram", "kafka.net.sasl.gssapi"),
    *("kafka.net.sasl.msk", "kafka.protocol", "kafka.protocol.parser"),
)
_SEE_NO_CONTENTS = frozenset({"kafka.net.transport", "kafka.net.selector", "kafka.net.inet"})


class Quiet(logging.Filter):
    """Drops the lines that are written by `threads`."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def install(self) -> None:
        """Attach it to kafka-python's loggers; a second time has no effect."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """For the time of a `with`, this thread is one of them."""
        thread = threading.get_ident()
        self.threads.add(thread)
        try:
            yield
        finally:
            self.threads.discard(thread)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        if record.thread not in self.threads:
            return True
        return record.levelno <= logging.DEBUG and record.name in _SEE_NO_CONTENTS


quiet = Quiet()
