"""Columns with anchors do what lists of tuples and roots do."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors, ArrowColumns, distinct_rows
from tupletree.data.frames import ColumnFrame, Frame, Root, all_failed, roots_of, without
from tupletree.topology.streams import Schema


class Number(msgspec.Struct, frozen=True):
    number: int


CODEC = ArrowCodec.of(Schema.of(Number))
ROOTS: st.SearchStrategy[Root] = st.integers(0, 5) | st.sampled_from([(1, 2), (2, 3, 2**64 - 1)])
LAYOUTS = st.lists(st.tuples(ROOTS, st.integers(1, 4)), min_size=1, max_size=8)


def columns_of(layout: list[tuple[Root, int]]) -> ArrowColumns:
    """Numbers from 0, in these segments."""
    ends = np.cumsum([size for _, size in layout]).tolist()
    values = [Number(number) for number in range(ends[-1])]
    return ArrowColumns(CODEC.to_batch(values), CODEC, Anchors.of([root for root, _ in layout], ends))


def owners(columns: ArrowColumns) -> list[tuple[Any, Root]]:
    """Every tuple with its root."""
    roots, ends = columns.layout()
    frame = Frame(0, "", "", columns.rows(), roots, ends, 1)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(columns)
    return [(value, root) for root, values in frame.segments() for value in values]


@settings(deadline=None)
@given(LAYOUTS, st.data())
def test_rows_keep_their_roots_however_they_are_taken(layout: list[tuple[Root, int]], data: st.DataObject) -> None:
    columns = columns_of(layout)
    every = owners(columns)
    assert [root for _, root in every] == [root for root, size in layout for _ in range(size)]
    rows = data.draw(st.lists(st.integers(0, len(columns) - 1), min_size=1))
    assert owners(columns.take(np.array(rows))) == [every[row] for row in rows]
    start = data.draw(st.integers(0, len(columns) - 1))
    stop = data.draw(st.integers(start + 1, len(columns)))
    assert owners(columns.slice(start, stop)) == every[start:stop]
    assert columns.root_of(start) == every[start][1]
    assert owners(ArrowColumns.joined([columns, columns.slice(start, stop)])) == every + every[start:stop]


@settings(deadline=None)
@given(LAYOUTS, st.sets(st.sampled_from([0, 1, 2, 3, 2**64 - 1])))
def test_what_only_failed_roots_own_goes_and_nothing_else(layout: list[tuple[Root, int]], failed: set[int]) -> None:
    columns = columns_of(layout)
    frame = ColumnFrame(1, "a", "b", columns, 9)
    expected = [one for one in owners(columns) if not all_failed(one[1], failed)]
    kept = without(frame, failed)
    assert [(value, root) for root, values in kept.segments() for value in values] == expected
    assert kept.size == len(expected)
    assert (kept.task, kept.component, kept.stream, kept.id) == (1, "a", "b", 9)


@settings(deadline=None)
@given(LAYOUTS, st.data())
def test_a_row_made_of_several_is_anchored_to_each_of_their_roots_once(
    layout: list[tuple[Root, int]], data: st.DataObject
) -> None:
    columns = columns_of(layout)
    every = owners(columns)
    count = data.draw(st.integers(1, 5))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, len(columns) - 1), st.integers(0, count - 1)), min_size=1))
    rows, groups = np.array([row for row, _ in pairs]), np.array([group for _, group in pairs])
    roots, ends = columns.anchors.grouped(rows, groups, count).layout()
    assert ends == list(range(1, count + 1))
    for group, root in enumerate(roots):
        expected = {one for row, of in pairs if of == group for one in roots_of(every[row][1])}
        assert set(roots_of(root)) == expected
        assert len(roots_of(root)) == len(expected)


@settings(deadline=None)
@given(LAYOUTS, st.integers(1, 3))
def test_the_whole_is_anchored_to_every_root(layout: list[tuple[Root, int]], rows: int) -> None:
    roots, ends = columns_of(layout).anchors.whole(rows).layout()
    assert ends == [rows]
    assert set(roots_of(roots[0])) == {one for root, _ in layout for one in roots_of(root)}


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["b", None, "a", "b", None, "a"]),
        pa.array([1.5, math.nan, None, 1.5, math.nan, None]),
        pa.array([True, None, False, True, None, False]),
        pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)] * 2),
        pa.array([dt.timedelta(1), None, dt.timedelta(-1)] * 2, pa.duration("us")),
        pa.array([b"0" * 16, None, b"1" * 16] * 2, pa.binary(16)),
        pa.array([2**63 - 1, None, -(2**63)] * 2),
    ],
)
def test_equal_rows_have_one_number_and_the_first_of_each_is_named(values: Any) -> None:
    batch = pa.RecordBatch.from_arrays([values, pa.array([1, 1, 1, 1, 1, 2])], ["key", "other"])
    codes, first = distinct_rows(batch, ["key"])
    assert codes.tolist() == [0, 1, 2, 0, 1, 2]
    assert first.tolist() == [0, 1, 2]
    codes, first = distinct_rows(batch, ["key", "other"])
    assert codes.tolist() == [0, 1, 2, 0, 1, 3]
    assert first.tolist() == [0, 1, 2, 5]


def test_a_frame_of_columns_makes_tuples_only_for_those_who_ask() -> None:
    class Counted:
        made = 0

        def rows(self) -> list[int]:
            self.made += 1
            return [7]

        def layout(self) -> tuple[list[Root], list[int]]:
            return [5], [1]

        def without(self, failed: Any) -> Any:
            raise AssertionError

        def __len__(self) -> int:
            return 1

    columns = Counted()
    frame = ColumnFrame(1, "a", "b", columns, 9)
    assert (frame.size, frame.roots, frame.ends, columns.made) == (1, [5], [1], 0)
    assert frame.values is frame.values
    assert columns.made == 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = frame.nothing
