"""The sink that calls of adapters go to: the store of lineage, and what else is made of them.

Owns that no row of lineage ever fails a message, whatever becomes of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from tupletree.clock import Clock
from tupletree.routes.lineage.exports import Export
from tupletree.routes.lineage.levels import Level
from tupletree.routes.lineage.stores import open_store
from tupletree.routes.lineage.writer import Counts, LineageWriter
from tupletree.routes.messages import CallRecord, CallRecords
from tupletree.topology.components import Sink, SinkBatch, SinkContext

_lock = threading.Lock()
_open: dict[str, list[LineageSink]] = {}
"""Pipeline → sinks that are open in this process."""


def tell_pending(pipeline: str, records: Sequence[CallRecord]) -> None:
    """Calls go on, or came to nothing after that was told. In any thread; never waits.

    What a call comes to goes the way of all records, after this, and replaces it. Where the sink is in another process
    than the call, as on Spark, nothing is told.
    """
    with _lock:
        sinks = [*_open.get(pipeline, ())]
    for sink in sinks:
        sink.put(records)


class LineageSink(Sink[CallRecord | CallRecords]):
    """Gives records to a `LineageWriter` for each taker, and returns at once.

    A batch that comes again after a crash replaces its own rows. It may be sent to another process before `open`.

    Args:
        store: URL of the store (`open_store`).
        pipeline: name of the pipeline.
        level: `off`, `failures`, `sampled:SHARE` or `full`.
        keep_s: rows that ended longer ago are removed; 0: never.
        exports: further takers; these get all records, whatever the level.
        clock: for tests.

    Raises:
        ConfigError: no such level.
        RuntimeUnavailableError: what an export needs is not installed.
    """

    def __init__(
        self,
        store: str,
        pipeline: str,
        *,
        level: str = "full",
        keep_s: float = 0.0,
        exports: Sequence[Export] = (),
        clock: Clock | None = None,
    ) -> None:
        self.level = Level.parse(level)
        self.store = store
        self.pipeline = pipeline
        self.keep_s = keep_s
        self.exports = tuple(exports)
        for export in self.exports:
            export.check()
        self._clock = clock
        self._writer: LineageWriter | None = None
        self._exporting: list[LineageWriter] = []

    @property
    def counts(self) -> Counts:
        """What became of the records for the store so far."""
        return self._writer.counts if self._writer else Counts()

    def open(self, context: SinkContext) -> None:
        """Start the writers. Stores are connected by their threads."""
        del context
        if not self.level.is_off:
            self._writer = LineageWriter(
                lambda: open_store(self.store, self.pipeline, keep_s=self.keep_s), self.pipeline, clock=self._clock
            )

        with _lock:
            _open.setdefault(self.pipeline, []).append(self)
        for export in self.exports:
            export.begin(self.pipeline)
        self._exporting = [
            LineageWriter(partial(export.store, self.pipeline), self.pipeline, what=export.what, clock=self._clock)
            for export in self.exports
        ]

    def write(self, batch: SinkBatch[CallRecord | CallRecords]) -> None:
        """Give the writers what the level keeps. Never waits, never raises."""
        rows: list[CallRecord] = []
        for row in batch.rows:
            if isinstance(row, CallRecord):
                rows.append(row)
            else:
                rows += row.calls
        for export in self._exporting:
            export.put(rows)
        self.put(rows)

    def put(self, records: Sequence[CallRecord]) -> None:
        """Give the store what the level keeps. Never waits, never raises."""
        if self._writer is not None:
            keeps = self.level.keeps
            self._writer.put(records if self.level.name == "full" else [one for one in records if keeps(one)])

    def close(self) -> None:
        """Write what waits, for at most some seconds."""
        with _lock:
            if self in _open.get(self.pipeline, ()):
                _open[self.pipeline].remove(self)
        for writer in [self._writer, *self._exporting]:
            if writer is not None:
                writer.close()
