"""Reads messages of segments in a worker: as what a task emits, each under the root that the epoch's log gives it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Any

from tupletree.bolts.effects import Output, Worked
from tupletree.bolts.failures import FailureMaker
from tupletree.data.frames import Root
from tupletree.runtimes.spark.format.segments import PlannedSegment, read_segment
from tupletree.runtimes.spark.worker.splits import FRAME_TUPLES, sendable
from tupletree.topology.model import ComponentSpec


def messages_of(
    planned: PlannedSegment, directory: Path, component: ComponentSpec, fail: FailureMaker, skip: AbstractSet[int]
) -> Iterator[Worked]:
    """Read a segment, in chunks that make frames of the usual size; `Output.made` are the numbers, if there are any.

    Args:
        planned: the segment.
        directory: of segments.
        component: the spout, with a body that reads.
        fail: makes its failures.
        skip: roots that are left out.

    Raises:
        CheckpointError: the segment is missing or damaged.
        ConnectorError: see `LeaseReader.read`.
    """
    (stream,) = component.outputs.values()
    rows, all_roots, all_made = array("I", planned.rows), array("Q", planned.roots), array("q", planned.made)
    taken = read_segment(directory / planned.file, rows)
    for start in range(0, len(rows), FRAME_TUPLES):
        roots: list[Root] = [*all_roots[start : start + FRAME_TUPLES]]
        made: Sequence[int] = [*all_made[start : start + FRAME_TUPLES]] or [0] * len(roots)
        values: list[Any] = [component.body.read(bytes(message)) for message in islice(taken, len(roots))]
        worked = Worked()
        if skip or {*map(type, values)} != {stream.schema.cls}:
            values, roots, made = sendable(values, roots, made, stream, fail, skip, worked)
        if values:
            ends = list(range(1, len(values) + 1))
            worked.outputs.append(Output(stream.name, values, roots, ends, made=made if all_made else None))
        yield worked
