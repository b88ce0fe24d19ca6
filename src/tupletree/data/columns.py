"""Tuples as columns: a record batch, and arrays that say what each row is anchored to.

Owns taking, joining and grouping rows together with what they are anchored to, so that no Python object is made per
tuple. Imported lazily: it imports numpy and pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import UNTRACKED, Root, carrier, made_of
from tupletree.tracking.ledger import distinct

Indices: TypeAlias = "npt.NDArray[np.int64]"
U64: TypeAlias = "npt.NDArray[np.uint64]"


@dataclass(frozen=True, slots=True)
class Anchors:
    """What rows are anchored to, laid out as in `Frame`, in arrays.

    Attributes:
        roots: the roots of all segments, one segment after the other; 0 is untracked.
        ends: where each segment ends, in rows.
        widths: how many roots each segment has; None where each has one.
        made: the number of each segment in the order of making, where its roots carry it (`topology.ordering`).
    """

    roots: U64
    ends: Indices
    widths: Indices | None = None
    made: Indices | None = None

    @classmethod
    def of(cls, roots: Sequence[Root], ends: Sequence[int]) -> Anchors:
        """From `Frame.roots` and `Frame.ends`."""
        flat, widths = flat_roots(roots)
        made = None
        if roots and made_of(roots[0]) is not None:
            made = np.array([made_of(root) for root in roots], np.int64)
        return cls(flat, np.asarray(ends, np.int64), widths, made)

    def layout(self) -> tuple[list[Root], list[int]]:
        """As `Frame.roots` and `Frame.ends`."""
        flat: list[Any] = self.roots.tolist()
        if self.widths is not None:
            stops = np.cumsum(self.widths).tolist()
            flat = [
                flat[start] if stop - start == 1 else tuple(flat[start:stop]) for start, stop in zip([0, *stops], stops)
            ]
        if self.made is not None:
            flat = [carrier(root, number) for root, number in zip(flat, self.made.tolist(), strict=True)]
        return flat, self.ends.tolist()

    def segments(self) -> Indices:
        """The segment of each row."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def take(self, rows: Indices) -> Anchors:
        """Of these rows, in this order, at least one."""
        segments = self.segments()[rows]
        last = np.append(segments[1:] != segments[:-1], True)
        ends = np.flatnonzero(last) + 1
        picked = segments[last]
        if self.widths is None:
            return Anchors(self.roots[picked], ends, None, self._made_at(picked))
        return Anchors(self._roots_of(picked), ends, self.widths[picked], self._made_at(picked))

    def slice(self, start: int, stop: int) -> Anchors:
        """Of the rows from `start` to `stop`, at least one."""
        first = int(np.searchsorted(self.ends, start, "right"))
        last = int(np.searchsorted(self.ends, stop, "left"))
        ends = self.ends[first : last + 1] - start
        ends[-1] = stop - start
        if self.widths is None:
            return Anchors(self.roots[first : last + 1], ends, None, self._made_at(slice(first, last + 1)))
        segments = np.arange(first, last + 1)
        return Anchors(self._roots_of(segments), ends, self.widths[first : last + 1], self._made_at(segments))

    def whole(self, rows: int) -> Anchors:
        """Of `rows` rows, each anchored to everything that any row here is."""
        roots = distinct(self.roots[self.roots != UNTRACKED])
        made = None if self.made is None else self.made.max(keepdims=True)
        if len(roots) <= 1:
            return Anchors(roots if len(roots) else np.zeros(1, np.uint64), np.array([rows]), None, made)
        return Anchors(roots, np.array([rows]), np.array([len(roots)]), made)

    def grouped(self, rows: Indices, groups: Indices, count: int) -> Anchors:
        """Of `count` new rows: number `groups[i]` is anchored to what row `rows[i]` here is, among others.

        A new row with no source row, or with untracked ones alone, is untracked.
        """
        segments = self.segments()[rows]
        made: Indices | None = None
        if self.made is not None:
            made = np.zeros(count, np.int64)
            np.maximum.at(made, groups, self.made[segments])
        # Each pair once: most rows of a group are alone in their segment, but a line may hold a word twice.
        pairs = distinct(groups * len(self.ends) + segments)
        groups, segments = np.divmod(pairs, len(self.ends))
        roots = self.roots[segments] if self.widths is None else self._roots_of(segments)
        if self.widths is not None:
            groups = np.repeat(groups, self.widths[segments])
        tracked = roots != UNTRACKED
        if not tracked.all():
            groups, roots = groups[tracked], roots[tracked]
        if len(distinct(self.roots)) < len(self.roots):  # one root in several segments
            order = np.lexsort((roots, groups))
            groups, roots = groups[order], roots[order]
            first = np.append(True, (groups[1:] != groups[:-1]) | (roots[1:] != roots[:-1]))[: len(groups)]
            groups, roots = groups[first], roots[first]
        widths = np.bincount(groups, minlength=count)
        if not widths.all():
            rootless = np.flatnonzero(widths == 0)
            roots = np.insert(roots, np.searchsorted(groups, rootless), UNTRACKED)
            widths[rootless] = 1
        ends = np.arange(1, count + 1)
        return Anchors(roots, ends, None if len(roots) == count else widths, made)

    def alive(self, failed: Container[int]) -> npt.NDArray[np.bool_] | None:
        """Which rows are not anchored to failed roots alone; None if all are. As `frames.all_failed`."""
        names = distinct(self.roots)
        bad = names[[root != UNTRACKED and root in failed for root in names.tolist()]]
        if not len(bad):
            return None
        kept = ~np.isin(self.roots, bad)
        if self.widths is not None:
            kept = np.logical_or.reduceat(kept, np.cumsum(self.widths) - self.widths)
        return None if kept.all() else kept[self.segments()]

    def rows_of(self, roots: Collection[int]) -> list[tuple[int, Root]]:
        """The rows that are anchored to any of these roots: their positions, and what each is anchored to."""
        found = np.isin(self.roots, np.array([*roots], np.uint64))
        if self.widths is not None:
            found = np.logical_or.reduceat(found, np.cumsum(self.widths) - self.widths)
        rows = np.flatnonzero(found[self.segments()])
        if not len(rows):
            return []
        layout, ends = self.take(rows).layout()
        anchored: list[Root] = []
        for root, end in zip(layout, ends, strict=True):
            anchored += [root] * (end - len(anchored))
        return [*zip(rows.tolist(), anchored, strict=True)]

    def _made_at(self, segments: Any) -> Indices | None:
        return None if self.made is None else self.made[segments]

    def _roots_of(self, segments: Indices) -> U64:
        """The roots of these segments, one segment after the other."""
        assert self.widths is not None
        starts, widths = (np.cumsum(self.widths) - self.widths)[segments], self.widths[segments]
        offsets = np.cumsum(widths) - widths
        found: U64 = self.roots[np.arange(widths.sum()) + np.repeat(starts - offsets, widths)]
        return found

    @classmethod
    def joined(cls, parts: Sequence[Anchors]) -> Anchors:
        """Of the rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(part.ends[-1] for part in parts[:-1])])
        ends = np.concatenate([part.ends + start for part, start in zip(parts, starts)])
        widths = None
        if any(part.widths is not None for part in parts):
            widths = np.concatenate(
                [part.widths if part.widths is not None else np.ones(len(part.ends), np.int64) for part in parts]
            )
        numbers = [part.made for part in parts if part.made is not None]
        made = np.concatenate(numbers) if len(numbers) == len(parts) else None
        return cls(np.concatenate([part.roots for part in parts]), ends, widths, made)


@dataclass(frozen=True, slots=True)
class ArrowColumns:
    """A batch of one stream with its anchors; see `frames.Columns`. Read only, never empty.

    Attributes:
        batch: rows of the codec's `arrow_schema`.
        codec: of the stream.
        anchors: what they are anchored to.
    """

    batch: pa.RecordBatch
    codec: ArrowCodec[Any]
    anchors: Anchors

    def __len__(self) -> int:
        return self.batch.num_rows

    def rows(self) -> list[Any]:
        """The tuples."""
        return self.codec.from_batch(self.batch)

    def layout(self) -> tuple[list[Root], list[int]]:
        """See `frames.Columns`."""
        return self.anchors.layout()

    def take(self, rows: Indices) -> ArrowColumns:
        """These rows, in this order, at least one."""
        return ArrowColumns(self.batch.take(pa.array(rows, pa.int64())), self.codec, self.anchors.take(rows))

    def slice(self, start: int, stop: int) -> ArrowColumns:
        """The rows from `start` to `stop`, at least one."""
        if start == 0 and stop == len(self):
            return self
        return ArrowColumns(self.batch.slice(start, stop - start), self.codec, self.anchors.slice(start, stop))

    def without(self, failed: Container[int]) -> ArrowColumns | None:
        """What is not anchored to failed roots alone; None if that is nothing."""
        alive = self.anchors.alive(failed)
        if alive is None:
            return self
        rows = np.flatnonzero(alive)
        return self.take(rows) if len(rows) else None

    def root_of(self, row: int) -> Root:
        """What a row is anchored to."""
        roots, _ = self.anchors.slice(row, row + 1).layout()
        return roots[0]

    @classmethod
    def joined(cls, parts: Sequence[ArrowColumns]) -> ArrowColumns:
        """The rows of all parts, which are of one stream, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        (batch,) = pa.Table.from_batches([part.batch for part in parts]).combine_chunks().to_batches()
        return cls(batch, parts[0].codec, Anchors.joined([part.anchors for part in parts]))


