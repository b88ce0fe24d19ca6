"""Sinks in a worker: a task's rows of one run become candidate files, each with a sidecar of its rows' roots."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tupletree.data.columns import Anchors, ArrowColumns, flat_roots
from tupletree.data.frames import ColumnFrame, Frame, Root, roots_of, segments_of
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.sidecars import part_text, sidecar_of, write_sidecar
from tupletree.runtimes.spark.format.spool import Spool
from tupletree.runtimes.spark.format.wire import FailRoot
from tupletree.runtimes.spark.worker.inbox import weight_of
from tupletree.sinks.files import CANDIDATE_PREFIX, Candidate, FileSink, SinkRowsError
from tupletree.sinks.folders import check_claimed
from tupletree.sinks.parquet import ParquetSink
from tupletree.topology.model import BoltSpec, ComponentSpec

if TYPE_CHECKING:
    from tupletree.ids import MessageId


class SinkTask:
    """Gathers the rows of one candidate of a sink task, or of one for each partition of theirs.

    Args:
        component: the sink.
        directory: its absolute folder.
        name: what makes the task's candidates unique: generation, epoch, run, task and attempt.
        part: which of them the first one is.
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
        self._name = name
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

    def write(self, task_index: int, fail: FailRoot) -> list[wire.OutputReport]:
        """Write the candidates; rows that the format refuses fail their roots. Empty if no row is left.

        Raises ConnectorError if that is not possible now, or the folder is not there any more.
        """
        if not isinstance(self._sink, Spool):
            check_claimed(self.directory)
        batches = [(one.codec.schema.cls, one.batch) for one in self._columns]
        if batches and isinstance(self._sink, ParquetSink):
            written = self._sink.write_batches(self._path_of, batches)
            if written:
                return self._reports(task_index, written, Anchors.joined([one.anchors for one in self._columns]))
        self._unfold()
        while self._values:
            try:
                written = self._write_values()
            except SinkRowsError as refused:
                self._drop(refused, fail)
            else:
                roots, widths = flat_roots(self._roots)
                return self._reports(task_index, written, Anchors(roots, np.asarray(self._ends, np.int64), widths))
        return []

    def _path_of(self, number: int) -> Path:
        part = part_text(self._part + number)
        return self.directory / f"{CANDIDATE_PREFIX}{self._name}{part}{self._sink.suffix}"

    def _write_values(self) -> list[Candidate]:
        if isinstance(self._sink, Spool) and self._sink.names_messages:
            segments = segments_of(self._values, self._roots, self._ends)
            ids = [self._ids_of(roots_of(root)) for root, values in segments for _ in values]
            self._sink.write_candidate(self._path_of(0), self._values, self._numbers(), ids)
            return [Candidate(self._path_of(0))]
        return self._sink.write_candidates(self._path_of, self._values, self._numbers())

    def _numbers(self) -> array[int] | None:
        if not self._sink.ordered:
            return None
        parts = [
            np.arange(one.start, one.stop) if isinstance(one, range) else np.array(one, np.int64) for one in self._made
        ]
        return array("q", np.concatenate(parts).tobytes())

    def _reports(self, task_index: int, written: Sequence[Candidate], anchors: Anchors) -> list[wire.OutputReport]:
        # A called sink gets the rows of a spool after the commit, and only then is it known which it refuses.
        lasting = isinstance(self._sink, Spool)
        divided = [one.rows for one in written if one.rows is not None]
        if divided:  # side by side, as their rows are
            anchors = anchors.take(np.concatenate(divided))
        reports = []
        start = 0
        for number, one in enumerate(written, self._part):
            sidecar, rows = sidecar_of(one.path), self.rows if one.rows is None else len(one.rows)
            of_rows = anchors if one.rows is None else anchors.slice(start, start + rows)
            start += rows
            write_sidecar(sidecar, wire.pack_anchors(of_rows), lasting=lasting)
            report = wire.OutputReport(
                self._component, task_index, one.path.name, sidecar.name, rows, number, one.folder
            )
            reports.append(report)
        return reports

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
