"""One `send` span for each record whose sender has a span: from `send()` until it is settled.

Rules:
* Only the sender's own span makes one (unless all are wanted): without it a record costs one look
  at the current context, nothing else.
* The trace goes into the record once. The caller's list of headers is never touched: `send` works
  on a copy. Headers that carry a trace already stay as they are; then the message has been created
  elsewhere, and the span is a CLIENT's that links to that, as the conventions have it.
* A retry that helped leaves nothing on the span: ERROR and `error.type` are for failed records.
* A record that met a gap links to the gap's span, and is among the few that the gap links to.
* `send_many` has one span, of which all its records carry the trace.
* The record's key is not told: it may be personal.
* What the tracer, a propagator or a processor raises never reaches the sender.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from opentelemetry import context as contexts, propagate
from opentelemetry.context import Context, get_current
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
)

from outlast.observe.attributes import (
    BATCH_COUNT,
    ERROR_TYPE,
    OFFSET,
    OPERATION_NAME,
    OPERATION_TYPE,
    PARTITION,
    TOMBSTONE,
    Attributes,
)
from outlast.observe.tracing import Tracing

SEND = "send"  # the operation's name, and the span's first word
WITH_PARENT, ALWAYS, NEVER = MODES = ("with_parent", "always", "never")

Header = tuple[str, bytes]


class Future(Protocol):
    """What `send` returns (`outlast.future.DeliveryFuture`)."""

    @property
    def gaps(self) -> Sequence[int]:
        """Numbers of the gaps that the record met."""

    @property
    def node_id(self) -> int:
        """The broker that it was last sent to."""

    def add_callback(self, f: Callable[..., Any], *args: Any) -> Any:
        """Call it when the record is delivered."""

    def add_errback(self, f: Callable[..., Any], *args: Any) -> Any:
        """Call it when the record failed."""


class Many(Protocol):
    """What `send_many` returns (`outlast.deliveries.Deliveries`)."""

    def __len__(self) -> int:
        """How many records."""

    @property
    def gaps(self) -> Sequence[int]:
        """Numbers of the gaps that records met."""

    @property
    def node_id(self) -> int:
        """The broker that all of them were last sent to."""

    def failed(self, timeout: float | None = None) -> Sequence[tuple[int, BaseException]]:
        """Which records failed, and why."""

    def add_both(self, f: Callable[..., Any]) -> Any:
        """Call it when all records are settled."""


F = TypeVar("F", bound=Future)
M = TypeVar("M", bound=Many)


class GapLinks(Protocol):
    """Who knows the gaps' spans (`outlast.observe.otel.OtelObserver`)."""

    def link(self, number: int, send: SpanContext, *, delivered: bool) -> SpanContext | None:
        """This send met that gap; gives the gap's span, if it has one."""


class TracedHeaders(list[Header]):
    """A copy of a caller's headers, seen to: whatever trace the record is to carry is in it.

    Attributes:
        ours: the headers that were added.
    """

    __slots__ = ("ours",)

    def __init__(self, headers: Sequence[Header]) -> None:
        super().__init__(headers)
        self.ours: list[Header] = []

    def once(self) -> list[Header]:
        """After serializers, which may have added a trace of their own: theirs stays then."""
        theirs = [header for header in self if not any(header is ours for ours in self.ours)]
        return theirs if self.ours and carries_trace(theirs) else self


def _current_context() -> Callable[[], object]:
    """What looks the context up, for each record: `get_current` without its two calls of Python.
    Contexts that are kept otherwise (OTEL_PYTHON_CONTEXT) are asked as usual. Found out once: who
    keeps them otherwise does so before the producer is made.
    """
    runtime = getattr(contexts, "_RUNTIME_CONTEXT", None)
    kept = getattr(runtime, "_current_context", None)
    if type(runtime) is ContextVarsRuntimeContext and isinstance(kept, ContextVar):
        return kept.get
    return get_current


