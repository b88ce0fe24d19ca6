"""The format of a document, as pydantic models: keys, types, limits, defaults.

Owns what each part may hold; the JSON Schema for editors is made of it. Refuses to compare parts with one another:
`whole` does. Each field's description is what `docs/routes.md` says of it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from tupletree.routes.document.cases import TestModel
from tupletree.routes.document.parts import Count, Name, Part, QueueName, Seconds, SomeSeconds
from tupletree.routes.document.spec import Backpressure, ErrorHandling, Limits, LineageSpec, RouteSpec

__all__ = [
    "UNKNOWN",
    "AdapterModel",
    "BackpressureModel",
    "DefaultsModel",
    "DocumentModel",
    "ErrorHandlingModel",
    "InboundModel",
    "InitMessageModel",
    "LimitsModel",
    "LineageModel",
    "OutboundModel",
    "QueueModel",
    "RouteModel",
]

UNKNOWN = "<unknown>"
"""Stands where a name was faulty, so that the rest can be judged."""

LEVEL = re.compile(r"off|failures|full|sampled:(?P<share>0?\.[0-9]+|1(?:\.0*)?)")
LEVEL_SCHEMA = r"^(off|failures|full|sampled:(0?\.[0-9]+|1(\.0*)?))$"
"""The same for JSON Schema, whose expressions have no named groups."""


def _level(text: str) -> str:
    found = LEVEL.fullmatch(text)
    if found and (found["share"] is None or float(found["share"]) > 0):
        return text
    expected = "off, failures, full, or sampled:SHARE, with a share above 0 and at most 1"
    raise PydanticCustomError("level", "no level of lineage", {"expected": expected})


def _url_alone(value: Any) -> Any:
    """A queue's URL alone stands for the mapping."""
    return {"url": value} if isinstance(value, str) else value


def _level_alone(value: Any) -> Any:
    return {"level": value} if isinstance(value, str) else value


Level = Annotated[str, AfterValidator(_level), WithJsonSchema({"type": "string", "pattern": LEVEL_SCHEMA})]


class QueueModel(Part):
    """A queue that is not (only) one of the pipeline's own. A URL alone stands for `{url: …}`."""

    url: str = Field(default="", description="of its broker; empty: the pipeline's embedded queue file")
    sink: bool = Field(default=False, description="others read it, no route does")


class InboundModel(Part):
    """What a route reads."""

    queue: QueueName = Field(description="its name")
    concurrency: Count = Field(default=1, description="messages that are worked at a time")
    prefetch: Count | None = Field(
        default=None,
        description="messages that may be leased at a time; the smaller of the two counts; null: as `concurrency`",
    )


class AdapterModel(Part):
    """A step of a route."""

    type: str = Field(min_length=1, description="name of an adapter, `module:Class` or `module:function`")
    name: Name | None = Field(
        default=None, description="unique in its route; null: its type, numbered where that is taken"
    )
    config: dict[str, Any] = Field(default_factory=dict, description="the adapter's settings")
    condition: dict[str, Any] | None = Field(
        default=None, description="when it is false, the message passes unchanged; null: always"
    )


class OutboundModel(Part):
    """Where a route's messages go."""

    queue: QueueName = Field(description="its name")


class ErrorHandlingModel(Part):
    """What becomes of failed attempts."""

    max_retries: int = Field(default=ErrorHandling.max_retries, ge=0, le=10_000, description="attempts after the first")
    retry_delay_seconds: Seconds = Field(
        default=ErrorHandling.retry_delay_seconds, description="before the second attempt"
    )
    backoff_factor: float = Field(
        default=ErrorHandling.backoff_factor,
        ge=1,
        le=1000,
        description="by which the delay grows with each further attempt",
    )
    max_retry_delay_seconds: Seconds = Field(default=ErrorHandling.max_retry_delay_seconds, description="longest delay")
    dead_letter_queue: QueueName | None = Field(
        default=None, description="gets a message after its last attempt; null: it becomes a dead letter of its queue"
    )


class BackpressureModel(Part):
    """How a route adapts."""

    target_latency_ms: float | None = Field(
        default=Backpressure.target_latency_ms,
        gt=0,
        allow_inf_nan=False,
        description="of an attempt; `concurrency` moves between 1 and `max_concurrency` toward it; null: it stays",
    )
    max_concurrency: Count = Field(default=Backpressure.max_concurrency, description="most")
    high_water: int = Field(
        default=Backpressure.high_water,
        ge=1,
        description="ready messages of an outbound queue above which nothing is leased",
    )


