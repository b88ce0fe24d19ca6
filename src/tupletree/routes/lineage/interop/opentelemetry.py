"""OpenTelemetry: a span for each delivery of a message and for each call of an adapter, by the messaging conventions.

Owns how records become spans. They are made when calls have ended, and handed to an exporter; the SDK's tracer is not
used, as a message is worked by several processes. A message of several parents and a call for a batch have links to
where they came from, not one of them as their parent.

Needs the extra `otel`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tupletree.errors import ConnectorError, needing
from tupletree.routes.lineage.interop.traces import Context, delivery_context, parse, span_of, trace_of
from tupletree.routes.lineage.stores import RecordStore
from tupletree.routes.messages import CallRecord, Work

with needing("spans need the OpenTelemetry SDK", "otel"):
    from opentelemetry.context import attach
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )

GRACE_S = 5.0
MAX_OPEN = 10_000
logger = logging.getLogger("tupletree.routes")

_ENDS = frozenset({"failed", "filtered", "cancelled"})


@dataclass
class _Open:
    """A delivery or a batch whose records may not all be here; `since_s`: nothing more came since then."""

    since_s: float | None = None
    records: list[CallRecord] = field(default_factory=list)


class SpanStore(RecordStore):
    """Takes records and exports spans. It is a `RecordStore`: give it to a `LineageWriter`.

    A delivery's span is exported when an adapter has failed or filtered its message, or the last one of its route has
    ended; where that is not known, when nothing more came for 5 seconds.

    Args:
        exporter: gets the spans, such as `OTLPSpanExporter()`.
        pipeline: its name; the service's name, too.
        queues: route → its inbound queue, for the name of the destination.
        lengths: route → how many adapters it has.
        resource: instead of one that names the service.
    """

    most_rows = 1_000

    def __init__(
        self,
        exporter: SpanExporter,
        pipeline: str,
        *,
        queues: Mapping[str, str] | None = None,
        lengths: Mapping[str, int] | None = None,
        resource: Resource | None = None,
    ) -> None:
        self._exporter = exporter
        self._queues = queues or {}
        self._lengths = lengths or {}
        self._resource = resource or Resource.create({SERVICE_NAME: pipeline})
        self._scope = InstrumentationScope("tupletree.routes")
        self._common = {"tupletree.pipeline": pipeline}
        self._deliveries: OrderedDict[tuple[str, int], _Open] = OrderedDict()
        self._batches: OrderedDict[tuple[str, int], _Open] = OrderedDict()
        self._unsent: list[ReadableSpan] = []
        self.where = type(exporter).__name__

    def open(self) -> None:
        """See `RecordStore`. The exporter connects by itself."""

    def write(self, records: Sequence[CallRecord]) -> None:
        """See `RecordStore`. Records that come again give the same spans again."""
        self._send()
        spans: list[ReadableSpan] = []
        touched: set[tuple[str, int]] = set()
        for record in records:
            if record.status in {"pending", "skipped"}:
                self._note(self._deliveries, (record.message, record.attempt), record, touched)
                continue
            if record.batch:
                self._note(self._batches, (record.batch, record.position), record, touched)
            else:
                spans.append(self._call_span([record]))
            self._note(self._deliveries, (record.message, record.attempt), record, touched)
        spans += [self._delivery_span(one) for one in self._ended_deliveries(touched)]
        self._unsent += [*spans, *self._overdue(float("-inf"))]
        with suppress(ConnectorError):  # they are kept, and sent before anything more is taken
            self._send()

    def rest(self, now_s: float) -> float:
        """See `RecordStore`: deliveries and batches of which nothing more came are exported."""
        for opened in (self._deliveries, self._batches):
            for one in opened.values():
                if one.since_s is None:
                    one.since_s = now_s
        self._unsent += self._overdue(now_s - GRACE_S)
        self._send()
        return GRACE_S / 2

    def close(self) -> None:
        self._unsent += self._overdue(float("inf"))
        try:
            with suppress(ConnectorError):
                self._send()
            if self._unsent:
                logger.warning("%d spans are lost: %s did not take them before the end", len(self._unsent), self.where)
        finally:
            self._exporter.shutdown()

    def _note(
        self,
        opened: dict[tuple[str, int], _Open],
        key: tuple[str, int],
        record: CallRecord,
        touched: set[tuple[str, int]],
    ) -> None:
        one = opened.pop(key, None) or _Open()
        one.since_s = None
        one.records.append(record)
        opened[key] = one  # the one that was touched last is the last
        touched.add(key)

    def _ended_deliveries(self, touched: set[tuple[str, int]]) -> list[list[CallRecord]]:
        ended = []
        for key in touched:
            one = self._deliveries.get(key)
            if one is not None and any(
                record.status in _ENDS
                or (record.status != "pending" and record.position + 1 == self._lengths.get(record.route))
                for record in one.records
            ):
                ended.append(self._deliveries.pop(key).records)
        return ended

    def _overdue(self, before_s: float) -> list[ReadableSpan]:
        spans = []
        for opened, make in ((self._deliveries, self._delivery_span), (self._batches, self._call_span)):
            while opened:
                key = next(iter(opened))
                since_s = opened[key].since_s
                is_overdue = before_s == float("inf") or (since_s is not None and since_s <= before_s)
                if not is_overdue and len(opened) <= MAX_OPEN:
                    break
                spans.append(make(opened.pop(key).records))
        return spans

    def _send(self) -> None:
        if not self._unsent:
            return
        cause: Exception | None = None
        result: object = None
        try:
            result = self._exporter.export(self._unsent)
        except Exception as error:  # noqa: BLE001 - exporters should not raise, but then no record is to blame either
            cause = error
        if result is not SpanExportResult.SUCCESS:
            raise ConnectorError(
                "spans cannot be exported",
                where=self.where,
                got=f"{type(cause).__name__}: {cause}" if cause is not None else "",
                next_step="see that the collector runs and can be reached",
            ) from cause
        self._unsent = []

    def _delivery_span(self, records: Sequence[CallRecord]) -> ReadableSpan:
        first = min(records, key=lambda record: record.position)
        last = max(records, key=lambda record: record.position)
        parents = next((record.parents for record in records if record.parents), ())
        came_from = parse(first.trace) if first.trace else None
        linked = came_from if came_from is not None and came_from.span else None
        queue = self._queues.get(first.route, first.route)
        failed = next((record for record in records if record.status == "failed"), None)
        return self._span(
            f"process {queue}",
            _own_context(first),
            records,
            parent=_sdk_context(linked, is_remote=True) if linked is not None and len(parents) <= 1 else None,
            links=[linked] if linked is not None and len(parents) > 1 else [],
            kind=SpanKind.CONSUMER,
            failed=failed,
            attributes={
                "messaging.system": "tupletree",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
                "messaging.message.id": first.message,
                "messaging.message.conversation_id": first.execution,
                "tupletree.route": first.route,
                "tupletree.attempt": first.attempt,
                "tupletree.status": last.status,
            },
        )

    def _call_span(self, records: Sequence[CallRecord]) -> ReadableSpan:
        first = records[0]
        deliveries = list(dict.fromkeys(map(_own_context, records)))
        span = span_of("call", first.batch or first.message, first.position, first.attempt, str(first.started_s))
        attributes: dict[str, Any] = {
            "tupletree.route": first.route,
            "tupletree.adapter": first.adapter,
            "tupletree.position": first.position,
            "tupletree.status": first.status,
        }
        if first.batch:
            attributes |= {"messaging.batch.message_count": len(records), "tupletree.batch": first.batch}
            context = Context(trace_of(first.batch), span)
        else:
            attributes |= {
                "messaging.message.id": first.message,
                "tupletree.input_hash": first.input_hash,
                "tupletree.output_hash": first.output_hash,
            }
            context = Context(deliveries[0].trace, span)
        return self._span(
            f"{first.route}/{first.adapter}",
            context,
            records,
            parent=None if first.batch else _sdk_context(deliveries[0]),
            links=deliveries if first.batch else [],
            kind=SpanKind.INTERNAL,
            failed=next((record for record in records if record.status == "failed"), None),
            attributes=attributes,
        )

    def _span(
        self,
        name: str,
        context: Context,
        records: Sequence[CallRecord],
        *,
        parent: SpanContext | None,
        links: Sequence[Context],
        kind: SpanKind,
        failed: CallRecord | None,
        attributes: Mapping[str, Any],
    ) -> ReadableSpan:
        end_ns = max(_ns(record.ended_s) for record in records)
        error = failed.error.partition(":")[0] if failed else ""
        return ReadableSpan(
            name,
            context=_sdk_context(context),
            parent=parent,
            resource=self._resource,
            attributes={**self._common, **attributes, **({"error.type": error} if error else {})},
            events=[Event("exception", {"exception.type": error, "exception.message": failed.error}, end_ns)]
            if failed
            else (),
            links=[Link(_sdk_context(one, is_remote=True)) for one in links],
            kind=kind,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, failed.error) if failed else Status(StatusCode.UNSET),
            start_time=min(_ns(record.started_s) for record in records),
            end_time=end_ns,
        )


def enter_call(work: Work, position: int, started_s: float, batch: str) -> None:
    """A call begins in this context, a task's or a thread's own: spans that it makes are below the span of the call.

    That span is made of the call's record when it has ended; its id is known before, as it is derived.
    """
    first = work.messages[0]
    span = span_of("call", batch or first.id, position, first.attempt, str(started_s))
    execution = first.executions[0] if first.executions else ""
    trace = trace_of(batch) if batch else delivery_context(first.id, first.attempt, execution, work.trace).trace
    attach(set_span_in_context(NonRecordingSpan(_sdk_context(Context(trace, span)))))


def _own_context(record: CallRecord) -> Context:
    return delivery_context(record.message, record.attempt, record.execution, record.trace)


def _sdk_context(context: Context, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(context.trace, context.span, is_remote, TraceFlags(TraceFlags.SAMPLED))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
