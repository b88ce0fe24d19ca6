"""Segments: messages that executors took from a broker, in a file that is durable before anything works on them.

A segment is written once, by one attempt of a task, and counts when an epoch log names it: until then its messages are
the broker's, which delivers them again. Its name has the number of the epoch that was the next one when it was asked
for: no earlier one names it. Owns the file; refuses to know what the messages are: `LeaseReader.read` does.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tupletree.durable import pack, read_container, write_once
from tupletree.errors import CheckpointError, InternalError
from tupletree.topology.components import Reject
from tupletree.topology.model import TopologySpec
from tupletree.topology.splits import Lease, LeaseReader


class PlannedSegment(msgspec.Struct, array_like=True, frozen=True):
    """Messages in a segment that an epoch has: an entry of the log's header, and the head of a `SEGMENT` row.

    The log has their ids and the rest among its other messages.

    Attributes:
        component: the spout whose `read` reads it.
        task: number of its task.
        place: the partition that reads it, among those that the epoch was cut for.
        file: name of the segment.
        ordinal: its number in the epoch, after those of the splits.
        rows: which of its messages, packed u32, ascending.
        roots: of these, packed u64.
        made: their numbers in the order of making, packed i64; empty where nothing asks for them.
    """

    component: str
    task: int
    place: int
    file: str
    ordinal: int
    rows: bytes
    roots: bytes
    made: bytes = b""


class TakeRequest(msgspec.Struct, array_like=True):
    """What one task is to take.

    Attributes:
        component: the spout.
        max_messages, max_bytes: see `LeaseReader.take`.
        directory: of segments.
        name: what the name of the file begins with.
    """

    component: str
    max_messages: int
    max_bytes: int
    directory: str
    name: str


class Taken(msgspec.Struct, array_like=True):
    """What one task has taken.

    Attributes:
        file: name of the segment; empty if there is none.
        leases: of its messages.
        lengths: of these, packed u32.
        fault: why there is no more: an encoded `wire.Unreadable`, or nothing.
    """

    file: str = ""
    leases: list[Lease] = []
    lengths: bytes = b""
    fault: bytes = b""


class SegmentRow(NamedTuple):
    """In the place of the value of a message whose value is in a segment: the file, and which of its messages it is."""

    file: str
    row: int
    size_bytes: int


class _Header(msgspec.Struct):
    """`lengths`: of the messages in the body, packed u32."""

    lengths: bytes


def epoch_of_segment(name: str) -> int:
    """The first epoch that may name a segment (RUN-GENERATION-EPOCH-…)."""
    return int(name.split("-")[2])


def write_segment(path: Path, messages: Sequence[bytes]) -> None:
    """Write a segment; it is durable when this returns. Raises OSError; InternalError if the name is taken."""
    lengths = array("I", map(len, messages)).tobytes()
    if not write_once(path, pack(_Header(lengths), messages)):
        raise InternalError("a segment has the name of another one", where=str(path))


def read_segment(path: Path, rows: Iterable[int]) -> Iterator[memoryview]:
    """These messages of a segment, which is verified. Raises CheckpointError if it is missing or damaged."""
    header, body = read_container(path, _Header)
    ends = array("Q", [0])
    for length in array("I", header.lengths):
        ends.append(ends[-1] + length)
    for row in rows:
        yield body[ends[row] : ends[row + 1]]


decode_segment = msgspec.msgpack.Decoder(PlannedSegment).decode
"""Read the head of a `SEGMENT` row; `wire.encode_head` makes it."""


class SegmentReader:
    """Reads values out of segments again, in the driver.

    Args:
        directory: of segments.
        spec: has the spouts that know how.
    """

    def __init__(self, directory: Path, spec: TopologySpec) -> None:
        self._directory = directory
        self._spec = spec

    def values(
        self, segments: Iterable[PlannedSegment], roots: Collection[int], unread: Collection[int] = ()
    ) -> dict[int, Any]:
        """Root → value, of these roots as far as they are in these segments; of what is rejected, its payload.

        `unread` are those that are not read: `read` may not return. They have their payload, too.
        """
        wanted = {*roots}
        values: dict[int, Any] = {}
        for planned in segments:
            found = {
                row: root
                for row, root in zip(array("I", planned.rows), array("Q", planned.roots), strict=True)
                if root in wanted
            }
            if found:
                reader = self.reader(planned.component)
                taken = read_segment(self._directory / planned.file, found)
                for root, message in zip(found.values(), taken, strict=True):
                    value = reader.payload(bytes(message)) if root in unread else reader.read(bytes(message))
                    values[root] = value.payload if isinstance(value, Reject) else value
        return values

    def check(self, planned: PlannedSegment) -> None:
        """Raise CheckpointError if a segment is missing or damaged, or if executors do not read its spout any more."""
        self.reader(planned.component)
        deque(read_segment(self._directory / planned.file, ()), maxlen=0)

    def reader(self, component: str) -> LeaseReader[Any]:
        """The spout that reads. Raises CheckpointError if executors do not read it any more."""
        body = self._spec.components[component].body
        if not isinstance(body, LeaseReader):
            raise CheckpointError(
                "messages are open that executors took from a queue, and this spout cannot read them",
                where=f"spout {component!r}",
                got=type(body).__qualname__,
                expected='a spout whose messages executors take, such as queue(…, read_on="executors")',
                next_step="start with the old spout, let it settle what is open, and change it then",
            )
        return body
