"""A pipeline becomes a topology: which component does what.

queue → `QueueSpout`; consecutive plain adapters → one `ChainBolt`; an adapter that holds messages → a bolt of its own;
the ends of all routes → one `SettlingSink`; records of calls → a sink for lineage.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tupletree.routes.adapters.contract import BatchAdapter, StatefulAdapter
from tupletree.routes.document.spec import RouteSpec
from tupletree.routes.messages import CallRecord, CallRecords, Settlement, Work
from tupletree.routes.running.bolts import ChainBolt, InProcess, SettlingSink, surroundings_of
from tupletree.routes.running.queue_spout import QueueSpout
from tupletree.routes.running.services import RunSpec
from tupletree.routes.running.stateful import BatchBolt, StatefulBolt
from tupletree.topology.builder import BoltHandle, Source, Topology
from tupletree.topology.components import Sink

SETTLE = "settle"
LINEAGE = "lineage"

Segment = tuple[int, int, bool]
"""Positions of a route's adapters, from the first up to before the second; whether it is one that holds messages."""


def segments_of(route: RouteSpec) -> list[Segment]:
    """The adapters of a route, cut where one holds messages. A route without adapters is one empty segment."""
    segments: list[Segment] = []
    start = 0
    for position, adapter in enumerate(route.adapters):
        if issubclass(adapter.adapter, BatchAdapter | StatefulAdapter):
            if position > start:
                segments.append((start, position, False))
            segments.append((position, position + 1, True))
            start = position + 1
    if start < len(route.adapters) or not segments:
        segments.append((start, len(route.adapters), False))
    return segments


def topology_of(
    run: RunSpec,
    *,
    tasks: int = 1,
    resources: Mapping[str, Any] | None = None,
    lineage: Sink[CallRecord | CallRecords] | None = None,
) -> Topology:
    """The topology of a pipeline.

    Args:
        run: the run.
        tasks: of each bolt; more than one only where a runtime spreads them over processes.
        resources: for adapters, by name.
        lineage: where records of calls go; needed unless the pipeline's level is `off`.
    """
    # Calls have timeouts of their own, and held messages wait for as long as their adapter says.
    topology = Topology(run.spec.name, options={"message_timeout_s": None})
    settle = topology.sink(SETTLE, SettlingSink(run), parallelism=1, executors=1)
    records = topology.sink(LINEAGE, lineage, parallelism=1) if lineage is not None else None
    for route in run.routes:
        source: Source = topology.spout(route.name, QueueSpout(run, route.name))
        for number, segment in enumerate(segments_of(route), 1):
            name = f"{route.name}.{number}"
            # What accumulates over messages sees all of them.
            one_task = segment[2] and issubclass(route.adapters[segment[0]].adapter, StatefulAdapter)
            factory = _factory(run, route, segment, resources or {})
            bolt = topology.bolt(name, factory, parallelism=1 if one_task else tasks)
            bolt.shuffle(source)
            settle.shuffle(bolt.stream(Settlement))
            if records is not None and segment[1] > segment[0]:
                records.shuffle(bolt.stream(CallRecord if segment[2] else CallRecords))
            source = _next(bolt, route, segment)
    return topology


def _next(bolt: BoltHandle, route: RouteSpec, segment: Segment) -> Source:
    return bolt.stream(Work) if segment[1] < len(route.adapters) else bolt


def _factory(run: RunSpec, route: RouteSpec, segment: Segment, resources: Mapping[str, Any]) -> Any:
    start, stop, holds = segment
    if not holds:
        return partial(ChainBolt, run, route.name, start, stop, resources)
    kind = BatchBolt if issubclass(route.adapters[start].adapter, BatchAdapter) else StatefulBolt
    return partial(_holding, kind, run, route.name, start, resources)


def _holding(
    kind: type[BatchBolt | StatefulBolt], run: RunSpec, route: str, position: int, resources: Mapping[str, Any]
) -> BatchBolt | StatefulBolt:
    hold = partial(InProcess(run.key).hold, route)
    return kind(run.spec.routes[route], position, surroundings_of(run, resources), hold)
