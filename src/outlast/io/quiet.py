"""Keeps kafka-python's log lines about our connections out of the user's log.

kafka.net writes two ERROR lines for each connection that ends; while a broker is down that is a
flood. What happened is told once, as a fact. Lines of other threads, and DEBUG lines, pass.
"""

from __future__ import annotations

import logging

_LOGGERS = (
    *("kafka.net.connection", "kafka.net.transport", "kafka.net.selector", "kafka.net.inet"),
    *("kafka.net.socks5", "kafka.net.http_connect", "kafka.net.sasl.oauth"),
    *("kafka.net.sasl.plain", "kafka.net.sasl.scram", "kafka.net.sasl.gssapi"),
    *("kafka.net.sasl.msk", "kafka.protocol", "kafka.protocol.parser"),
)


class Quiet(logging.Filter):
    """Drops the lines that are written by `threads`."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def install(self) -> None:
        """Attach it to kafka-python's loggers; a second time has no effect."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line passes."""
        return record.levelno <= logging.DEBUG or record.thread not in self.threads


quiet = Quiet()
