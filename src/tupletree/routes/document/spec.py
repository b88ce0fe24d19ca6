"""A pipeline as data: what a document comes to when it has been read and checked.

Frozen descriptions only, and all of them can be sent to another process. Everything that runs a pipeline reads these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tupletree.routes.adapters.contract import Adapter, AdapterConfig, BatchAdapter

__all__ = [
    "MOST_HELD",
    "AdapterSpec",
    "Backpressure",
    "ErrorHandling",
    "Inbound",
    "InitMessage",
    "Limits",
    "LineageSpec",
    "PipelineSpec",
    "RouteSpec",
]

MOST_HELD = 10_000
"""Messages of a route that adapters hold, beyond which it leases no others."""


@dataclass(frozen=True)
class Inbound:
    """What a route reads.

    Attributes:
        queue: its name.
        concurrency: messages that are worked at a time.
        prefetch: messages that may be leased at a time; the smaller of the two counts. None: as `concurrency`.
    """

    queue: str
    concurrency: int = 1
    prefetch: int | None = None

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


@dataclass(frozen=True)
class ErrorHandling:
    """What becomes of failed attempts.

    Attributes:
        max_retries: attempts after the first.
        retry_delay_seconds: before the second attempt.
        backoff_factor: by which it grows with each further attempt.
        max_retry_delay_seconds: at most.
        dead_letter_queue: gets a message after its last attempt; empty: it becomes a dead letter of its queue.
    """

    max_retries: int = 3
    retry_delay_seconds: float = 1.0
    backoff_factor: float = 2.0
    max_retry_delay_seconds: float = 60.0
    dead_letter_queue: str = ""

    def delay_s(self, attempt: int) -> float:
        """The pause after this attempt has failed, from 1."""
        grown = self.retry_delay_seconds * self.backoff_factor ** min(attempt - 1, 60)
        return min(grown, self.max_retry_delay_seconds)


@dataclass(frozen=True)
class Backpressure:
    """How a route adapts.

    Attributes:
        target_latency_ms: of an attempt; `concurrency` moves between 1 and `max_concurrency` toward it. None: it stays.
        max_concurrency: most.
        high_water: ready messages of an outbound queue above which the route leases nothing.
    """

    target_latency_ms: float | None = None
    max_concurrency: int = 32
    high_water: int = 10_000


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


@dataclass(frozen=True)
class Limits:
    """The gates that are not a route's own.

    Attributes:
        max_handlers: messages that are worked at a time, over all routes of one process.
        max_fanout_pending: messages that a route has published and the broker has not confirmed.
    """

    max_handlers: int = 30
    max_fanout_pending: int = 500


@dataclass(frozen=True)
class InitMessage:
    """The message that an execution starts with: the route that gets it, its payload and headers."""

    route: str
    payload: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LineageSpec:
    """What is kept of adapter calls.

    Attributes:
        level: `off`, `failures`, `sampled:0.01`, `full`.
        store: a URL; empty: beside the ledger (`tupletree.routes.lineage.store_beside`).
        keep_days: rows that ended longer ago are removed; 0: never.
        spans: deliveries and calls become spans of OpenTelemetry, and messages carry their trace (`traceparent`).
        run_events: executions and routes become runs of OpenLineage.
        cloudevents: messages carry attributes of CloudEvents (headers `ce_…`).
    """

    level: str = "full"
    store: str = ""
    keep_days: float = 30.0
    spans: bool = False
    run_events: bool = False
    cloudevents: bool = False

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
