"""A pipeline as data: what a document comes to when it has been read and checked.

Frozen descriptions only, and all of them can be sent to another process. Everything that runs a pipeline reads these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from tupletree.routes.adapters.contract import Adapter, AdapterConfig, BatchAdapter
from tupletree.routes.document.parts import Count, Level, Part, QueueName, Seconds

MOST_HELD = 10_000
"""Messages of a route that adapters hold, beyond which it leases no others."""


class Inbound(Part):
    """What a route reads."""

    queue: QueueName = Field(description="its name")
    concurrency: Count = Field(default=1, description="messages that are worked at a time")
    prefetch: Count | None = Field(
        default=None,
        description="messages that may be leased at a time; the smaller of the two counts; null: as `concurrency`",
    )

    @property
    def in_flight(self) -> int:
        """Messages that a route works at a time."""
        return self.concurrency if self.prefetch is None else min(self.prefetch, self.concurrency)


@dataclass(frozen=True)
class AdapterSpec:
    """One adapter of a route.

    Attributes:
        name: unique in its route: what the document says, or its type, with a number where that is there already.
        type_name: its `type`, as the document says it.
        adapter: the class.
        config: its settings, checked.
        condition: `tupletree.routes.adapters.conditions.Condition`; None: always.
    """

    name: str
    type_name: str
    adapter: type[Adapter[Any]]
    config: AdapterConfig
    condition: Any = None

    @property
    def batch_size(self) -> int:
        """Members of a full batch; 0 of an adapter that makes none."""
        if not issubclass(self.adapter, BatchAdapter):
            return 0
        size = getattr(self.config, "size", self.adapter.size)
        return size if isinstance(size, int) else self.adapter.size


class ErrorHandling(Part):
    """What becomes of failed attempts."""

    max_retries: int = Field(default=3, ge=0, le=10_000, description="attempts after the first")
    retry_delay_seconds: Seconds = Field(default=1.0, description="before the second attempt")
    backoff_factor: float = Field(
        default=2.0, ge=1, le=1000, description="by which the delay grows with each further attempt"
    )
    max_retry_delay_seconds: Seconds = Field(default=60.0, description="longest delay")
    dead_letter_queue: QueueName | None = Field(
        default=None, description="gets a message after its last attempt; null: it becomes a dead letter of its queue"
    )

    def delay_s(self, attempt: int) -> float:
        """The pause after this attempt has failed, from 1."""
        grown = self.retry_delay_seconds * self.backoff_factor ** min(attempt - 1, 60)
        return min(grown, self.max_retry_delay_seconds)


class Backpressure(Part):
    """How a route adapts."""

    target_latency_ms: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="of an attempt; `concurrency` moves between 1 and `max_concurrency` toward it; null: it stays",
    )
    max_concurrency: Count = Field(default=32, description="most")
    high_water: int = Field(
        default=10_000, ge=1, description="ready messages of an outbound queue above which nothing is leased"
    )


@dataclass(frozen=True)
class RouteSpec:
    """One route.

    Attributes:
        name: unique in the pipeline.
        description: for readers.
        inbound: what it reads.
        adapters: in order.
        outbound: names of queues, each of which gets what comes out.
        error_handling: what becomes of failed attempts.
        timeout_seconds: for one call of an adapter.
        backpressure: how it adapts.
        lease_seconds: of a delivery; extended for as long as it is worked.
    """

    name: str
    inbound: Inbound
    adapters: tuple[AdapterSpec, ...] = ()
    outbound: tuple[str, ...] = ()
    description: str = ""
    error_handling: ErrorHandling = field(default_factory=ErrorHandling)
    timeout_seconds: float = 300.0
    backpressure: Backpressure = field(default_factory=Backpressure)
    lease_seconds: float = 60.0

    @property
    def queues(self) -> list[str]:
        """Every queue that it names: the inbound one, the outbound ones, that of its dead letters."""
        dead = self.error_handling.dead_letter_queue
        return [self.inbound.queue, *self.outbound, *([dead] if dead else [])]


class Limits(Part):
    """The gates that are not a route's own."""

    max_handlers: Count = Field(default=30, description="messages that one process works at a time")
    max_fanout_pending: Count = Field(
        default=500, description="messages that a route has published and the broker has not confirmed"
    )


