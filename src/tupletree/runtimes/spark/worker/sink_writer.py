"""Sinks in a worker: a task's rows of one run become candidate files, each with a sidecar of its rows' roots."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame, Frame, Root, roots_of, segments_of
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.sidecars import part_text, sidecar_of, write_sidecar
from tupletree.runtimes.spark.format.spool import Spool
from tupletree.runtimes.spark.format.wire import FailRoot
from tupletree.runtimes.spark.worker.inbox import weight_of
from tupletree.sinks.files import CANDIDATE_PREFIX, FileSink, SinkRowsError
from tupletree.sinks.folders import check_claimed
from tupletree.sinks.parquet import ParquetSink
from tupletree.topology.model import BoltSpec, ComponentSpec

if TYPE_CHECKING:
    from tupletree.ids import MessageId


# More than 12 attributes: one candidate and its sidecar while they are written.
class SinkTask:
    """Gathers the rows of one candidate of a sink task.

    Args:
        component: the sink.
        directory: its absolute folder.
        name: what makes the task's candidates unique: generation, epoch, run, task and attempt.
        part: which of them this is.
        ids_of: finds the message ids of roots.

    Attributes:
        weight: about how much memory the rows take, in bytes.
    """

    def __init__(
        self,
        component: ComponentSpec,
        directory: Path,
        name: str,
        part: int = 0,
        ids_of: Callable[[Sequence[int]], tuple[MessageId, ...]] = lambda _: (),
    ) -> None:
        self._ids_of = ids_of
        self._component = component.name
        self._sink: FileSink = component.body
        self.directory = directory
        self._part = part
        self._candidate = f"{CANDIDATE_PREFIX}{name}{part_text(part)}{self._sink.suffix}"
        self._sidecar = sidecar_of(Path(self._candidate)).name
        self._values: list[Any] = []
        self._roots: list[Root] = []
        self._ends: list[int] = []
        self._made: list[Sequence[int]] = []  # one after the other; mostly ranges
        self._columns: list[ArrowColumns] = []
        self.weight = 0

    @property
    def may_be_cut(self) -> bool:
        """Whether the rows may go into several candidates: a called sink is called once per epoch, with all of them."""
        return not isinstance(self._sink, Spool)

    @property
    def rows(self) -> int:
        """Rows gathered so far."""
        return len(self._values) + sum(map(len, self._columns))

    def take(self, frame: Frame) -> None:
        """Add a frame's tuples."""
        if not frame.size:
            return
        self.weight += weight_of(frame, 0 if isinstance(frame, ColumnFrame) else _length_of(frame.values))
        if isinstance(frame, ColumnFrame) and not self._values and not self._sink.ordered:
            self._columns.append(frame.columns)
            return
        self._unfold()
        self._add(frame)

    def _unfold(self) -> None:
        """Turn columns into tuples, because tuples have come too."""
        columns, self._columns = self._columns, []
        for one in columns:
            self._add(ColumnFrame(0, "", "", one, 0))

    def _add(self, frame: Frame) -> None:
        offset = len(self._values)
        self._values.extend(frame.values)
        if self._sink.ordered:
            self._made.append(frame.made if frame.made is not None else [0] * len(frame.values))
        self._roots.extend(frame.roots)
        self._ends.extend([offset + end for end in frame.ends] if offset else frame.ends)

    def write(self, task_index: int, fail: FailRoot) -> wire.OutputReport | None:
        """Write the candidate; rows that the format refuses fail their roots. None if no row is left.

        Raises ConnectorError if that is not possible now, or the folder is not there any more.
        """
        if not isinstance(self._sink, Spool):
            check_claimed(self.directory)
        path = self.directory / self._candidate
        batches = [(one.codec.schema.cls, one.batch) for one in self._columns]
        if batches and isinstance(self._sink, ParquetSink) and self._sink.write_batches(path, batches):
            layout = wire.pack_anchors(Anchors.joined([one.anchors for one in self._columns]))
            return self._report(task_index, layout)
        self._unfold()
        if not self._values:
            return None
        try:
            self._write_values(path)
        except SinkRowsError as refused:
            self._drop(refused, fail)
            if not self._values:
                return None
            self._write_values(path)
        return self._report(task_index, wire.pack_layout(self._roots, self._ends))

    def _write_values(self, path: Path) -> None:
        if isinstance(self._sink, Spool) and self._sink.names_messages:
            segments = segments_of(self._values, self._roots, self._ends)
            ids = [self._ids_of(roots_of(root)) for root, values in segments for _ in values]
            self._sink.write_candidate(path, self._values, self._numbers(), ids)
        else:
            self._sink.write_candidate(path, self._values, self._numbers())

    def _numbers(self) -> array[int] | None:
        if not self._sink.ordered:
            return None
        parts = [
            np.arange(one.start, one.stop) if isinstance(one, range) else np.array(one, np.int64) for one in self._made
        ]
        return array("q", np.concatenate(parts).tobytes())

    def _report(self, task_index: int, layout: tuple[bytes, bytes, bytes]) -> wire.OutputReport:
        # A called sink gets the rows of a spool after the commit, and only then is it known which it refuses.
        lasting = isinstance(self._sink, Spool)
        write_sidecar(self.directory / self._sidecar, layout, lasting=lasting)
        return wire.OutputReport(self._component, task_index, self._candidate, self._sidecar, self.rows, self._part)

    def _drop(self, refused: SinkRowsError, fail: FailRoot) -> None:
        errors = {row.position: f"{row.error_type}: {row.reason}" for row in refused.rows}
        frame = Frame(0, "", "", self._values, self._roots, self._ends, 0, self._numbers())
        wire.drop_positions(frame, errors, fail)
        self._values, self._roots, self._ends = frame.values, frame.roots, frame.ends
        self._made = [] if frame.made is None else [frame.made]


def _length_of(rows: list[Any]) -> float:
    """About how many bytes of fields a row has, estimated from a few."""
    few = rows[:: max(1, len(rows) // 4)]
    return sum(map(_size_of, few)) / len(few)


def _size_of(row: Any) -> int:
    try:
        return len(msgspec.msgpack.encode(row))
    except Exception:  # noqa: BLE001 - a row's own code may raise anything; whether it can be written is seen later
        return 0


def takes_columns(component: ComponentSpec) -> bool:
    """Whether frames for this component are to stay columns."""
    if component.kind == "sink":
        return isinstance(component.body, ParquetSink)
    return isinstance(component.body, BoltSpec) and component.body.is_vectorised
