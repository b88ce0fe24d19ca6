"""Records of calls for tests: written down once, told apart by what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tupletree.routes.lineage import Counts, LineageWriter, open_store
from tupletree.routes.messages import CallRecord

__all__ = ["call", "calls_of", "ingest", "write"]


def call(message: str, **changes: Any) -> CallRecord:
    """A call that was completed in 10 ms."""
    fields: dict[str, Any] = {
        "execution": "e1",
        "route": "convert",
        "adapter": "read",
        "position": 0,
        "message": message,
        "attempt": 1,
        "status": "completed",
        "started_s": 1000.0,
    }
    fields |= changes
    fields.setdefault("ended_s", fields["started_s"] + 0.01)
    return CallRecord(**fields)


def calls_of(message: str, route: str, *adapters: str, parents: Sequence[str] = (), **changes: Any) -> list[CallRecord]:
    """A chain of calls, a second each after the other."""
    start_s = changes.pop("started_s", 1000.0)
    return [
        call(
            message,
            route=route,
            adapter=name,
            position=position,
            started_s=start_s + position,
            parents=parents if position == 0 else (),
            **changes,
        )
        for position, name in enumerate(adapters)
    ]


def ingest() -> list[CallRecord]:
    """One document becomes two pieces, a batch makes one vector block of both; one of them failed once."""
    return [
        *calls_of("doc", "convert", "read", "convert"),
        *calls_of("piece-1", "segment", "clean", parents=["doc"], started_s=1010.0),
        call(
            "piece-2",
            route="segment",
            adapter="clean",
            parents=["doc"],
            started_s=1011.0,
            status="failed",
            error="ValueError: no text",
        ),
        *calls_of("piece-2", "segment", "clean", parents=["doc"], started_s=1012.0, attempt=2),
        *calls_of("block", "index", "store", parents=["piece-1", "piece-2"], started_s=1020.0, batch="b1"),
        *calls_of("other", "convert", "read", execution="e2", started_s=1030.0),
    ]


def write(url: str, records: Sequence[CallRecord], pipeline: str = "ingest") -> Counts:
    """Write records as a run does."""
    writer = LineageWriter(lambda: open_store(url, pipeline), pipeline, threaded=False)
    writer.put(records)
    writer.close()
    return writer.counts
