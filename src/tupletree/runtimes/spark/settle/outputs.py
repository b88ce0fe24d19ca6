"""Outputs: which rows of an epoch's candidates are published with it, which wait for open trees, and which are dropped.

Also decides about rows that earlier epochs left waiting. Writes filtered candidates, the same ones whenever it decides
the same; writes nothing to the journal, publishes nothing, and changes nothing of the rows that wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

from tupletree.data.frames import Root
from tupletree.durable import sync_directory
from tupletree.ids import MessageId
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import OutputFile, WaitingFile
from tupletree.runtimes.spark.format.sidecars import (
    part_text,
    read_anchors,
    read_sidecar,
    rows_of,
    sidecar_of,
    write_sidecar,
)
from tupletree.runtimes.spark.format.spool import Spool, file_sink_of
from tupletree.runtimes.spark.format.wire import OutputReport
from tupletree.runtimes.spark.settle.open_trees import Decided, WaitingChanges, WaitingRows
from tupletree.runtimes.spark.settle.publish import final_name
from tupletree.runtimes.spark.settle.root_verdicts import RootVerdicts
from tupletree.sinks.files import CANDIDATE_PREFIX, FileSink


@dataclass
class ChosenOutputs:
    """The decision about candidates.

    Attributes:
        rows: what changes among the rows that wait.
        outputs: what is published with this epoch.
        waiting: candidates of this epoch some of whose rows wait.
        released: `WaitingFile.key` of candidates of earlier epochs of which no row waits any more.
        freed: roots none of whose rows waits any more.
        dropped: files to remove after the commit.
        changed: folders with new names, which are made to last before the commit.
    """

    rows: WaitingChanges
    outputs: list[OutputFile] = field(default_factory=list)
    waiting: list[WaitingFile] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)
    dropped: list[Path] = field(default_factory=list)
    changed: set[Path] = field(default_factory=set)


@dataclass
class _Piece:
    """Rows of one candidate that are published now: all of them, or those whose flag in `keep` is true.

    `roots` are those of called sinks' rows; where all are published they may be left out, for the sidecar has them.
    `own` distinguishes it from other files of its epoch; `folder` is where below the sink's they are published.
    """

    sink: str
    task_index: int
    own: str
    candidate: str
    rows: int
    roots: Sequence[Root]
    keep: Sequence[bool] | None = None
    folder: str = ""


class OutputChooser:
    """See the module docstring.

    Args:
        sinks: sink → absolute folder.
        run_id: of the run; part of every name.
    """

    def __init__(self, plan: Plan, sinks: Mapping[str, str], run_id: str) -> None:
        self._plan = plan
        self._sinks = sinks
        self._run_id = run_id

    def choose(
        self, reports: Sequence[OutputReport], verdicts: RootVerdicts, waiting: WaitingRows, version: str, epoch: int
    ) -> ChosenOutputs:
        """Decide about every row of this epoch's candidates, and about rows that waited for roots it settles.

        Args:
            reports: the candidates of the run that counts.
            verdicts: what becomes of roots in this epoch.
            waiting: rows of earlier epochs.
            version: generation, epoch and run, as names have them.
            epoch: its number.
        """
        chosen = ChosenOutputs(WaitingChanges(waiting))
        decisions = chosen.rows.decide(verdicts.completed, verdicts.dead, verdicts.is_unfinished, chosen.freed)
        pieces = [_released(decided, chosen, Path(self._sinks[decided.file.sink])) for decided in decisions]
        pieces += [self._taken(output, verdicts, epoch, chosen) for output in reports]
        spooled: dict[tuple[str, int], list[_Piece]] = {}
        prefix = f"{CANDIDATE_PREFIX}{self._run_id[:8]}-{version}-"
        for piece in pieces:
            if piece is None:
                continue
            if self._is_called(piece.sink):
                spooled.setdefault((piece.sink, piece.task_index), []).append(piece)
            else:
                self._publish(piece, f"{prefix}{piece.own}-kept", epoch, chosen)
        for (name, task_index), of_task in spooled.items():
            self._spool(name, task_index, of_task, f"{prefix}{task_index:04d}-kept", chosen)
        for folder in sorted(chosen.changed):
            sync_directory(folder)
        return chosen

    def read_sidecar(self, output: OutputReport) -> list[Root]:
        """The root of each row of a candidate."""
        return read_sidecar(Path(self._sinks[output.sink]) / output.sidecar)

    def _taken(self, output: OutputReport, verdicts: RootVerdicts, epoch: int, chosen: ChosenOutputs) -> _Piece | None:
        """Choose what is published now of a candidate of this epoch."""
        folder = Path(self._sinks[output.sink])
        own = f"{output.task_index:04d}{part_text(output.part)}"
        whole = _Piece(output.sink, output.task_index, own, output.candidate, output.rows, (), folder=output.folder)
        if not verdicts.withholds_rows:
            if not self._is_called(output.sink):
                chosen.dropped.append(folder / output.sidecar)
            return whole
        anchors = read_anchors(folder / output.sidecar)
        doubtful = verdicts.in_doubt(anchors)
        file = WaitingFile(
            output.sink,
            output.task_index,
            epoch,
            output.candidate,
            output.sidecar,
            output.rows,
            output.part,
            output.folder,
        )
        if verdicts.rows_may_wait and chosen.rows.add(file, doubtful, verdicts.is_unfinished, verdicts.is_dead):
            chosen.waiting.append(file)
            # It counts now, so it must survive a crash of the machine: its name, too, was another file's.
            layout = wire.pack_anchors(anchors)
            write_sidecar(folder / output.sidecar, layout, lasting=True, waits=folder / output.candidate)
            chosen.changed.add(folder)
        elif not self._is_called(output.sink):
            chosen.dropped.append(folder / output.sidecar)
        shown = verdicts.shown([root for _, root in doubtful])
        if all(shown):
            return whole
        if not chosen.waiting or chosen.waiting[-1] is not file:
            chosen.dropped += [folder / output.candidate, folder / output.sidecar]
        keep = [True] * output.rows
        for (position, _), is_shown in zip(doubtful, shown, strict=True):
            keep[position] = is_shown
        roots = [*compress(rows_of(anchors), keep)] if self._is_called(output.sink) else ()
        return replace(whole, rows=sum(keep), roots=roots, keep=keep) if any(keep) else None

    def _publish(self, piece: _Piece, kept: str, epoch: int, chosen: ChosenOutputs) -> None:
        """Name a file of these rows; `kept` is the stem of a candidate that has only those that are published."""
        folder, body = Path(self._sinks[piece.sink]), self._body(piece.sink)
        candidate = piece.candidate
        if piece.keep is not None:
            candidate = kept + body.suffix
            body.filter_candidate(folder / piece.candidate, folder / candidate, piece.keep)
            chosen.changed.add(folder)
        final = final_name(self._run_id, epoch, piece.own, body.suffix)
        final = f"{piece.folder}/{final}" if piece.folder else final
        chosen.outputs.append(OutputFile(piece.sink, candidate, final, piece.rows, piece.task_index))

    def _spool(self, sink: str, task_index: int, pieces: list[_Piece], kept: str, chosen: ChosenOutputs) -> None:
        """All rows of a task of a called sink as one candidate: an epoch calls it with one batch."""
        folder, spool = Path(self._sinks[sink]), self._body(sink)
        assert isinstance(spool, Spool)
        (first, *others) = pieces
        candidate = first.candidate
        if others or first.keep is not None:
            candidate = kept + spool.suffix
            rows: list[Any] = []
            made: list[int] = []
            ids: list[tuple[MessageId, ...]] = []
            roots: list[Root] = []
            for piece in pieces:
                read, numbers, names = spool.read(folder / piece.candidate)
                rows += read if piece.keep is None else compress(read, piece.keep)
                numbers = numbers or [0] * len(read)
                made += numbers if piece.keep is None else compress(numbers, piece.keep)
                names = names or [()] * len(read)
                ids += names if piece.keep is None else compress(names, piece.keep)
                sidecar = sidecar_of(folder / piece.candidate)
                roots += piece.roots or read_sidecar(sidecar)
                if piece.keep is None:
                    chosen.dropped += [folder / piece.candidate, sidecar]
            numbered, named = made if spool.ordered else None, ids if spool.names_messages else None
            spool.write_candidate(folder / candidate, rows, numbered, named)
            layout = wire.pack_layout(roots, range(1, len(roots) + 1))
            write_sidecar(sidecar_of(folder / candidate), layout, lasting=True)
            chosen.changed.add(folder)
        chosen.outputs.append(OutputFile(sink, candidate, "", sum(piece.rows for piece in pieces), task_index))

    def _is_called(self, sink: str) -> bool:
        return isinstance(self._body(sink), Spool)

    def _body(self, sink: str) -> FileSink:
        return file_sink_of(self._plan.spec, self._plan.spec.components[sink])


def _released(decided: Decided, chosen: ChosenOutputs, folder: Path) -> _Piece | None:
    """Choose what is published now of rows that have waited."""
    file = decided.file
    if decided.is_last:
        chosen.released.append(file.key)
        chosen.dropped += [folder / file.candidate, folder / file.sidecar]
    rows = sum(decided.publish)
    own = f"{file.task_index:04d}-{file.epoch:08d}{part_text(file.part)}"
    if not rows:
        return None
    return _Piece(file.sink, file.task_index, own, file.candidate, rows, decided.roots, decided.publish, file.folder)
