"""Frames: batches of tuples of one stream for one task, with their roots beside them.

A frame is the unit that both runtimes move: the ring buffer's batch locally, one row on Spark. It has ONE edge id
that all its roots share, which is correct because trees are per root.

Layout: `values[ends[i-1]:ends[i]]` belong to `roots[i]`. A root is an unsigned 64-bit id; 0 means untracked; a tuple
of ids means that these tuples are anchored to several roots. The same root may occur in several segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, TypeAlias

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
        made: for each tuple its number in the order of making (`topology.ordering`); None where the stream carries
        none.
        source: id of the emitting task; -1 where it is not known.
    """

    task: int
    component: str
    stream: str
    values: list[Any]
    roots: list[Root]
    ends: list[int]
    id: int
    made: Sequence[int] | None = None
    source: int = -1

    @property
    def size(self) -> int:
        """How many tuples."""
        return len(self.values)

    def segments(self) -> Iterator[tuple[Root, list[Any]]]:
        """Each root with its tuples."""
        return segments_of(self.values, self.roots, self.ends)


class Columns(Protocol):
    """Tuples as columns, with what each is anchored to: see `tupletree.data.columns`. Never empty."""

    def rows(self) -> list[Any]:
        """The tuples, as `Frame.values` has them."""
        ...

    def layout(self) -> tuple[list[Root], list[int]]:
        """What they are anchored to, as `Frame.roots` and `Frame.ends` say it."""
        ...

    def without(self, failed: Container[int]) -> Columns | None:
        """Those that are not anchored to failed roots alone; None if there are none."""
        ...

    def __len__(self) -> int:
        """How many tuples."""
        ...


class LaidOut:
    """What carries columns instead of values. `values`, `roots` and `ends` are made when first read.

    So code that knows no columns works on tuples, and code that does looks for a class derived from this one.

    Attributes:
        columns: `Columns`, of the one kind that there is, which code that works on them knows.
    """

    columns: Any
    values: list[Any]
    roots: list[Root]
    ends: list[int]

    def __getattr__(self, name: str) -> Any:  # only for what was not set yet
        if name == "values":
            self.values = self.columns.rows()
            return self.values
        if name in {"roots", "ends"}:
            self.roots, self.ends = self.columns.layout()
            return self.roots if name == "roots" else self.ends
        raise AttributeError(name)


class ColumnFrame(LaidOut, Frame):
    """A frame whose tuples are columns."""

    def __init__(self, task: int, component: str, stream: str, columns: Columns, edge: int, source: int = -1) -> None:
        self.task, self.component, self.stream, self.columns, self.id = task, component, stream, columns, edge
        self.source = source
        self.made = None

    @property
    def size(self) -> int:
        return len(self.columns)


class MadeRoot(int):
    """A root that carries the number of its tuple in the order of making: see `topology.ordering`. Otherwise an int."""

    made: int


class _MadeRoots(tuple[int, ...]):  # noqa: SLOT001 - a tuple's subclass can have no slots of its own
    """The same for a tuple of several roots."""

    made: int


def carrier(root: Root, made: int) -> Root:
    """The root, carrying a number."""
    laden = _MadeRoots(root) if isinstance(root, tuple) else MadeRoot(root)
    laden.made = made
    return laden


def made_of(root: Root) -> int | None:
    """The number that a root carries, if any."""
    return root.made if isinstance(root, MadeRoot | _MadeRoots) else None


def newest(first: int | None, second: int | None) -> int | None:
    """The higher of two numbers, as far as there are any."""
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


def plain_root(root: Root) -> Root:
    """The root without a number."""
    if isinstance(root, tuple):
        return tuple(map(int, root))
    return int(root)


def fewer(root: Root, kept: Sequence[int]) -> Root:
    """A root of which these are left, at least one; it keeps its number."""
    left: Root = kept[0] if len(kept) == 1 else tuple(kept)
    made = made_of(root)
    return left if made is None else carrier(left, made)


def roots_of(root: Root) -> tuple[int, ...]:
    """The tracked ids in a segment's root; empty for an untracked one."""
    if isinstance(root, tuple):
        return root
    return (root,) if root else ()


def ids_in(roots: Sequence[Root]) -> Iterable[int]:
    """All ids in the roots of segments, `UNTRACKED` among them; where each has one root, nothing is done for each."""
    if all(issubclass(kind, int) for kind in set(map(type, roots))):
        return roots  # type: ignore[return-value]  # just checked
    return chain.from_iterable(root if isinstance(root, tuple) else (root,) for root in roots)


def all_failed(root: Root, failed: Container[int]) -> bool:
    """Whether every root of a tracked segment is in `failed`; an untracked segment never is.

    >>> all_failed((1, 2), {1}), all_failed(0, {0}), all_failed(3, {3})
    (False, False, True)
    """
    if isinstance(root, tuple):
        return all(one in failed for one in root)
    return root != 0 and root in failed


def apart(frame: Frame) -> Frame:
    """The frame with each untracked tuple in a segment of its own; the same frame if nothing is untracked.

    Untracked tuples have no fate in common, so one that fails must not take its neighbours along.
    """
    if UNTRACKED not in frame.roots:
        return frame
    roots: list[Root] = []
    ends: list[int] = []
    start = 0
    for root, end in zip(frame.roots, frame.ends, strict=True):
        cuts = range(start + 1, end + 1) if root == UNTRACKED else (end,)
        roots.extend([root] * len(cuts))
        ends.extend(cuts)
        start = end
    return Frame(
        frame.task, frame.component, frame.stream, frame.values, roots, ends, frame.id, frame.made, frame.source
    )