class SendSpans:
    """Makes one producer's `send` spans.

    Args:
        tracing: its tracer.
        gaps: where to link.
        mode: 'with_parent' (only if the caller has a valid current span), 'always' or 'never'.

    Attributes:
        wanted: called for each record; if what it gives is true, `around` is worth a look.
    """

    __slots__ = ("_gaps", "_mode", "_tracing", "wanted")

    def __init__(self, tracing: Tracing, gaps: GapLinks, mode: str = WITH_PARENT) -> None:
        self._tracing = tracing
        self._gaps = gaps
        self._mode = mode
        self.wanted: Callable[[], object] = {
            WITH_PARENT: _current_context(),
            ALWAYS: lambda: True,
            NEVER: lambda: False,
        }[mode]

    def __repr__(self) -> str:
        return f"<SendSpans {self._mode}>"

    def around(
        self,
        send: Callable[..., F],
        topic: str,
        value: Any,
        key: Any,
        headers: Sequence[Header],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> F:
        """Send with a copy of the headers, and with a span if there is to be one."""
        copy = TracedHeaders(headers)
        span = None
        with self._tracing.trouble:
            span = self._begun(topic, value, partition, copy)
        try:
            future = send(topic, value, key, copy, partition, timestamp_ms)
        except BaseException as error:
            if span is not None:
                span.refused(error)
            raise
        if span is not None:
            future.add_callback(span.delivered, future)
            future.add_errback(span.failed, future)
        return future

    def around_many(
        self,
        send: Callable[[TracedHeaders, Iterable[Any]], M],
        topic: str,
        values: Iterable[Any],
        headers: Sequence[Header],
        partition: int | None,
    ) -> M:
        """The same for many records: one span for all, and all carry its trace."""
        copy = TracedHeaders(headers)
        span = None
        with self._tracing.trouble:
            known: Attributes = {BATCH_COUNT: len(values)} if isinstance(values, Sized) else {}
            span = self._begun(topic, values, partition, copy, known)
        try:
            many = send(copy, values)
        except BaseException as error:
            if span is not None:
                span.refused(error)
            raise
        if span is not None:
            span.counted(many)
            many.add_both(span.all_settled)
        return many

    def _begun(
        self,
        topic: str,
        value: Any,
        partition: int | None,
        headers: TracedHeaders,
        more: Attributes | None = None,
    ) -> _SendSpan | None:
        context = get_current()
        has_parent = get_current_span(context).get_span_context().is_valid
        if not (has_parent or self._mode == ALWAYS) or _suppressed(context):
            return None
        attributes = self._tracing.common(topic)
        attributes[OPERATION_NAME] = attributes[OPERATION_TYPE] = SEND
        attributes.update(more or {})
        if partition is not None:
            attributes[PARTITION] = str(partition)
        if value is None:
            attributes[TOMBSTONE] = True
        created_elsewhere = bool(headers) and carries_trace(headers)
        span = self._tracing.tracer.start_span(
            f"{SEND} {topic}",
            context=context,
            kind=SpanKind.CLIENT if created_elsewhere else SpanKind.PRODUCER,
            attributes=attributes,
            links=_creation(headers) if created_elsewhere else (),
        )
        if not created_elsewhere:
            if span.get_span_context().is_valid:  # without an SDK, older APIs give one that is not
                context = set_span_in_context(span, context)
            with self._tracing.trouble:
                propagate.inject(headers, context, _SETTER)
        return _SendSpan(span, self._tracing, self._gaps) if span.is_recording() else None


class _SendSpan:
    """The span of one record on its way."""

    __slots__ = ("_gaps", "_pid", "_span", "_tracing")

    def __init__(self, span: Span, tracing: Tracing, gaps: GapLinks) -> None:
        self._span = span
        self._tracing = tracing
        self._gaps = gaps
        self._pid = os.getpid()

    def delivered(self, future: Future, metadata: Any) -> None:
        """The record is where its metadata tells."""
        with self._tracing.trouble:
            attributes: Attributes = {PARTITION: str(metadata.partition)}
            if metadata.offset >= 0:
                attributes[OFFSET] = metadata.offset
            self._end(attributes, future.gaps, future.node_id, None)

    def failed(self, future: Future, error: BaseException) -> None:
        """The record failed for good."""
        with self._tracing.trouble:
            attributes: Attributes = {ERROR_TYPE: error_type(error)}
            topic_partition = getattr(error, "topic_partition", None)
            if topic_partition is not None and topic_partition.partition is not None:
                attributes[PARTITION] = str(topic_partition.partition)
            self._end(attributes, future.gaps, future.node_id, error)

    def counted(self, many: Many) -> None:
        """So many records came."""
        with self._tracing.trouble:
            self._span.set_attribute(BATCH_COUNT, len(many))

    def all_settled(self, many: Many) -> None:
        """All records of one call are settled; the first that failed tells for all."""
        with self._tracing.trouble:
            failed = many.failed(timeout=0)
            error = failed[0][1] if failed else None
            attributes: Attributes = {} if error is None else {ERROR_TYPE: error_type(error)}
            self._end(attributes, many.gaps, many.node_id, error)

    def refused(self, error: BaseException) -> None:
        """`send()` raised."""
        with self._tracing.trouble:
            self._end({ERROR_TYPE: error_type(error)}, (), -1, error)

    def _end(
        self,
        attributes: Attributes,
        gaps: Sequence[int],
        node_id: int,
        error: BaseException | None,
    ) -> None:
        if os.getpid() != self._pid:
            return  # forked meanwhile: the parent ends it
        end_ns = time.time_ns()
        with self._tracing.trouble:
            attributes.update(self._tracing.server(node_id))
            attributes.update(self._tracing.peer(node_id))
            self._link(gaps, delivered=error is None)
            if error is not None:
                self._span.set_status(StatusCode.ERROR, str(error))
            self._span.set_attributes(attributes)
        self._tracing.end(self._span, end_ns)

    def _link(self, gaps: Sequence[int], *, delivered: bool) -> None:
        own = self._span.get_span_context()
        for number in gaps:
            gap = self._gaps.link(number, own, delivered=delivered)
            if gap is not None:
                self._span.add_link(gap)


def error_type(error: BaseException) -> str:
    """Kafka's name of an error that a broker told; else what kind it is, or its class."""
    if getattr(error, "error_code", None) is None:
        return getattr(error, "kind", "") or type(error).__qualname__
    attempts = getattr(error, "attempts", ())
    told = attempts[-1].error if attempts else ""
    return told or getattr(error, "message", "") or type(error).__qualname__


def carries_trace(headers: Sequence[Header]) -> bool:
    """Whether some header is of the kind that tells a trace: none is added then."""
    fields = propagate.get_global_textmap().fields - {"baggage"}
    return any(name.lower() in fields for name, _ in headers)


def _creation(headers: Sequence[Header]) -> list[Link]:
    """The trace that the headers carry, if it can be read."""
    found = get_current_span(propagate.extract(headers, Context(), _GETTER)).get_span_context()
    return [Link(found)] if found.is_valid else []


def _suppressed(context: Context) -> bool:
    """Whether instrumentation is off here, as in an exporter that writes to Kafka."""
    return any(
        value and name.startswith("suppress_instrumentation") for name, value in context.items()
    )


class _HeaderSetter(Setter[TracedHeaders]):
    """Adds a header, unless the caller has one of this name."""

    def set(self, carrier: TracedHeaders, key: str, value: str) -> None:
        if all(name.lower() != key.lower() for name, _ in carrier):
            carrier.ours.append((key, value.encode()))
            carrier.append(carrier.ours[-1])


class _HeaderGetter(Getter[Sequence[Header]]):
    def get(self, carrier: Sequence[Header], key: str) -> list[str] | None:
        found = [
            value.decode(errors="replace") for name, value in carrier if name.lower() == key.lower()
        ]
        return found or None

    def keys(self, carrier: Sequence[Header]) -> list[str]:
        return [name for name, _ in carrier]


_SETTER, _GETTER = _HeaderSetter(), _HeaderGetter()
