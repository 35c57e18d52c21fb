"""An HTTP service that says 202 once a record is in Kafka, and 503 with what is known if not.

    outlast cluster --topic orders:6                # in another terminal; upset it while you post
    uvicorn --app-dir examples http_service:app

    curl -i localhost:8000/orders --json '{"id": "4711", "item": "tea"}'

A failover costs patience: the handler waits, other handlers go on, and the answer is a 202 as ever.
Only what is not in the log within `PATIENCE_MS` is a 503 (as long again may pass before, where the
buffer is full), and its `outcome` says what the client may do:

* `never sent`, `not accepted`: the order is in no log. To send it again is safe.
* `unknown`: it may be there. To send it again may double it, so readers go by the order's id.

`OUTLAST_BOOTSTRAP_SERVERS` names the brokers, localhost:9092 if it is not set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from kafka.errors import KafkaError
from pydantic import BaseModel, Field

from outlast import DeliveryError, KafkaProducer

PATIENCE_MS = int(os.environ.get("PATIENCE_MS", "10000"))  # less than the clients have
CLOSE_S = 10.0


class Order(BaseModel):
    """What a client posts."""

    id: str = Field(min_length=1, max_length=100)
    item: str = Field(max_length=10_000)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One producer for all handlers. When the server stops, their requests have been answered."""
    app.state.producer = KafkaProducer(
        max_block_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS, delivery_timeout_ms=PATIENCE_MS
    )
    yield
    await asyncio.to_thread(app.state.producer.close, CLOSE_S)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take(order: Order, request: Request) -> JSONResponse:
    """Answer when the outcome is known, and not before."""
    producer: KafkaProducer = request.app.state.producer
    try:
        key, value = order.id.encode(), order.model_dump_json().encode()
        future = await producer.send_async("orders", value, key)  # waits where send() would block
        metadata = await future
    except DeliveryError as error:
        return _not_taken(error.outcome.value, error)
    except KafkaError as error:  # no room, no metadata: raised before anything was taken
        return _not_taken("never sent", error)
    return JSONResponse({"partition": metadata.partition, "offset": metadata.offset}, 202)


def _not_taken(outcome: str, error: KafkaError | DeliveryError) -> JSONResponse:
    return JSONResponse({"outcome": outcome, "error": str(error)}, 503, {"Retry-After": "1"})
