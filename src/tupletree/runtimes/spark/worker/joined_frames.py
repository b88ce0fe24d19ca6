"""Frames joined, as columns, for calls that may have the rows of many, so that what a call costs anyway counts less.

Owns how many rows that are, and the edges: a frame that was joined has ended, and the one that it is in now is worked
in its place. Refuses frames of different streams or tasks: user code may ask which it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame, Frame, without
from tupletree.runtimes.spark.worker.edges import Edges

JOINED_ROWS = 65_536
"""Rows of one call at most. Of four times as many the arrays no longer fit a processor's cache, and a call takes as
long as those for frames that are not joined."""

JOINED_BYTES = 16 * 1024 * 1024
"""And bytes, unless one frame has more."""


def join_frames(
    frames: Iterable[Frame],
    codecs: Mapping[tuple[str, str], ArrowCodec[Any]],
    skip: set[int],
    edges: Edges,
    new_id: Callable[[int], int],
) -> Iterator[Frame]:
    """Frames of a task, in their order, joined where they may be.

    Args:
        frames: what came to the task.
        codecs: of their streams.
        skip: roots that are not worked, which may become more.
        edges: of the run.
        new_id: a number of its own for each joined frame → its id.
    """
    waiting: list[tuple[Frame, ArrowColumns]] = []
    rows = length = made = 0
    for frame in frames:
        kept = without(frame, skip) if skip else frame
        columns = _columns_of(kept, codecs)
        more = 0 if columns is None else columns.batch.nbytes
        fits = rows + kept.size <= JOINED_ROWS and length + more <= JOINED_BYTES
        if waiting and not (fits and columns is not None and _origin(waiting[-1][0]) == _origin(kept)):
            yield _joined(waiting, edges, new_id(made))
            waiting, rows, length, made = [], 0, 0, made + 1
        if columns is None:
            yield kept
        else:
            waiting.append((kept, columns))
            rows, length = rows + kept.size, length + more
    if waiting:
        yield _joined(waiting, edges, new_id(made))


def _columns_of(frame: Frame, codecs: Mapping[tuple[str, str], ArrowCodec[Any]]) -> ArrowColumns | None:
    """A frame's tuples as columns; None if there are none, some cannot be, or they carry numbers."""
    if isinstance(frame, ColumnFrame):
        columns: ArrowColumns = frame.columns
        return columns
    if not frame.size or frame.made is not None:
        return None
    codec = codecs[frame.component, frame.stream]
    try:
        return ArrowColumns(codec.to_batch(frame.values), codec, Anchors.of(frame.roots, frame.ends))
    except EncodeError:
        return None  # which tuples it is about is found out where they fail


def _origin(frame: Frame) -> tuple[str, str, int]:
    return frame.component, frame.stream, frame.source


def _joined(frames: list[tuple[Frame, ArrowColumns]], edges: Edges, edge: int) -> Frame:
    first, _ = frames[0]
    if len(frames) == 1:
        return first
    columns = ArrowColumns.joined([columns for _, columns in frames])
    joined = ColumnFrame(first.task, first.component, first.stream, columns, edge, first.source)
    for frame, _ in frames:
        edges.taken(frame)
    edges.born(joined)
    return joined
