"""Aggregates by key give what a loop over the tuples gives, whatever the batches."""

from __future__ import annotations

import datetime as dt
import heapq
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from types import GenericAlias
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.bolts.workbench import Bench, built
from tupletree import TopologyError
from tupletree.bolts import (
    count_by_key,
    count_distinct_by_key,
    dedupe_by_key,
    max_by_key,
    mean_by_key,
    min_by_key,
    sum_by_key,
    top_by_key,
)
from tupletree.data.frames import roots_of
from tupletree.topology.streams import Schema

FEW = settings(max_examples=8, deadline=None)
"""For tests that run once per kind of field. The first use of Arrow's engine takes long."""
BERLIN = ZoneInfo("Europe/Berlin")


class Row(msgspec.Struct, frozen=True):
    name: str | None
    real: float | None
    whole: int
    maybe: int | None
    weight: float
    text: str
    raw: bytes
    flag: bool
    amount: Decimal
    moment: dt.datetime
    day: dt.date | None
    span: dt.timedelta


ROWS = st.builds(
    Row,
    name=st.sampled_from(["a", "b", "", None]),
    real=st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
    whole=st.integers(-5, 5) | st.integers(-(2**40), 2**40),
    maybe=st.none() | st.integers(-3, 3),
    weight=st.floats(width=32) | st.sampled_from([0.1, 0.2, 0.3]),
    text=st.sampled_from(["", "a", "é", "z", "\U0001f600"]),
    raw=st.binary(max_size=2),
    flag=st.booleans(),
    amount=st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("-2"), Decimal("0.00")]),
    moment=st.sampled_from(
        [
            dt.datetime(2024, 3, 31, 1, tzinfo=dt.UTC),
            dt.datetime(2024, 3, 31, 3, tzinfo=BERLIN),
            dt.datetime(1999, 1, 1, tzinfo=dt.UTC),
        ]
    ),
    day=st.none() | st.sampled_from([dt.date(1, 1, 1), dt.date(2024, 2, 29)]),
    span=st.sampled_from([dt.timedelta(0), dt.timedelta(microseconds=-1), dt.timedelta(days=3)]),
)
FRAMES = st.lists(st.lists(st.tuples(st.integers(0, 3), ROWS), min_size=1, max_size=8), min_size=1, max_size=4)
TYPES = Schema.of(Row).fields


def weighing(weight: float) -> Row:
    return Row(
        "a",
        1.5,
        1,
        None,
        weight,
        "",
        b"",
        False,
        Decimal(1),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        None,
        dt.timedelta(),
    )


def result_class(keys: tuple[str, ...], kind: Any) -> Any:
    return msgspec.defstruct("Result", [*((name, TYPES[name]) for name in keys), ("result", kind)], frozen=True)


def nan_last(value: Any) -> Any:
    return (1, 0.0) if value != value else (0, value)  # noqa: PLR0124 - NaN


def key_of(row: Row, keys: tuple[str, ...]) -> str:
    """The key as text: NaN equals NaN, -0.0 is 0.0."""
    return repr(Schema.of(Row).key_of(keys)(row))


def check(
    make: Callable[[type], Any],
    kind: Any,
    keys: tuple[str, ...],
    frames: Any,
    fold: Any,
    alike: Callable[[Any], Any] = repr,
) -> None:
    """Work frames; for each, every key in it has one row: `fold` of all its tuples so far, anchored to these.

    `alike` makes equal values of those that need not be told apart.
    """
    into = result_class(keys, kind)
    bench = Bench(Row, make(into), keys)
    seen: dict[str, list[Row]] = {}
    for frame in frames:
        segments = [(root, [row]) for root, row in frame]
        owners: dict[str, set[int]] = {}
        for root, row in frame:
            seen.setdefault(key_of(row, keys), []).append(row)
            owners.setdefault(key_of(row, keys), set()).update({root} - {0})
        got = bench.rows(*segments)
        assert [key_of(row, keys) for _, row in got] == list(owners)
        for root, row in got:
            key = key_of(row, keys)
            assert alike(row.result) == alike(fold(seen[key]))
            assert set(roots_of(root)) == owners[key]


def values(field: str) -> Callable[[list[Row]], list[Any]]:
    return lambda rows: [getattr(row, field) for row in rows if getattr(row, field) is not None]


