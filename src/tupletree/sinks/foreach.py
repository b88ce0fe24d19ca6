"""A sink that is one function: for databases and services that have no sink of their own yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tupletree.topology.components import Sink, SinkBatch

T = TypeVar("T")


class ForeachSink(Sink[T], Generic[T]):
    """Call `write` with each batch whose messages completed.

    At least once: after a crash a batch comes again with the same `batch.id` (locally: as another batch), so a function
    that remembers ids makes it exactly once. On Spark it is called by one thread of the driver, once the rows' epoch is
    committed; what it may raise is documented at `Sink.write`.
    """

    def __init__(self, write: Callable[[SinkBatch[T]], None]) -> None:
        self._write = write

    def write(self, batch: SinkBatch[T]) -> None:
        self._write(batch)


foreach = ForeachSink
