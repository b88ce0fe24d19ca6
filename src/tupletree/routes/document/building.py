"""The typed document → `PipelineSpec`: what runs."""

from __future__ import annotations

from collections.abc import Mapping

from tupletree.routes.document.model import DocumentModel, ErrorHandlingModel, RouteModel
from tupletree.routes.document.spec import (
    AdapterSpec,
    Backpressure,
    ErrorHandling,
    Inbound,
    InitMessage,
    Limits,
    LineageSpec,
    PipelineSpec,
    RouteSpec,
)

__all__ = ["spec_of"]


def spec_of(
    document: DocumentModel, adapters: Mapping[str, tuple[AdapterSpec, ...]], source: str, search_path: str
) -> PipelineSpec:
    """Put the parts together.

    Args:
        document: the typed document.
        adapters: of every route.
        source: the text that it was read from.
        search_path: folder of the document.
    """
    start = document.init_message
    return PipelineSpec(
        name=document.pipeline,
        routes={name: _route(name, route, adapters[name]) for name, route in document.routes.items()},
        queues={name: queue.url for name, queue in document.queues.items() if queue.url},
        sinks=frozenset(name for name, queue in document.queues.items() if queue.sink),
        queue_file=document.queue_file,
        ledger=document.ledger,
        limits=Limits(**document.limits.model_dump()),
        lineage=LineageSpec(**document.lineage.model_dump()),
        settings=document.settings,
        init_message=InitMessage(start.route, start.payload, start.headers) if start is not None else None,
        on_complete=document.on_complete or "",
        tests=tuple(test.model_dump(exclude_unset=True) for test in document.tests),
        source=source,
        description=document.description,
        search_path=search_path,
    )


def _route(name: str, route: RouteModel, adapters: tuple[AdapterSpec, ...]) -> RouteSpec:
    return RouteSpec(
        name=name,
        inbound=Inbound(**route.inbound.model_dump()),
        adapters=adapters,
        outbound=tuple(outbound.queue for outbound in route.outbound),
        description=route.description,
        error_handling=_error_handling(route.error_handling),
        timeout_seconds=route.timeout_seconds,
        backpressure=Backpressure(**route.backpressure.model_dump()),
        lease_seconds=route.lease_seconds,
    )


def _error_handling(model: ErrorHandlingModel) -> ErrorHandling:
    return ErrorHandling(**{**model.model_dump(), "dead_letter_queue": model.dead_letter_queue or ""})
