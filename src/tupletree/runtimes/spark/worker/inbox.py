"""Frames that wait within a stage: for their tasks, and as rows for Spark.

They are held as bytes, decoded one at a time, and beyond a limit are in a file (`spill_buffer`); frames that
a task emitted for another task of its stage stay objects while there is room. Refuses to route and to encode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tupletree.data.frames import ColumnFrame, Frame
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.worker.spill_buffer import SpillBuffer, SpillSlot

OBJECT_BYTES = 200
"""About what a tuple takes as a Python object beyond the bytes of its fields."""

Decode = Callable[[wire.FrameHead, Any], Frame]


@dataclass(slots=True)
class QueuedFrame:
    """A frame for a task: the object, with what it takes of the spill buffer, or its bytes."""

    source: int
    sequence: int
    frame: Frame | None
    slot: SpillSlot | None = None
    weight: int = 0


class QueuedFrames:
    """All frames of one task, in order; each pass over them decodes them again, one at a time.

    Attributes:
        first: frames that come before the others.
    """

    def __init__(self, spill_buffer: SpillBuffer, arrivals: list[QueuedFrame], decode: Decode) -> None:
        self._spill_buffer = spill_buffer
        self._queued = sorted(arrivals, key=attrgetter("source", "sequence"))
        self._decode = decode
        self.first: list[Frame] = []

    def __bool__(self) -> bool:
        return bool(self.first or self._queued)

    def __iter__(self) -> Iterator[Frame]:
        yield from self.first
        for arrival in self._queued:
            yield self._frame(arrival)

    def __len__(self) -> int:
        return len(self.first) + len(self._queued)

    def at(self, index: int) -> Frame:
        """One of them."""
        return self.first[index] if index < len(self.first) else self._frame(self._queued[index - len(self.first)])

    def release(self) -> None:
        """They are not needed any more."""
        for arrival in self._queued:
            if arrival.slot is not None:
                arrival.slot.release()
            else:
                self._spill_buffer.give_back(arrival.weight)
        self._queued = []

    def _frame(self, arrival: QueuedFrame) -> Frame:
        if arrival.frame is not None:
            return arrival.frame
        assert arrival.slot is not None, "a queued frame is a frame or its bytes"
        head, body = arrival.slot.read()
        return self._decode(wire.decode_head(memoryview(head)), body)


class Inbox:
    """Frames for the tasks of a partition that are not worked yet."""

    def __init__(self, spill_buffer: SpillBuffer, decode: Callable[[int], Decode]) -> None:
        self._spill_buffer = spill_buffer
        self._decode = decode
        self._queued: dict[int, list[QueuedFrame]] = {}

    def __bool__(self) -> bool:
        return bool(self._queued)

    def add(self, task: int, arrival: QueuedFrame) -> None:
        """Add a frame for a task."""
        self._queued.setdefault(task, []).append(arrival)

    def take(self, task: int) -> QueuedFrames:
        """Take all frames of a task."""
        return QueuedFrames(self._spill_buffer, self._queued.pop(task, []), self._decode(task))


class OutgoingRows:
    """Rows on their way to Spark."""

    def __init__(self, spill_buffer: SpillBuffer) -> None:
        self._spill_buffer = spill_buffer
        self._rows: list[tuple[int, int, SpillSlot]] = []

    def put(self, place: int, kind: int, head: bytes, body: Any = b"") -> None:
        """Add a row."""
        self.put_slot(place, kind, self._spill_buffer.put(head, body))

    def put_slot(self, place: int, kind: int, slot: SpillSlot) -> None:
        """Add a row whose bytes are in the spill buffer."""
        self._rows.append((place, kind, slot))

    def take(self) -> Iterator[wire.Row]:
        """Take the rows."""
        rows, self._rows = self._rows, []
        for place, kind, slot in rows:
            yield place, kind, *slot.take()


def weight_of(frame: Frame, length: float) -> int:
    """About how many bytes a frame takes as an object, if one of its tuples takes `length` bytes as a row."""
    if isinstance(frame, ColumnFrame):
        return int(frame.columns.batch.nbytes)
    return int(frame.size * (OBJECT_BYTES + length))
