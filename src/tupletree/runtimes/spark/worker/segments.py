"""Reads messages of segments in a worker: as what a task emits, each under the root that the epoch's log gives it.

A message that its reader does not survive, or is too long in, fails for good: without a value no attempt can be made.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from tupletree.bolts.effects import Output, Worked
from tupletree.bolts.failures import FailureMaker, safe_text
from tupletree.data.frames import Root
from tupletree.errors import ProcessingTimeoutError
from tupletree.runtimes.spark.format.segments import PlannedSegment, read_segment
from tupletree.runtimes.spark.worker.crash_markers import Blame, CrashMarker
from tupletree.runtimes.spark.worker.splits import FRAME_TUPLES, sendable
from tupletree.topology.model import ComponentSpec


class MessageReading:
    """How a stage's attempt makes values of a spout's messages.

    Args:
        component: the spout, with a body that reads.
        task_id: of the task that is to blame.
        fail: makes its failures.
        left_out: roots that the run leaves out: they are not read.
        marker: of the attempt.
    """

    def __init__(
        self,
        component: ComponentSpec,
        task_id: int,
        fail: FailureMaker,
        left_out: AbstractSet[int],
        marker: CrashMarker,
    ) -> None:
        self.component = component
        self.fail = fail
        self._task_id = task_id
        self._left_out = left_out
        self._marker = marker

    @cached_property
    def blamed(self) -> dict[int, Blame]:
        """Roots that earlier attempts crashed on when they read them."""
        return {root: blame for root, blame in self._marker.crash_history.roots.items() if blame.is_read}

    @cached_property
    def skip(self) -> AbstractSet[int]:
        """Roots that are not read."""
        return {*self._left_out, *self.blamed} if self.blamed else self._left_out

    def values(
        self, roots: Sequence[int], messages: Iterable[memoryview], worked: Worked
    ) -> tuple[list[Any], set[int]]:
        """(a value for each of these, the roots of those that have none); failures are added to `worked`."""
        values: list[Any] = []
        without: set[int] = set()
        skip, is_marking, read = self.skip, self._marker.is_marking, self.component.body.read
        for root, message in zip(roots, messages, strict=True):
            if root in skip:
                if root in self.blamed and root not in self._left_out:
                    worked.failures[root] = self.blamed[root].failure(self.component.name, self._shown(message))
                without.add(root)
                values.append(None)
                continue
            if is_marking:
                self._marker.mark(self._task_id, (root,), is_read=True)
            try:
                values.append(read(bytes(message)))
            except ProcessingTimeoutError as error:
                failure = self.fail.of(self._shown(message), error)
                worked.failures[root] = msgspec.structs.replace(failure, permanent=True)
                without.add(root)
                values.append(None)
        if is_marking:
            self._marker.rest()
        return values, without

    def _shown(self, message: memoryview) -> str:
        return safe_text(self.component.body.payload(bytes(message)))


def messages_of(planned: PlannedSegment, directory: Path, reading: MessageReading) -> Iterator[Worked]:
    """Read a segment, in chunks that make frames of the usual size; `Output.made` are the numbers, if there are any.

    Args:
        planned: the segment.
        directory: of segments.
        reading: makes values of its messages.

    Raises:
        CheckpointError: the segment is missing or damaged.
        ConnectorError: see `LeaseReader.read`.
    """
    (stream,) = reading.component.outputs.values()
    rows, all_roots, all_made = array("I", planned.rows), array("Q", planned.roots), array("q", planned.made)
    taken = read_segment(directory / planned.file, rows)
    for start in range(0, len(rows), FRAME_TUPLES):
        tracked = all_roots[start : start + FRAME_TUPLES]
        roots: list[Root] = [*tracked]
        made: Sequence[int] = [*all_made[start : start + FRAME_TUPLES]] or [0] * len(roots)
        worked = Worked()
        values, without = reading.values(tracked, islice(taken, len(roots)), worked)
        if without or {*map(type, values)} != {stream.schema.cls}:
            values, roots, made = sendable(values, roots, made, stream, reading.fail, without, worked)
        if values:
            ends = list(range(1, len(values) + 1))
            worked.outputs.append(Output(stream.name, values, roots, ends, made=made if all_made else None))
        yield worked
