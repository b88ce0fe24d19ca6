"""The edges of a stage run: which were XORed into the trees of which roots.

Owns what becomes the run's ledger report. An edge that begins and ends in one run cancels out, so it is not
looked at unless a part of it remains.
"""

from __future__ import annotations

from collections.abc import Sequence

from tupletree.data.frames import Frame, Root
from tupletree.runtimes.spark.format import wire
from tupletree.tracking.ledger import Entries, combine


class Edges:
    """The edges of one run. Every frame is `born` before it ends, unless another run emitted it."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._roots: list[wire.U64] = []
        self._here: dict[int, Frame] = {}

    def born(self, frame: Frame) -> None:
        """A frame goes to a task of this run, as an object."""
        self._here[frame.id] = frame

    def sent(self, edge: int, roots: wire.U64) -> None:
        """A frame goes out as bytes."""
        self._enter(edge, roots)

    def ended(self, edge: int, roots: Sequence[Root]) -> None:
        """A task has finished these roots of a frame; `Frame.roots` itself if all of them."""
        frame = self._here.get(edge)
        if frame is not None and frame.roots is roots:
            del self._here[edge]
        else:
            self._enter(edge, wire.root_array(roots))

    def taken(self, frame: Frame) -> None:
        """A task has finished all of a frame, or what was left of it when its work began."""
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
