"""A logging handler that ships log records to Kafka: nobody waits for it, and it feeds no loop.

    outlast cluster --topic logs:3                  # in another terminal
    python examples/log_shipping.py                 # ships a thousand lines, and tells how it went

In an application:

    logging.getLogger().addHandler(KafkaLogHandler("logs"))

* **It does not block.** Who logs puts a line into a queue and goes on; a thread of the handler's
  sends it, and may wait for metadata or for room. The queue is bounded: what finds it full is
  counted in `dropped`, and a line of its own says so as soon as there is room again.
* **It does not loop.** What outlast and kafka-python log is about this very way and is not sent
  there: each line about a failure would be one more record to fail. Give them another handler.
* **It does not lose in silence.** A line that Kafka did not take goes to `spill`, which is stderr.

Add it in the process that logs: a fork takes no threads along, so workers add their own.

`OUTLAST_BOOTSTRAP_SERVERS` names the brokers, localhost:9092 if it is not set.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any, TextIO

from kafka.errors import KafkaError

from outlast import KafkaProducer, Undelivered

OWN = ("outlast", "kafka")  # loggers whose lines tell of shipping
CLOSE_S = 10.0


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """What readers of the topic get."""
        line = {
            "at": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class KafkaLogHandler(logging.Handler):
    """Ships what is logged.

    Args:
        topic: where to.
        waiting_max: lines in the queue, at most.
        spill: gets the lines that Kafka did not take.
        settings: the producer's.

    Attributes:
        dropped: lines that found the queue full.
    """

    def __init__(
        self, topic: str, *, waiting_max: int = 10_000, spill: TextIO = sys.stderr, **settings: Any
    ) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.dropped = 0
        self._topic = topic
        self._waiting_max = waiting_max
        self._spill = spill
        self._waiting: SimpleQueue[str | None] = SimpleQueue()  # signal handlers may log, too
        self._closed = False
        self._producer = KafkaProducer(
            **{"linger_ms": 50, "metrics": None, "on_undelivered": self._undelivered, **settings}
        )
        self._shipper = threading.Thread(target=self._ship, name="log-shipper", daemon=True)
        self._shipper.start()
        atexit.register(self.close)  # logging's own exit handler comes after the producer's end

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits. The lock of `logging.Handler` is held, so it counts alone."""
        if record.name.partition(".")[0] in OWN:
            return
        if self._closed or self._waiting.qsize() >= self._waiting_max:
            self.dropped += 1
            return
        try:
            self._waiting.put(self.format(record))
        except Exception:
            self.handleError(record)  # as all handlers do: a bad format string is no reason to end

    def close(self) -> None:
        """Ship what waits, for ten seconds at most; the rest goes to `spill`."""
        self.acquire()  # no line comes behind the None
        already, self._closed = self._closed, True
        self._waiting.put(None)
        self.release()
        if already:
            return
        atexit.unregister(self.close)
        ends_s = time.monotonic() + CLOSE_S
        self._shipper.join(CLOSE_S)
        self._producer.close(max(0.0, ends_s - time.monotonic()))
        self._shipper.join()  # a closed producer refuses at once
        super().close()

    def _ship(self) -> None:
        told = 0
        line: str | None = ""
        while line is not None:
            line = self._waiting.get()
            if (dropped := self.dropped) > told:
                self._send(json.dumps({"at": time.time(), "dropped": dropped - told}))
                told = dropped
            if line is not None:
                self._send(line)

    def _send(self, line: str) -> None:
        try:
            self._producer.send(self._topic, line.encode("utf-8", "backslashreplace"))
        except KafkaError as error:  # no room, no metadata, closed, too large: it was not taken
            self._tell(f"{type(error).__name__}: {line}")

    def _undelivered(self, record: Undelivered) -> None:
        line = (record.value or b"").decode("utf-8", "replace")
        self._tell(f"{record.outcome.value}: {line}")

    def _tell(self, text: str) -> None:
        print(text, file=self._spill)


def main() -> None:
    """Log a thousand lines as an application would, and tell how long that took."""
    handler = KafkaLogHandler("logs")
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    begun_s = time.perf_counter()
    for number in range(1000):
        log.info("order %d is paid", number)
    took_ms = (time.perf_counter() - begun_s) * 1000
    handler.close()
    print(f"logged 1000 lines in {took_ms:.0f} ms, dropped {handler.dropped}")


if __name__ == "__main__":
    main()
