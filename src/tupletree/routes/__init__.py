"""Routes: pipelines of queues and adapters, written in YAML, with a ledger, lineage and certain completion.

A route is one inbound queue, adapters in order, any number of outbound queues; a pipeline is several routes; an
execution is one message and everything that comes of it. A pipeline compiles to a topology, so both runtimes run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tupletree.errors import RetryAfter
from tupletree.routes.adapters.contract import (
    Adapter,
    AdapterConfig,
    AdapterContext,
    AdapterResult,
    BatchAdapter,
    Emitted,
    PipelineContext,
    Release,
    RouteMessage,
    StatefulAdapter,
)
from tupletree.routes.document.spec import PipelineSpec, RouteSpec
from tupletree.routes.messages import CallRecord, Child, Settlement, Standing, Work
from tupletree.routes.payloads import PayloadError

if TYPE_CHECKING:
    from tupletree.routes.pipeline import ExecutionHandle, Pipeline, PipelineRun

__all__ = [
    "Adapter",
    "AdapterConfig",
    "AdapterContext",
    "AdapterResult",
    "BatchAdapter",
    "CallRecord",
    "Child",
    "Emitted",
    "ExecutionHandle",
    "PayloadError",
    "Pipeline",
    "PipelineContext",
    "PipelineRun",
    "PipelineSpec",
    "Release",
    "RetryAfter",
    "RouteMessage",
    "RouteSpec",
    "Settlement",
    "Standing",
    "StatefulAdapter",
    "Work",
]


def __getattr__(name: str) -> Any:
    """What runs pipelines needs a database's package, which those who write adapters need not import."""
    if name in {"ExecutionHandle", "Pipeline", "PipelineRun"}:
        from tupletree.routes import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