def rest_of(frame: Frame, end: int, index: int) -> tuple[Frame, list[Root]]:
    """A frame that was left in the middle: its rest, and the roots that it is done with.

    Args:
        frame: the frame; its tuples are no columns.
        end: where the segment ends in which it was left.
        index: the first tuple that is not done.

    Returns:
        The tuples from there on, as a frame of the same id; and the roots all of whose tuples came before, each once.
    """
    at = bisect_left(frame.ends, end)
    roots, ends = frame.roots[at:], [one - index for one in frame.ends[at:]]
    rest = Frame(frame.task, frame.component, frame.stream, frame.values[index:], roots, ends, frame.id)
    rest.source = frame.source
    rest.made = None if frame.made is None else frame.made[index:]
    ahead = {one for root in roots for one in roots_of(root)}
    before = dict.fromkeys(one for root in frame.roots[:at] for one in roots_of(root))
    return rest, [one for one in before if one not in ahead]


def without(frame: Frame, failed: Mapping[int, object] | set[int]) -> Frame:
    """The frame less the segments whose roots have all failed; the same frame if there are none."""
    if isinstance(frame, ColumnFrame):
        columns = frame.columns.without(failed)
        if columns is None:
            return Frame(frame.task, frame.component, frame.stream, [], [], [], frame.id)
        return ColumnFrame(frame.task, frame.component, frame.stream, columns, frame.id, frame.source)
    if not any(all_failed(root, failed) for root in frame.roots):
        return frame
    return picked(frame, [not all_failed(root, failed) for root in frame.roots])


def picked(frame: Frame, keep: Sequence[bool]) -> Frame:
    """The frame with the segments whose flag is true."""
    pieces = [piece for piece, wanted in zip(frame.segments(), keep, strict=True) if wanted]
    values, roots, ends = join_segments(pieces)
    made: list[int] | None = None
    if frame.made is not None:
        made = []
        start = 0
        for end, wanted in zip(frame.ends, keep, strict=True):
            if wanted:
                made += frame.made[start:end]
            start = end
    return Frame(frame.task, frame.component, frame.stream, values, roots, ends, frame.id, made, frame.source)


def join_segments(pieces: list[tuple[Root, list[Any]]]) -> tuple[list[Any], list[Root], list[int]]:
    """Lay segments out as a frame does; adjacent segments with the same root become one segment, empty ones none.

    Roots that carry numbers are told apart by these.
    """
    values: list[Any] = []
    roots: list[Root] = []
    ends: list[int] = []
    for root, part in pieces:
        if not part:
            continue
        values.extend(part)
        if roots and (roots[-1] is root or (roots[-1] == root and made_of(root) is None)):
            ends[-1] = len(values)
        else:
            roots.append(root)
            ends.append(len(values))
    return values, roots, ends


def select(
    values: list[Any], roots: list[Root], ends: list[int], wanted: type
) -> tuple[list[Any], list[Root], list[int]]:
    """Keep the values of exactly this class, with their roots."""
    picked: list[Any] = []
    picked_roots: list[Root] = []
    picked_ends: list[int] = []
    for root, part in segments_of(values, roots, ends):
        mark = len(picked)
        picked.extend([value for value in part if type(value) is wanted])
        if len(picked) > mark:
            picked_roots.append(root)
            picked_ends.append(len(picked))
    return picked, picked_roots, picked_ends


def cut(frame: Frame, tuples: int) -> tuple[Frame, Frame, set[int]]:
    """Cut a frame behind so many tuples, fewer than it has: (the first of them, the others, roots that are in both).

    Both keep the frame's id. If there are roots in both, one of the two needs an id of its own, for a root is done with
    a frame once.

    >>> head, rest, both = cut(Frame(0, "lines", "Line", ["a", "b", "c"], [7, 8], [2, 3], 99), 1)
    >>> head.values, head.roots, rest.values, rest.roots, rest.ends, both
    (['a'], [7], ['b', 'c'], [7, 8], [1, 2], {7})
    """
    count = bisect_left(frame.ends, tuples) + 1  # segments that the head has tuples of
    is_clean = frame.ends[count - 1] == tuples
    first = count if is_clean else count - 1
    head_roots, rest_roots = frame.roots[:count], frame.roots[first:]
    head = Frame(
        frame.task,
        frame.component,
        frame.stream,
        frame.values[:tuples],
        head_roots,
        [*frame.ends[: count - 1], tuples],
        frame.id,
    )
    ends = [end - tuples for end in frame.ends[first:]]
    rest = Frame(frame.task, frame.component, frame.stream, frame.values[tuples:], rest_roots, ends, frame.id)
    head.source = rest.source = frame.source
    if frame.made is not None:
        head.made, rest.made = frame.made[:tuples], frame.made[tuples:]
    early = set(ids_in(head_roots))
    early.discard(UNTRACKED)
    return head, rest, early.intersection(ids_in(rest_roots))


def done_roots(frame: Frame, failed: Mapping[int, object]) -> list[Root]:
    """The frame's roots, as they are in it, without those in `failed`.

    Untracked segments and repetitions are not taken out: code that counts edges counts a root of a frame once.
    """
    if not failed:
        return frame.roots
    kept: list[Root] = []
    for root in frame.roots:
        if isinstance(root, tuple):
            kept.extend(one for one in root if one not in failed)
        elif root not in failed:
            kept.append(root)
    return kept


def segments_of(values: list[Any], roots: list[Root], ends: list[int]) -> Iterator[tuple[Root, list[Any]]]:
    """Each root with its values."""
    start = 0
    for root, end in zip(roots, ends, strict=True):
        yield root, values[start:end]
        start = end
