"""Columns are distributed as their tuples are: same tasks, same order, same roots, same failures."""

from __future__ import annotations

import datetime as dt
import enum
import math
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.config import Options
from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import Root, segments_of
from tupletree.routing.column_groupings import route_columns
from tupletree.routing.groupings import Router
from tupletree.routing.plan import Plan
from tupletree.topology.model import ComponentSpec, Grouping, InputSpec, StreamSpec, TopologySpec
from tupletree.topology.streams import Schema


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Row(msgspec.Struct, frozen=True):
    """A field of each kind that a key may have."""

    text: str | None
    whole: int | None
    real: float | None
    flag: bool
    raw: bytes
    amount: Decimal
    moment: dt.datetime
    day: dt.date
    clock: dt.time
    span: dt.timedelta
    name: UUID
    level: Level
    either: int | str | None
    choice: Literal["x", 1]


SCHEMA = Schema.of(Row)
CODEC = ArrowCodec.of(SCHEMA)
ROWS = st.builds(
    Row,
    text=st.sampled_from(["", "a", "é", "e\u0301", None]),
    whole=st.sampled_from([0, 1, -(2**63), 2**63 - 1, None]),
    real=st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, None]),
    flag=st.booleans(),
    raw=st.sampled_from([b"", b"a"]),
    amount=st.sampled_from([Decimal("1"), Decimal("1.00"), Decimal("-0"), Decimal(0), Decimal("NaN")]),
    moment=st.sampled_from(
        [
            dt.datetime(2024, 3, 31, 1, 0, tzinfo=dt.UTC),
            dt.datetime(2024, 3, 31, 3, 0, tzinfo=ZoneInfo("Europe/Berlin")),
            dt.datetime.fromisoformat("2024-03-31T01:00:00"),
            dt.datetime.fromisoformat("0001-01-01T00:00:00"),
            dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"),
        ]
    ),
    day=st.sampled_from([dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
    clock=st.sampled_from([dt.time(1), dt.time(1, tzinfo=dt.UTC)]),
    span=st.sampled_from([dt.timedelta(0), dt.timedelta(microseconds=-1)]),
    name=st.sampled_from([UUID(int=0), UUID(int=1)]),
    level=st.sampled_from(list(Level)),
    either=st.sampled_from([1, "1", None]),
    choice=st.sampled_from(["x", 1]),
)
ROOTS: st.SearchStrategy[Root] = st.integers(0, 4) | st.just((1, 2))
FRAMES = st.lists(st.tuples(ROOTS, st.lists(ROWS, min_size=1, max_size=6)), min_size=1, max_size=6)


def choose(row: Row, tasks: int) -> int | list[int]:
    if row.text == "é":
        raise ValueError("no")
    return [] if row.flag else len(row.raw) % tasks


def groupings(fields: tuple[str, ...]) -> list[Grouping]:
    kinds: list[Any] = ["shuffle", "all", "global", "local_or_shuffle", "none"]
    return [
        *(Grouping(kind) for kind in kinds),
        Grouping("fields", fields),
        Grouping("partial_key", fields),
        Grouping("custom", custom=choose),
    ]


def router_of(consumers: list[Grouping], tasks: int) -> Router:
    components = [ComponentSpec("p", "spout", None, 1, {"out": StreamSpec("p", "out", SCHEMA)})]
    components += [
        ComponentSpec(f"c{number}", "bolt", None, tasks, {}, (InputSpec("p", "out", grouping),))
        for number, grouping in enumerate(consumers)
    ]
    plan = Plan.of(TopologySpec("t", {one.name: one for one in components}), Options(acker_tasks=0))
    return Router.of(plan, plan.task_ids_of("p")[0], "out")


def spread(values: list[Any], roots: list[Root], ends: list[int]) -> list[tuple[str, Root]]:
    """Every tuple with its root; as text, for NaN does not equal itself."""
    return [(repr(value), root) for root, part in segments_of(values, roots, ends) for value in part]


def check(frames: list[tuple[Root, list[Row]]], consumers: list[Grouping], tasks: int) -> None:
    by_tuple, by_column = router_of(consumers, tasks), router_of(consumers, tasks)
    values: list[Row] = []
    roots: list[Root] = []
    ends: list[int] = []
    for root, part in frames:
        values += part
        roots.append(root)
        ends.append(len(values))
    for _ in range(2):  # what a router remembers from call to call is the same too
        batches, failed = by_tuple.route(values, roots, ends)
        columns = ArrowColumns(CODEC.to_batch(values), CODEC, Anchors.of(roots, ends))
        parts, failed_rows = route_columns(by_column, columns)
        expected = sorted((one.task, spread(one.values, one.roots, one.ends)) for one in batches)
        assert sorted((task, spread(part.rows(), *part.layout())) for task, part in parts) == expected
        assert [(row, str(error)) for row, error in failed_rows] == [(row, str(error)) for row, error in failed]


@settings(deadline=None)
@given(FRAMES, st.lists(st.sampled_from(list(SCHEMA.fields)), min_size=1, max_size=3, unique=True), st.integers(1, 4))
def test_columns_go_where_their_tuples_would(
    frames: list[tuple[Root, list[Row]]], fields: list[str], tasks: int
) -> None:
    check(frames, groupings(tuple(fields)), tasks)


@pytest.mark.parametrize("field", list(SCHEMA.fields))
@settings(max_examples=30, deadline=None)
@given(frames=FRAMES)
def test_a_field_of_any_kind_is_the_same_key_in_columns(field: str, frames: list[tuple[Root, list[Row]]]) -> None:
    check(frames, [Grouping("fields", (field,))], 7)
