"""Puts a producer together: engine, driver, observers.

Rule: imported when the first producer is made, not with the package. All that brings engine,
network and observers along comes through here; who only imports does not wait for it.
"""

from __future__ import annotations

import selectors
from dataclasses import dataclass
from typing import Any

from outlast.closing import Closing, close_each
from outlast.config import DEFAULTS, KAFKA_PYTHONS, LONGEST_S, Config
from outlast.engine.batch import Batch
from outlast.engine.record_batch import Record
from outlast.figures import Figures, MeteredDelivery
from outlast.future import Delivery, Hearing
from outlast.io.metering import METERING
from outlast.io.thread import Driver
from outlast.observe.log import EPISODE_S
from outlast.observe.otel import OtelObserver
from outlast.observe.send_spans import SendSpans, TracedHeaders
from outlast.observers import Bootstrap, Observer, OneByOne, observers_for
from outlast.partitioning import UserPartitioner, is_default
from outlast.transactions import TransactionCalls

__all__ = ["EPISODE_S", "Bootstrap", "Parts", "Record", "TracedHeaders", "assembled"]


@dataclass(slots=True)
class Parts:
    """What a producer is made of."""

    driver: Driver
    closing: Closing
    figures: Figures | None
    send_spans: SendSpans
    partitioner: UserPartitioner | None  # None: the engine chooses
    transactions: TransactionCalls


def assembled(config: Config, hearing: Hearing, bootstrap: Bootstrap | None) -> Parts:
    """Start all of it.

    Raises:
        KafkaConfigurationError: TLS files cannot be read. Nothing stays.
    """
    values = config.values
    partitioner = values["partitioner"]
    figures = Figures(values) if values["metrics_enabled"] else None
    gap_spans = OtelObserver(values["tracer_provider"], values["client_id"])
    observers = observers_for(values, figures, gap_spans)
    if bootstrap is not None:
        observers.append(bootstrap)
    serializers = [values[name] for name in ("key_serializer", "value_serializer")]
    try:
        driver = _started(config, hearing, observers, figures)
    except BaseException:
        close_each(observers)
        raise
    max_block_s = min(values["max_block_ms"] / 1000, LONGEST_S)
    transactions = TransactionCalls(driver, values["transactional_id"], max_block_s)
    end_open = transactions.end_open if values["transactional_id"] is not None else None
    return Parts(
        driver,
        Closing(driver, [*observers, *serializers], end_open),
        figures,
        SendSpans(gap_spans.tracing, gap_spans, values["send_spans"]),
        None if is_default(partitioner) else UserPartitioner(partitioner),
        transactions,
    )


def _started(
    config: Config, hearing: Hearing, observers: list[Observer], figures: Figures | None
) -> Driver:
    def new_delivery(_batch: Batch) -> Delivery:
        return Delivery(hearing) if figures is None else MeteredDelivery(hearing, figures)

    keywords: dict[str, Any] = {name: config.values[name] for name in KAFKA_PYTHONS}
    keywords[METERING] = figures
    if keywords["selector"] is DEFAULTS["selector"]:
        keywords["selector"] = selectors.DefaultSelector  # gevent's, if it was patched in since
    return Driver(
        config.settings,
        keywords,
        new_delivery=new_delivery,
        observers=[OneByOne(observer) for observer in observers],
    )
