"""What else is made of the records of calls: spans of OpenTelemetry, runs of OpenLineage.

Owns what a run must know to make them, as plain data that can be sent to another process, and which of this process
hear of completed executions. The packages are imported when they are asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from tupletree.errors import ConfigError
from tupletree.routes.lineage.stores import RecordStore

MAX_COMPLETIONS = 100_000
_completions: dict[str, deque[tuple[str, str, float]]] = {}
"""Pipeline → completed executions that its run events have not taken yet."""


class Export(Protocol):
    """Another taker of records; `what` is its name in the log."""

    what: ClassVar[str]

    def check(self) -> None:
        """Raise RuntimeUnavailableError if what it needs is not installed."""

    def begin(self, pipeline: str) -> None:
        """A run of this pipeline begins in this process."""

    def store(self, pipeline: str) -> RecordStore:
        """What takes the records of this pipeline. Called again after it failed."""


@dataclass(frozen=True)
class SpanExport(Export):
    """Spans, to the exporter that `OTEL_TRACES_EXPORTER` names (default: `otlp`), as every use of OpenTelemetry.

    Attributes:
        queues: route → its inbound queue.
        lengths: route → how many adapters it has.
    """

    queues: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    what = "spans"

    def check(self) -> None:
        import tupletree.routes.lineage.interop.opentelemetry  # noqa: F401 - whether it can be

    def begin(self, pipeline: str) -> None:
        """See `Export`."""

    def store(self, pipeline: str) -> RecordStore:
        """See `Export`. Raises ConfigError if there is no such exporter."""
        from importlib.metadata import entry_points

        from tupletree.routes.lineage.interop.opentelemetry import SpanStore

        name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
        known = {one.name: one for one in entry_points(group="opentelemetry_traces_exporter")}
        if name not in known:
            raise ConfigError(
                "there is no such exporter of spans",
                where="OTEL_TRACES_EXPORTER",
                got=name,
                expected=", ".join(known),
                next_step="pip install opentelemetry-exporter-otlp-proto-http, or name another one",
            )
        return SpanStore(known[name].load()(), pipeline, queues=self.queues, lengths=self.lengths)


@dataclass(frozen=True)
class RunEventExport(Export):
    """Run events, to where the client of OpenLineage is configured (`OPENLINEAGE_URL`, `openlineage.yml`).

    Attributes:
        routes: route → its inbound queue, its outbound ones.
    """

    routes: Mapping[str, tuple[str, Sequence[str]]] = field(default_factory=dict)
    what = "run events"

    def check(self) -> None:
        import tupletree.routes.lineage.interop.openlineage  # noqa: F401 - whether it can be

    def begin(self, pipeline: str) -> None:
        """See `Export`. What `tell_completed` says is kept from now on."""
        _completions[pipeline] = deque(maxlen=MAX_COMPLETIONS)

    def store(self, pipeline: str) -> RecordStore:
        from openlineage.client import OpenLineageClient

        from tupletree.routes.lineage.interop.openlineage import RunEvents

        return RunEvents(OpenLineageClient(), pipeline, routes=self.routes, ended=_completions.get(pipeline))


def tell_completed(pipeline: str, execution: str, state: str, ended_s: float) -> None:
    """An execution is complete, as the ledger says: its runs end. Never waits."""
    waiting = _completions.get(pipeline)
    if waiting is not None:
        waiting.append((execution, state, ended_s))
