"""Chunks: what the calls of one frame emit, sent before the frame, or even a call, is over.

Owns when a chunk is large enough, and that tuples leave in the order in which they were emitted. What a call emitted
that goes on counts only once it returns, so it is sent separately. It does not know where chunks go: that is an
`effects.Outlet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tupletree.bolts.effects import Outlet, Output
from tupletree.data.frames import Root

FIRST = 64
"""Tuples that are taken of a call before it is checked whether its output is oversized."""

CHECK = 256
"""Tuples that are gathered before it is measured how many make a chunk."""

Sort = Callable[[list[Any], list[Root], list[int]], list[Output]]
"""Tuples laid out as in a frame → one output per stream."""


class Chunks:
    """The chunks of one frame.

    Attributes:
        values, roots, ends: what was emitted and not handed on, laid out as in a frame, without the segment in hand.
        room: how many tuples make a chunk, as far as it is known.
        is_poured: whether a chunk of the segment in hand was sent.

    Args:
        outlet: where chunks go.
        stream_of: the stream that a value goes to.
        sort: makes outputs of finished segments; what belongs nowhere fails.
        sort_open: the same for the segment in hand; raises for what belongs nowhere.
    """

    def __init__(self, outlet: Outlet, stream_of: Callable[[Any], str], sort: Sort, sort_open: Sort) -> None:
        self.values: list[Any] = []
        self.roots: list[Root] = []
        self.ends: list[int] = []
        self.room = CHECK
        self.is_poured = False
        self._outlet = outlet
        self._stream_of = stream_of
        self._sort = sort
        self._sort_open = sort_open

    @property
    def mark(self) -> int:
        """Where the segment in hand begins."""
        return self.ends[-1] if self.ends else 0

    def take_rest(self, rest: Iterator[Any], root: Root) -> None:
        """Take what a call still gives; of an oversized output, send each chunk."""
        values = self.values
        before = len(values)
        values.extend(islice(rest, FIRST))
        if len(values) - before < FIRST:
            return
        while True:
            self.measured()
            wanted = max(FIRST, self.room - (len(values) - self.mark))
            before = len(values)
            values.extend(islice(rest, wanted))
            if len(values) - before < wanted:
                return
            if len(values) - self.mark >= self.room:
                self._pour(root)

    def keep(self) -> None:
        """The segment in hand, of which a part was handed on, is over, and counts."""
        self._outlet.settle(counts=True)
        self.is_poured = False

    def drop(self, *, keeps: bool = False) -> None:
        """The segment in hand failed: nothing of it counts. `keeps`: what is still here does, and may be taken out."""
        if self.is_poured:
            self._outlet.settle(counts=False)
            self.is_poured = keeps = False
        if not keeps:
            del self.values[self.mark :]

    def measured(self) -> int:
        """How many tuples like the last one make a chunk."""
        if self.values:
            last = self.values[-1]
            self.room = max(1, self._outlet.room_for(self._stream_of(last), last))
        return self.room

    def take(self) -> list[Output]:
        """Every finished segment, as outputs."""
        mark = self.mark
        outputs = self._sort(self.values[:mark], self.roots[:], self.ends[:])
        del self.values[:mark]
        self.roots.clear()
        self.ends.clear()
        return outputs

    def _pour(self, root: Root) -> None:
        if self.ends:
            self._outlet.send(self.take())  # they came before
        outputs = self._sort_open(self.values[:], [root], [len(self.values)])
        self.values.clear()
        self.is_poured = True
        self._outlet.hold(outputs)
