"""Slices: what one partition gets of an epoch, as offsets in the epoch's log.

The driver makes them of the log's header (`slices_of`); a worker reads the rows that one names (`rows_of_slice`). The
bytes of frames never pass through the driver again: every worker can read the epoch log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tupletree.durable import read_header
from tupletree.routing.plan import Plan
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader


class EpochSlice(msgspec.Struct, array_like=True):
    """One partition's part of an epoch.

    Attributes:
        path: of the epoch log.
        frames: (place, offset in the file, length of the head, length of the body) of each frame.
        splits: (place, head of a `SPLIT` row) of each piece of a source that this partition reads.
        wakes: the place that a `WAKE` row names; -1 for none.
        segments: (place, head of a `SEGMENT` row) of messages that executors took, and this partition reads.
    """

    path: str = ""
    frames: list[tuple[int, int, int, int]] = []
    splits: list[tuple[int, bytes]] = []
    wakes: int = -1
    segments: list[tuple[int, bytes]] = []


def slices_of(path: Path, plan: Plan, *, wakes: bool) -> list[EpochSlice]:
    """The slices of a logged epoch, one for each partition of the plan.

    Args:
        path: of the epoch log.
        plan: of this start; the log may have been written by one with another number of partitions.
        wakes: whether stages must see every partition, whether it has frames or not.

    Raises:
        CheckpointError: the log is missing or damaged.
    """
    header, body_offset = read_header(path, EpochHeader)
    partitions = plan.partitions
    slices = [EpochSlice(str(path), wakes=place if wakes else -1) for place in range(partitions)]
    # A task must not run in two partitions: the one its frames were cut for, and its present one.
    is_moved = header.partitions not in (0, partitions)  # 0: an epoch without frames
    with path.open("rb") as file:
        for place, offset, head_length, body_length in header.frames:
            if is_moved:
                file.seek(body_offset + offset)
                place = plan.placement(wire.decode_head(file.read(head_length)).task)
            slices[place % partitions].frames.append((place, body_offset + offset, head_length, body_length))
    for planned in header.splits:
        place = planned.place % plan.readers(planned.component) if is_moved else planned.place
        slices[place % partitions].splits.append((place, wire.encode_head(planned)))
    for segment in header.segments:
        place = segment.place % plan.readers(segment.component) if is_moved else segment.place
        slices[place % partitions].segments.append((place, wire.encode_head(segment)))
    return slices


def empty_slices(plan: Plan) -> list[EpochSlice]:
    """Slices of an epoch without rows: every partition runs, and does nothing."""
    return [EpochSlice() for _ in range(plan.partitions)]


def rows_of_slice(part: EpochSlice) -> Iterator[wire.Row]:
    """The rows that a slice names, in the order of the log."""
    if part.wakes >= 0:
        yield part.wakes, wire.WAKE, b"", b""
    for place, head in part.splits:
        yield place, wire.SPLIT, head, b""
    for place, head in part.segments:
        yield place, wire.SEGMENT, head, b""
    if not part.frames:
        return
    with Path(part.path).open("rb") as file:
        for place, offset, head_length, body_length in part.frames:
            file.seek(offset)
            yield place, wire.FRAME, file.read(head_length), file.read(body_length)