@settings(max_examples=40, deadline=None)
@given(FRAMES, st.sampled_from([("name",), ("real",), ("name", "real"), ("moment",), ("amount", "day")]))
def test_count_is_a_count(frames: Any, keys: tuple[str, ...]) -> None:
    check(lambda into: count_by_key(Row, *keys, into=into), int, keys, frames, len)


def summed(start: Any, field: str) -> Callable[[list[Row]], Any]:
    def total(rows: list[Row]) -> Any:
        result = start
        for value in values(field)(rows):
            result += value
        return result

    return total


@pytest.mark.parametrize(
    ("field", "start"),
    [("whole", 0), ("maybe", 0), ("weight", 0.0), ("amount", Decimal()), ("span", dt.timedelta()), ("real", 0.0)],
)
@FEW
@given(frames=FRAMES)
@example(frames=[[(1, weighing(math.inf)), (2, weighing(-math.inf))]])
@example(frames=[[(1, weighing(1.7e308)), (2, weighing(1.7e308))]])
def test_sum_is_a_loop_to_the_last_bit(field: str, start: Any, frames: Any) -> None:
    make = lambda into: sum_by_key(Row, "name", field=field, into=into)  # noqa: E731 - it is handed on
    check(make, type(start), ("name",), frames, summed(start, field))


ORDERED = ["whole", "maybe", "weight", "real", "text", "raw", "flag", "amount", "moment", "day", "span"]


@pytest.mark.parametrize("field", ORDERED)
@FEW
@given(frames=FRAMES)
def test_min_and_max_are_those_of_python_with_nan_as_the_largest(field: str, frames: Any) -> None:
    def check_extreme(by_key: Callable[..., Any], choose: Any) -> None:
        check(
            lambda into: by_key(Row, "name", field=field, into=into),
            TYPES[field],
            ("name",),
            frames,
            lambda rows: choose(values(field)(rows), key=nan_last, default=None),
            comparable,
        )

    check_extreme(min_by_key, min)
    check_extreme(max_by_key, max)


def comparable(value: Any) -> Any:
    """Equal instants and decimals are equal here, and so is NaN."""
    return "nan" if value != value else value  # noqa: PLR0124 - NaN


@pytest.mark.parametrize("field", ["whole", "maybe", "weight"])
@FEW
@given(frames=FRAMES)
@example(frames=[[(1, weighing(math.inf)), (2, weighing(-math.inf))], [(1, weighing(1e308)), (3, weighing(1e308))]])
@example(frames=[[(1, weighing(1.7e308)), (2, weighing(1.7e308))]])
def test_mean_is_the_sum_by_the_count(field: str, frames: Any) -> None:
    def mean(rows: list[Row]) -> float | None:
        found = values(field)(rows)
        return summed(0.0, field)(rows) / len(found) if found else None

    kind = float | None if field == "maybe" else float
    check(lambda into: mean_by_key(Row, "name", field=field, into=into), kind, ("name",), frames, mean)


@pytest.mark.parametrize("field", [*ORDERED, "name"])
@FEW
@given(frames=FRAMES)
def test_distinct_values_are_those_that_would_be_different_keys(field: str, frames: Any) -> None:
    def distinct(rows: list[Row]) -> int:
        return len({key_of(row, (field,)) for row in rows if getattr(row, field) is not None})

    check(lambda into: count_distinct_by_key(Row, "text", field=field, into=into), int, ("text",), frames, distinct)


@pytest.mark.parametrize("field", ORDERED)
@FEW
@given(frames=FRAMES, size=st.sampled_from([1, 3]))
def test_top_is_the_largest_first(field: str, frames: Any, size: int) -> None:
    (kind,) = [one for one in getattr(TYPES[field], "__args__", (TYPES[field],)) if one is not type(None)]

    def largest(rows: list[Row]) -> list[Any]:
        return heapq.nlargest(size, values(field)(rows), key=nan_last)

    check(
        lambda into: top_by_key(Row, "name", field=field, size=size, into=into),
        GenericAlias(list, (kind,)),
        ("name",),
        frames,
        largest,
        lambda found: list(map(comparable, found)),
    )


