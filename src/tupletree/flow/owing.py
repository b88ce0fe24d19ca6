"""Owed edges: those of tuples that a task emitted for messages whose tuples it still holds.

Owns that an ackers' word about a message is one message per input, whenever the task settles it: its edge XOR all edges
that were emitted for it meanwhile. Were the emitted edges told as they go out, the word that an input is done could
overtake them, and an acker would see a tree as complete whose tuples are on their way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tupletree.effects import Worked
from tupletree.flow.outbox import Outbox
from tupletree.frames import Root, roots_of

__all__ = ["OwedEdges"]


class OwedEdges:
    """One task's."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def __len__(self) -> int:
        """Messages with edges that are owed."""
        return len(self._values)

    def add(self, edge: int, roots: Iterable[int]) -> None:
        """Owe an edge for these messages, each named once."""
        owed = self._values
        for root in roots:
            owed[root] = owed.get(root, 0) ^ edge

    def carry_out(self, sent: Iterable[tuple[int, Sequence[Root]]], worked: Worked, out: Outbox) -> None:
        """Put into the outbox what is done, with all that was emitted for it, and keep the rest.

        Args:
            sent: (edge, roots) of the frames that went out with this call.
            worked: what came of the call.
            out: where deltas go.
        """
        owed = self._values
        for edge, roots in sent:
            self.add(edge, _distinct(roots))
        for frame_id, roots in worked.done:
            for root in _distinct(roots):
                out.add_delta(frame_id ^ owed.pop(root, 0), [root])
        self.forget(worked.failures)

    def forget(self, roots: Iterable[int]) -> None:
        """These messages failed: nobody waits for their edges."""
        for root in roots:
            self._values.pop(root, None)


def _distinct(roots: Sequence[Root]) -> set[int]:
    return {one for entry in roots for one in roots_of(entry)}