class RouteModel(Part):
    """One inbound queue, adapters in order, any number of outbound queues."""

    description: str = Field(default="", description="for readers")
    inbound: InboundModel = Field(description="what it reads")
    adapters: list[AdapterModel] = Field(default_factory=list, description="in order")
    outbound: list[OutboundModel] = Field(default_factory=list, description="each gets what comes out")
    error_handling: ErrorHandlingModel = Field(
        default_factory=ErrorHandlingModel, description="what becomes of failed attempts"
    )
    timeout_seconds: SomeSeconds = Field(default=RouteSpec.timeout_seconds, description="for one call of an adapter")
    lease_seconds: SomeSeconds = Field(
        default=RouteSpec.lease_seconds, description="of a delivery; extended for as long as it is worked"
    )
    backpressure: BackpressureModel = Field(default_factory=BackpressureModel, description="how it adapts")


class DefaultInboundModel(Part):
    """What routes read, without the queue."""

    concurrency: Count = Field(default=1, description="messages that are worked at a time")
    prefetch: Count | None = Field(default=None, description="messages that may be leased at a time")


class DefaultsModel(Part):
    """What every route inherits, key by key; a route's own keys win."""

    inbound: DefaultInboundModel | None = None
    error_handling: ErrorHandlingModel | None = None
    timeout_seconds: SomeSeconds | None = None
    lease_seconds: SomeSeconds | None = None
    backpressure: BackpressureModel | None = None


class LimitsModel(Part):
    """The gates that are not a route's own."""

    max_handlers: Count = Field(default=Limits.max_handlers, description="messages that one process works at a time")
    max_fanout_pending: Count = Field(
        default=Limits.max_fanout_pending,
        description="messages that a route has published and the broker has not confirmed",
    )


class InitMessageModel(Part):
    """What an execution starts with."""

    route: str = Field(description="the route that gets it")
    payload: Any = Field(default=None, description="any value")
    headers: dict[str, str] = Field(default_factory=dict, description="text by name")


class LineageModel(Part):
    """What is kept of adapter calls. A level alone stands for `{level: …}`."""

    level: Level = Field(default=LineageSpec.level, description="`off`, `failures`, `sampled:0.01`, `full`")
    store: str = Field(
        default=LineageSpec.store, description="URL of a database, or parquet://FOLDER; empty: beside the ledger"
    )
    keep_days: float = Field(
        default=LineageSpec.keep_days, ge=0, description="rows that ended longer ago are removed; 0: never"
    )
    spans: bool = Field(default=LineageSpec.spans, description="spans of OpenTelemetry (extra `otel`)")
    run_events: bool = Field(default=LineageSpec.run_events, description="runs of OpenLineage (extra `openlineage`)")
    cloudevents: bool = Field(
        default=LineageSpec.cloudevents, description="messages carry attributes of CloudEvents (headers `ce_…`)"
    )


class DocumentModel(Part):
    """A pipeline."""

    version: Literal[1] = Field(description="of the format")
    pipeline: Name = Field(description="its name; it names files")
    description: str = Field(default="", description="for readers")
    queues: dict[QueueName, Annotated[QueueModel, BeforeValidator(_url_alone)]] = Field(
        default_factory=dict, description="those that are not the pipeline's own, and those that others read"
    )
    queue_file: str = Field(default="", description="URL of the embedded queue; empty: a file in the state directory")
    ledger: str = Field(default="", description="URL of a database; empty: the embedded queue's file")
    defaults: DefaultsModel = Field(default_factory=DefaultsModel, description="what every route inherits")
    routes: dict[Name, RouteModel] = Field(min_length=1, description="by name")
    limits: LimitsModel = Field(default_factory=LimitsModel, description="gates of the whole")
    lineage: Annotated[LineageModel, BeforeValidator(_level_alone)] = Field(
        default_factory=LineageModel, description="what is kept of adapter calls"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="for adapters (`context.settings`)")
    init_message: InitMessageModel | None = Field(
        default=None, description="what an execution starts with; null: the pipeline works what its queues hold"
    )
    on_complete: QueueName | None = Field(
        default=None, description="a queue that gets a message when an execution is complete; null: none"
    )
    tests: list[TestModel] = Field(default_factory=list, description="unit tests")
