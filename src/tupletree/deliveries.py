"""Deliveries: tuples that stay in a bolt's hands beyond the frame they came in.

Owns when a frame is done for a root: once all its tuples there are settled, in whatever order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tupletree.frames import Frame, Root, roots_of

__all__ = ["Delivery", "deliveries_of"]


@dataclass(slots=True, eq=False)
class Delivery:
    """One tuple. `unsettled` counts, per root, the open tuples of the frame it came in; they share it."""

    value: Any
    root: Root
    frame_id: int
    unsettled: dict[int, int]
    open: bool = True

    def settle(self, done: dict[int, list[Root]]) -> None:
        """Close it, and add to `done` (by frame id) the roots that have no open tuple left in its frame."""
        self.open = False
        for root in roots_of(self.root):
            self.unsettled[root] -= 1
            if not self.unsettled[root]:
                done.setdefault(self.frame_id, []).append(root)


def deliveries_of(frame: Frame) -> list[Delivery]:
    """The tuples of a frame, in order.

    >>> first, second = deliveries_of(Frame(0, "lines", "Line", ["a", "b"], [7], [2], 99))
    >>> done = {}
    >>> second.settle(done), done
    (None, {})
    >>> first.settle(done), done
    (None, {99: [7]})
    """
    unsettled: dict[int, int] = {}
    deliveries: list[Delivery] = []
    for root, values in frame.segments():
        for one in roots_of(root):
            unsettled[one] = unsettled.get(one, 0) + len(values)
        deliveries += [Delivery(value, root, frame.id, unsettled) for value in values]
    return deliveries
