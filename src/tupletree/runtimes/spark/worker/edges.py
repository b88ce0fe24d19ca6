"""The edges of a stage run: which were XORed into the trees of which roots.

Owns what becomes the run's ledger report. An edge that is born and ends in one run cancels out, so it is not even
looked at unless something of it stays behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from tupletree.data.frames import Frame, Root
from tupletree.runtimes.spark.format import wire
from tupletree.tracking.ledger import Entries, combine

__all__ = ["Edges"]


class Edges:
    """One run's. Every frame is `born` before it ends, unless it came from elsewhere."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._roots: list[wire.U64] = []
        self._here: dict[int, Frame] = {}

    def born(self, frame: Frame) -> None:
        """A frame goes to a task of this run, as the object that it is."""
        self._here[frame.id] = frame

    def sent(self, edge: int, roots: wire.U64) -> None:
        """A frame goes out as bytes."""
        self._enter(edge, roots)

    def ended(self, edge: int, roots: Sequence[Root]) -> None:
        """A task is done with these roots of a frame; with `Frame.roots` itself, if with all of them."""
        frame = self._here.get(edge)
        if frame is not None and frame.roots is roots:
            del self._here[edge]
        else:
            self._enter(edge, wire.root_array(roots))

    def taken(self, frame: Frame) -> None:
        """A task is done with all of a frame, or with what was left of it when it came to work on it."""
        if self._here.get(frame.id) is frame:
            del self._here[frame.id]
        else:
            self._enter(frame.id, wire.frame_roots(frame))

    def entries(self) -> Entries | None:
        """The ledger of the run; None if there is nothing in it. Call it once, at the end."""
        for frame in self._here.values():
            self._enter(frame.id, wire.frame_roots(frame))
        return combine(self._values, self._roots) if self._values else None

    def _enter(self, edge: int, roots: wire.U64) -> None:
        if len(roots):
            self._values.append(edge)
            self._roots.append(roots)
