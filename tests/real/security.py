"""What the tests of TLS and SASL share: secrets, tokens, and whoever looks for them."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from outlast import KafkaProducer

MARK = "OPEN-SESAME"  # is in every secret and in every record


def token(user: str = "alice", lasts_s: float = 600.0) -> str:
    """A JWS without a signature, as Kafka's own validator takes it."""

    def part(claims: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()

    now = time.time()
    claims = {"sub": user, "iat": now - 1000, "exp": now + lasts_s, "jti": MARK}
    return f"{part({'alg': 'none'})}.{part(claims)}."


class Provider(AbstractTokenProvider):
    """Gives tokens; a test makes it hang, fail or give bad ones."""

    def __init__(self, lasts_s: float = 600.0) -> None:
        super().__init__()
        self.lasts_s = lasts_s
        self.failing = False
        self.go = threading.Event()
        self.go.set()
        self.asked: list[float] = []
        self.at_once = self.most_at_once = 0
        self.given: list[str] = []

    def token(self) -> str:
        self.asked.append(time.monotonic())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.go.wait(30)
            if self.failing:
                raise RuntimeError("the identity server is away")
            self.given.append(token(lasts_s=self.lasts_s))
            return self.given[-1]
        finally:
            self.at_once -= 1


class Eavesdropper(logging.Handler):
    """Hears every log line of every logger, from DEBUG on."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.lines: list[str] = []
        self.loud = 0  # lines of WARNING and above

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{self.format(record)} {record.args!r}")
        self.loud += record.levelno >= logging.WARNING


@contextmanager
def listening() -> Iterator[Eavesdropper]:
    """With all loggers at their most talkative."""
    names = ("", "kafka", "outlast")
    before = {name: logging.getLogger(name).level for name in names}
    handler = Eavesdropper()
    logging.getLogger().addHandler(handler)
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class Watched:
    """A producer, and all that a user can see of it."""

    def __init__(self, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.undelivered: list[Any] = []
        self.seen: list[str] = []
        self.producer = KafkaProducer(
            metrics_registry=self.registry,
            tracer_provider=provider,
            send_spans="always",
            on_undelivered=self.undelivered.append,
            **settings,
        )

    def failed(self, error: BaseException) -> None:
        """Keep what a traceback would show, causes included."""
        told: BaseException | None = error
        while told is not None:
            self.seen += [
                str(told),
                repr(told),
                repr(told.args),
                repr(getattr(told, "attempts", "")),
            ]
            told = told.__cause__ or told.__context__

    def everything(self) -> str:
        """All of it as one text."""
        producer = self.producer
        looked = [producer, producer.health(), producer.gaps(), producer.stalls()]
        looked += [producer.metrics(), self.undelivered, generate_latest(self.registry)]
        spans = [span.to_json() for span in self.spans.get_finished_spans()]
        return "\n".join([*self.seen, *map(repr, looked), str(producer), *spans])


def secrets_in(text: str, *more: str) -> list[str]:
    """Which secrets are in it, as they are or in base 64."""
    forms = [form for secret in (MARK, *more) for form in (secret, *_in_base64(secret))]
    return [form for form in forms if form in text]


def _in_base64(secret: str) -> Iterator[str]:
    """What is the same of it wherever it stands in the text that was encoded."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret.encode()).decode().rstrip("=")
        yield encoded[(0, 2, 3)[before] : -1]