class InitMessage(Part):
    """What an execution starts with."""

    route: str = Field(description="the route that gets it")
    payload: Any = Field(default=None, description="any value")
    headers: dict[str, str] = Field(default_factory=dict, description="text by name")


class LineageSpec(Part):
    """What is kept of adapter calls. A level alone stands for `{level: …}`."""

    level: Level = Field(default="full", description="`off`, `failures`, `sampled:0.01`, `full`")
    store: str = Field(default="", description="URL of a database, or parquet://FOLDER; empty: beside the ledger")
    keep_days: float = Field(default=30.0, ge=0, description="rows that ended longer ago are removed; 0: never")
    spans: bool = Field(default=False, description="spans of OpenTelemetry (extra `otel`)")
    run_events: bool = Field(default=False, description="runs of OpenLineage (extra `openlineage`)")
    cloudevents: bool = Field(default=False, description="messages carry attributes of CloudEvents (headers `ce_…`)")

    @property
    def needs_records(self) -> bool:
        """Whether anything is made of records of calls."""
        return self.level != "off" or self.spans or self.run_events


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline.

    Attributes:
        name: letters, digits, `.`, `_` and `-`; it names files.
        routes: by name, in the document's order.
        queues: name → URL of a broker, for those that are not in the embedded queue file.
        queue_file: URL of the embedded queue; empty: `sqlite:///<state dir>/pipeline.db`.
        ledger: URL of a database; empty: the embedded queue's file.
        limits: gates of the whole.
        lineage: what is kept of calls.
        settings: for adapters (`context.settings`).
        init_message: what `run` starts with; None: it works what its queues hold.
        sinks: queues that others read: no route does.
        on_complete: a queue that gets a message when an execution is complete; empty: none.
        tests: unit tests, as the document says them.
        source: the document's text with all that it includes and that filled it, but for secrets: executions keep it.
        description: for readers.
        search_path: folder of the document, in which Python looks for modules of adapters; empty: nowhere else.
    """

    name: str
    routes: Mapping[str, RouteSpec]
    queues: Mapping[str, str] = field(default_factory=dict)
    queue_file: str = ""
    ledger: str = ""
    limits: Limits = field(default_factory=Limits)
    lineage: LineageSpec = field(default_factory=LineageSpec)
    settings: Mapping[str, Any] = field(default_factory=dict)
    init_message: InitMessage | None = None
    sinks: frozenset[str] = frozenset()
    on_complete: str = ""
    tests: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    description: str = ""
    search_path: str = ""

    def reader_of(self, queue: str) -> RouteSpec | None:
        """The route that reads a queue; None if none does."""
        return next((route for route in self.routes.values() if route.inbound.queue == queue), None)

    def queues_in_cycles(self) -> Mapping[str, frozenset[str]]:
        """Route → those of its outbound queues from which messages can come back to it.

        The high water mark does not count for them: routes that feed each other would wait for each other for ever.
        """
        readers = {route.inbound.queue: name for name, route in self.routes.items()}
        following = {
            name: {queue: readers[queue] for queue in route.outbound if queue in readers}
            for name, route in self.routes.items()
        }
        reached = {name: _reached(name, following) for name in following}
        return {
            name: frozenset(queue for queue, reader in queues.items() if reader == name or name in reached[reader])
            for name, queues in following.items()
        }


def _reached(start: str, following: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Routes that messages of this one can come to."""
    met: set[str] = set()
    waiting = [start]
    while waiting:
        for name in following[waiting.pop()].values():
            if name not in met:
                met.add(name)
                waiting.append(name)
    return met
