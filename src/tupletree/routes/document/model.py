"""The format of a document, as pydantic models: keys, types, limits, defaults; what runs as it is, is `spec`'s.

Owns what each part may hold; the JSON Schema for editors is made of it. Refuses to compare parts with one another:
`whole` does. Each field's description is what `docs/routes.md` says of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tupletree.routes.document.cases import TestModel
from tupletree.routes.document.parts import Count, Name, Part, QueueName, SomeSeconds
from tupletree.routes.document.spec import (
    Backpressure,
    ErrorHandling,
    Inbound,
    InitMessage,
    Limits,
    LineageSpec,
    RouteSpec,
)

UNKNOWN = "<unknown>"
"""Stands where a name was faulty, so that the rest can be judged."""


def _url_alone(value: Any) -> Any:
    """A queue's URL alone stands for the mapping."""
    return {"url": value} if isinstance(value, str) else value


def _level_alone(value: Any) -> Any:
    return {"level": value} if isinstance(value, str) else value


class QueueModel(Part):
    """A queue that is not (only) one of the pipeline's own. A URL alone stands for `{url: …}`."""

    url: str = Field(default="", description="of its broker; empty: the pipeline's embedded queue file")
    sink: bool = Field(default=False, description="others read it, no route does")


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


class RouteModel(Part):
    """One inbound queue, adapters in order, any number of outbound queues."""

    description: str = Field(default="", description="for readers")
    inbound: Inbound = Field(description="what it reads")
    adapters: list[AdapterModel] = Field(default_factory=list, description="in order")
    outbound: list[OutboundModel] = Field(default_factory=list, description="each gets what comes out")
    error_handling: ErrorHandling = Field(default_factory=ErrorHandling, description="what becomes of failed attempts")
    timeout_seconds: SomeSeconds = Field(default=RouteSpec.timeout_seconds, description="for one call of an adapter")
    lease_seconds: SomeSeconds = Field(
        default=RouteSpec.lease_seconds, description="of a delivery; extended for as long as it is worked"
    )
    backpressure: Backpressure = Field(default_factory=Backpressure, description="how it adapts")


class DefaultInboundModel(Part):
    """What routes read, without the queue."""

    concurrency: Count = Field(default=1, description="messages that are worked at a time")
    prefetch: Count | None = Field(default=None, description="messages that may be leased at a time")


class DefaultsModel(Part):
    """What every route inherits, key by key; a route's own keys win."""

    inbound: DefaultInboundModel | None = None
    error_handling: ErrorHandling | None = None
    timeout_seconds: SomeSeconds | None = None
    lease_seconds: SomeSeconds | None = None
    backpressure: Backpressure | None = None


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
    limits: Limits = Field(default_factory=Limits, description="gates of the whole")
    lineage: Annotated[LineageSpec, BeforeValidator(_level_alone)] = Field(
        default_factory=LineageSpec, description="what is kept of adapter calls"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="for adapters (`context.settings`)")
    init_message: InitMessage | None = Field(
        default=None, description="what an execution starts with; null: the pipeline works what its queues hold"
    )
    on_complete: QueueName | None = Field(
        default=None, description="a queue that gets a message when an execution is complete; null: none"
    )
    tests: list[TestModel] = Field(default_factory=list, description="unit tests")
