"""The sink that calls of adapters go to.

Owns that no row of lineage ever fails a message, whatever becomes of the store.
"""

from __future__ import annotations

from tupletree.clock import Clock
from tupletree.routes.lineage.levels import Level
from tupletree.routes.lineage.stores import open_store
from tupletree.routes.lineage.writer import Counts, LineageWriter
from tupletree.routes.messages import CallRecord
from tupletree.topology.components import Sink, SinkBatch, SinkContext

__all__ = ["LineageSink"]


class LineageSink(Sink[CallRecord]):
    """Hands records to a `LineageWriter`, and returns at once.

    A batch that comes again after a crash replaces its own rows. It may be sent to another process before `open`.

    Args:
        store: URL of the store (`open_store`).
        pipeline: name of the pipeline.
        level: `off`, `failures`, `sampled:SHARE` or `full`.
        keep_s: rows that ended longer ago are removed; 0: never.
        clock: for tests.

    Raises:
        ConfigError: no such level, or store.
    """

    def __init__(
        self,
        store: str,
        pipeline: str,
        *,
        level: str = "full",
        keep_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.level = Level.parse(level)
        self.store = store
        self.pipeline = pipeline
        self.keep_s = keep_s
        self._clock = clock
        self._writer: LineageWriter | None = None

    @property
    def counts(self) -> Counts:
        """What became of the records so far."""
        return self._writer.counts if self._writer else Counts()

    def open(self, context: SinkContext) -> None:
        """Start the writer. The store is connected by its thread."""
        del context
        if not self.level.is_off:
            self._writer = LineageWriter(
                lambda: open_store(self.store, self.pipeline, keep_s=self.keep_s), self.pipeline, clock=self._clock
            )

    def write(self, batch: SinkBatch[CallRecord]) -> None:
        """Hand on what the level keeps. Never waits, never raises."""
        if self._writer is not None:
            rows = batch.rows
            self._writer.put(rows if self.level.name == "full" else [row for row in rows if self.level.keeps(row)])

    def close(self) -> None:
        """Write what waits, for at most some seconds."""
        if self._writer is not None:
            self._writer.close()
