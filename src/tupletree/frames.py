"""Frames: batches of tuples of one stream for one task, with their roots beside them.

A frame is the unit that both runtimes move: the ring buffer's batch locally, one row on Spark. It has ONE edge id
that all its roots share, which is sound because trees are per root.

Layout: `values[ends[i-1]:ends[i]]` belong to `roots[i]`. A root is an unsigned 64-bit id; 0 means untracked; a tuple
of ids means that these tuples are anchored to several roots. The same root may stand in several segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["UNTRACKED", "Frame", "Root", "roots_of"]

Root: TypeAlias = "int | tuple[int, ...]"

UNTRACKED = 0


@dataclass(slots=True)
class Frame:
    """One batch.

    Attributes:
        task: id of the target task.
        component: the emitting component, with `stream` naming which of its streams this is.
        stream: stream name.
        values: the tuples.
        roots: one entry per segment.
        ends: where each segment ends in `values`; strictly increasing; `ends[-1] == len(values)`.
        id: the edge id, unsigned 64-bit, nonzero.
    """

    task: int
    component: str
    stream: str
    values: list[Any]
    roots: list[Root]
    ends: list[int]
    id: int

    def segments(self) -> Iterator[tuple[Root, list[Any]]]:
        """Each root with its tuples."""
        start = 0
        for root, end in zip(self.roots, self.ends, strict=True):
            yield root, self.values[start:end]
            start = end


def roots_of(root: Root) -> tuple[int, ...]:
    """The tracked ids in a segment's root; empty for an untracked one."""
    if isinstance(root, tuple):
        return root
    return (root,) if root else ()