def distinct_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[Indices, Indices]:
    """Which rows are equal in these columns, bit by bit or closer.

    Returns:
        (codes, first): for each row the number of its kind, and for each kind its first row. Kinds are numbered in the
        order of their first rows.
    """
    codes = _codes(batch.column(columns[0]))
    for name in columns[1:]:
        more = _codes(batch.column(name))
        # Numbered again each time, so that the product stays far below 64 bits.
        codes = np.unique(codes * (more.max() + 1) + more, return_inverse=True)[1]
    kinds = int(codes.max()) + 1
    first = np.empty(kinds, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    order = np.argsort(first)
    if not np.array_equal(order, np.arange(kinds)):
        rank = np.empty(kinds, np.int64)
        rank[order] = np.arange(kinds)
        codes, first = rank[codes], first[order]
    return codes, first


def _codes(column: pa.Array[Any]) -> Indices:
    encoded = column.dictionary_encode("encode")
    return np.asarray(encoded.indices).astype(np.int64)


def flat_roots(roots: Sequence[Root]) -> tuple[U64, Indices | None]:
    """(all roots, how many each segment has), or None for one each."""
    try:
        return _ids(roots), None
    except TypeError:  # some segment has several roots
        groups = [root if isinstance(root, tuple) else (root,) for root in roots]
        return _ids([one for group in groups for one in group]), np.array([len(group) for group in groups])


def _ids(roots: Any) -> U64:
    return np.frombuffer(array("Q", roots), np.uint64)