@settings(max_examples=40, deadline=None)
@given(FRAMES, st.sampled_from([("name",), ("real",), ("name", "flag")]))
def test_dedupe_lets_the_first_of_each_key_through_under_its_own_root(frames: Any, keys: tuple[str, ...]) -> None:
    bench = Bench(Row, dedupe_by_key(Row, *keys), keys)
    seen: set[str] = set()
    for frame in frames:
        expected = []
        for root, row in frame:
            if key_of(row, keys) not in seen:
                seen.add(key_of(row, keys))
                expected.append((root, repr(row)))
        assert [(root, repr(row)) for root, row in bench.rows(*((root, [row]) for root, row in frame))] == expected


def row(**fields: Any) -> Row:
    plain = Row(
        "a", 0.0, 0, None, 0.0, "", b"", False, Decimal(0), dt.datetime(1, 1, 1, tzinfo=dt.UTC), None, dt.timedelta()
    )
    return msgspec.structs.replace(plain, **fields)


def test_a_sum_beyond_64_bits_fails_the_tuples_that_lead_there_alone() -> None:
    bench = Bench(Row, sum_by_key(Row, "name", field="whole", into=result_class(("name",), int)), ("name",))
    worked = bench.work(
        (1, [row(whole=2**62)]), (2, [row(whole=2**62)]), (3, [row(whole=5)]), (4, [row(name="b", whole=7)])
    )
    assert set(worked.failures) == {2}
    assert bench.cell.changed == {"a": 2**62 + 5, "b": 7}


def test_moments_that_do_not_compare_fail_alone() -> None:
    into = result_class(("name",), dt.datetime)
    bench = Bench(Row, max_by_key(Row, "name", field="moment", into=into), ("name",))
    naive = dt.datetime.fromisoformat("2024-01-01T00:00:00")
    worked = bench.work((1, [row()]), (2, [row(moment=naive)]), (3, [row(moment=dt.datetime(2, 1, 1, tzinfo=dt.UTC))]))
    assert set(worked.failures) == {2}
    assert bench.cell.changed["a"].year == 2


class Count(msgspec.Struct, frozen=True):
    name: str | None
    count: int


class Float(msgspec.Struct, frozen=True):
    name: str | None
    sum: float


class Narrow(msgspec.Struct, frozen=True):
    name: str
    count: int


class Bare(msgspec.Struct, frozen=True):
    count: int


FAULTS: list[tuple[Any, tuple[str, ...], str]] = [
    (lambda: count_by_key(Row, into=Count), ("name",), "no field makes the key"),
    (lambda: count_by_key(Row, "nam", into=Count), ("name",), "no field 'nam'"),
    (lambda: count_by_key(Row, "name", into=Bare), ("name",), "Bare does not fit"),
    (lambda: count_by_key(Row, "name", into=Narrow), ("name",), "Narrow.name has another type"),
    (lambda: count_by_key(Row, "name", into=Float), ("name",), "Float.sum has another type"),
    (lambda: sum_by_key(Row, "name", field="whole", into=Float), ("name",), "Float.sum has another type"),
    (lambda: sum_by_key(Row, "name", field="text", into=Count), ("name",), "no sum of text"),
    (lambda: sum_by_key(Row, "name", field="texts", into=Count), ("name",), "did you mean 'text'"),
    (lambda: min_by_key(Row, "name", field="maybe", into=Count), ("name",), "expected: int | None"),
    (lambda: top_by_key(Row, "name", field="whole", size=0, into=Count), ("name",), "at least 1"),
    (lambda: count_by_key(Row, "name", into=Count), ("text",), "another key than source.Row"),
    (lambda: count_by_key(Row, "name", into=Count), ("name", "text"), "expected: fields (name)"),
    (lambda: count_by_key(Row, "name", into=Count), (), "not grouped by its key"),
    (lambda: count_by_key(Row, "name", into=int), ("name",), "not a message class"),
    (lambda: count_by_key(Count, "name", into=Count), ("name",), "does not take the tuples of source.Row"),
]


@pytest.mark.parametrize(("make", "keys", "words"), FAULTS)
def test_what_does_not_fit_is_told_when_the_topology_is_built(make: Any, keys: tuple[str, ...], words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        built(Row, make(), keys)
    assert words in str(caught.value)


def test_a_bolt_of_the_library_pickles_with_its_topology_by_its_recipe() -> None:
    body = (
        pickle.loads(pickle.dumps(built(Row, count_by_key(Row, "name", into=Count), ("name",)))).components["bolt"].body
    )
    assert (body.key_fields, body.state.default(), body.input_types) == (("name",), 0, (Row,))
