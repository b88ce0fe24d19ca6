"""The Arrow codec: exact round trips, and a refusal for everything else."""

from __future__ import annotations

import enum
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.errors import ConnectorError, TopologyError
from tupletree.topology.streams import Schema

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Name(enum.StrEnum):
    ANN = "ann"


class Size(enum.IntEnum):
    SMALL = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass
class Place:
    name: str
    at: Point


class Leaf(msgspec.Struct, frozen=True):
    text: str
    when: datetime | None = None


class Tree(msgspec.Struct, frozen=True):
    leaves: tuple[Leaf, ...] = ()
    children: tuple[Tree, ...] = ()


class Scalars(msgspec.Struct, frozen=True):
    flag: bool
    count: int
    rate: float
    text: str
    raw: bytes
    day: date
    span: timedelta
    amount: Decimal
    key: UUID
    color: Color
    access: Access


class Moments(msgspec.Struct, frozen=True):
    at: datetime
    clock: time


class Optionals(msgspec.Struct, frozen=True):
    flag: bool | None = None
    count: int | None = None
    rate: float | None = None
    text: str | None = None
    at: datetime | None = None
    amount: Decimal | None = None
    color: Color | None = None
    names: list[str] | None = None
    anything: Any = None
    choice: Literal["a", "b"] | None = None


class Nested(msgspec.Struct, frozen=True):
    names: list[str]
    pair: tuple[int, str]
    floats: tuple[float, ...]
    numbers: set[int]
    frozen: frozenset[bytes]
    counts: dict[str, int]
    by_day: dict[date, list[Decimal]]
    place: Place
    leaf: Leaf
    mixed: int | str | float | bool
    choice: Literal["a", "b"]


class Loose(msgspec.Struct, frozen=True):
    anything: Any


class Integer(msgspec.Struct, frozen=True):
    n: int


class Real(msgspec.Struct, frozen=True):
    x: float


class Text(msgspec.Struct, frozen=True):
    text: str


class LongerText(Text, frozen=True):
    more: int = 0


class Named(msgspec.Struct, frozen=True, kw_only=True):
    second: int
    first: str = ""


class Nothing(msgspec.Struct, frozen=True):
    pass


class Odd(tzinfo):
    """A zone that no other process could look up."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return "odd"


def codec(cls: type) -> ArrowCodec[Any]:
    return ArrowCodec.of(Schema.of(cls))


def round_trip(*values: Any) -> list[Any]:
    coder = codec(type(values[0]))
    return coder.decode(coder.encode(values))


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, sign of zero, zone, fold and digits; NaN equals NaN."""
    return type(left) is type(right) and repr(left) == repr(right)


INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ZONES: st.SearchStrategy[tzinfo | None] = st.sampled_from(
    [None, UTC, BERLIN, zoneinfo.ZoneInfo("UTC"), timezone(timedelta(hours=-5, minutes=-30, seconds=7))]
)
FOLDED = st.tuples(st.datetimes(timezones=ZONES), st.sampled_from([0, 1])).map(lambda p: p[0].replace(fold=p[1]))
TIMES = st.tuples(st.times(timezones=ZONES), st.sampled_from([0, 1])).map(lambda pair: pair[0].replace(fold=pair[1]))
SPANS = st.timedeltas(timedelta(microseconds=-(2**63)), timedelta(microseconds=2**63 - 1))
DECIMALS = st.decimals() | st.just(Decimal("1.10E+400")) | st.just(Decimal("-0.00"))
HASHABLE = (
    st.none()
    | st.booleans()
    | INT64
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary()
    | FOLDED
    | st.dates()
    | st.uuids()
)
ANYTHING = st.recursive(
    HASHABLE | st.floats() | SPANS | DECIMALS | TIMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(HASHABLE, max_size=1)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$type", "$bytes", "a"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(
    st.lists(
        st.builds(
            Scalars,
            st.booleans(),
            INT64,
            st.floats(),
            TEXT,
            st.binary(),
            st.dates(),
            SPANS,
            DECIMALS,
            st.uuids(),
            st.sampled_from(Color),
            st.sampled_from([Access.READ, Access.READ | Access.WRITE, Access(0)]),
        ),
        max_size=5,
    )
)
def test_every_scalar_comes_back_exactly(values: list[Scalars]) -> None:
    coder = codec(Scalars)
    assert same(coder.decode(coder.encode(values)), values)
    assert same(coder.from_batch(coder.to_batch(values)), values)


@given(FOLDED, TIMES)
def test_zones_and_folds_stay_as_they_were(at: datetime, clock: time) -> None:
    [back] = round_trip(Moments(at, clock))
    assert same(back, Moments(at, clock))
    assert back.at.utcoffset() == at.utcoffset()


EDGES = [datetime.combine(date.min, time.min), datetime.combine(date.max, time.max)]


@pytest.mark.parametrize("zone", [None, UTC, BERLIN])
def test_the_first_and_the_last_year_travel(zone: tzinfo | None) -> None:
    values = [Moments(edge.replace(tzinfo=zone), time.max) for edge in EDGES]
    assert same(round_trip(*values), values)


@given(
    st.lists(
        st.builds(
            Optionals,
            st.none() | st.booleans(),
            st.none() | INT64,
            st.none() | st.floats(),
            st.none() | TEXT,
            st.none() | FOLDED,
            st.none() | DECIMALS,
            st.none() | st.sampled_from(Color),
            st.none() | st.lists(TEXT),
            st.none() | INT64,
            st.sampled_from(["a", "b", None]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_none_stays_none_and_changes_no_other_value(values: list[Optionals]) -> None:
    assert same(round_trip(*values), values)


@given(
    st.builds(
        Nested,
        st.lists(TEXT),
        st.tuples(INT64, TEXT),
        st.lists(st.floats()).map(tuple),
        st.sets(INT64, max_size=1),
        st.frozensets(st.binary(), max_size=1),
        st.dictionaries(TEXT, INT64),
        st.dictionaries(st.dates(), st.lists(DECIMALS), max_size=3),
        st.builds(Place, TEXT, st.builds(Point, INT64, st.floats())),
        st.builds(Leaf, TEXT, st.none() | FOLDED),
        INT64 | TEXT | st.floats() | st.booleans(),
        st.sampled_from(["a", "b"]),
    )
)
def test_nested_values_come_back_exactly(value: Nested) -> None:
    assert same(round_trip(value), [value])


@settings(max_examples=300)
@given(ANYTHING)
def test_an_untyped_field_gives_back_what_it_got(value: Any) -> None:
    assert same(round_trip(Loose(value)), [Loose(value)])


def test_recursive_messages_travel() -> None:
    tree = Tree((Leaf("a"),), (Tree((), (Tree((Leaf("b", datetime(2026, 1, 1, tzinfo=BERLIN)),)),)),))
    assert same(round_trip(tree), [tree])


def test_dataclasses_named_tuples_and_keyword_only_structs_are_rebuilt() -> None:
    for value in (Place("here", Point(1, 2.5)), Point(3), Named(second=2, first="x")):
        assert same(round_trip(value, value), [value, value])


def test_messages_without_fields_and_no_messages_keep_their_number() -> None:
    assert round_trip(Nothing(), Nothing(), Nothing()) == [Nothing()] * 3
    assert codec(Scalars).decode(codec(Scalars).encode([])) == []


def test_bytes_memoryview_and_arrow_buffers_are_decoded() -> None:
    coder = codec(Text)
    data = coder.encode([Text("a\0b")])
    for form in (data, memoryview(data), pa.py_buffer(data)):
        assert coder.decode(form) == [Text("a\0b")]


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Integer(True), Integer(1)),
        (Integer(Size.SMALL), Integer(1)),
        (Real(3), Real(3.0)),  # type: ignore[arg-type, unused-ignore]  # an int is a float to the type checker
        (Text(Name.ANN), Text("ann")),
    ],
)
def test_a_subclass_arrives_as_the_declared_type(value: Any, arrives: Any) -> None:
    assert same(round_trip(value), [arrives])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Integer("1"), r"Integer.n: got str '1', expected int"),  # type: ignore[arg-type]
        (Integer(1.0), r"Integer.n: got float 1.0, expected int"),  # type: ignore[arg-type]
        (Integer(Decimal(1)), r"Integer.n: got .*Decimal"),  # type: ignore[arg-type]
        (Integer(2**63), r"Integer.n: got int 9223372036854775808, expected an int of at most 64 bits"),
        (Integer(-(2**63) - 1), r"Integer.n: .*64 bits"),
        (Integer(None), r"Integer.n: got None"),  # type: ignore[arg-type]
        (Real("1"), r"Real.x: got str"),  # type: ignore[arg-type]
        (Real(2**60 + 1), r"Real.x: got int 1152921504606846977, expected a number that a float holds"),
        (Text("\ud800"), r"Text.text: .*lone surrogate"),
        (Text(b"a"), r"Text.text: got bytes"),  # type: ignore[arg-type]
        (Loose(object()), r"Loose.anything: got object"),
        (Loose({1: "\udfff"}), r"Loose.anything\[1\]: .*lone surrogate"),
        (Loose([Color.RED]), r"Loose"),
        (Loose(datetime(2026, 1, 1, tzinfo=Odd())), r"no portable name"),
    ],
)
def test_a_value_that_would_change_is_refused_by_name(value: Any, said: str) -> None:
    coder = codec(type(value))
    with pytest.raises(EncodeError):
        coder.encode([value])
    [(position, error)] = coder.check_each([value])
    assert position == 0
    assert isinstance(error, TypeError)
    with pytest.raises(TypeError, match=said):
        raise error


@pytest.mark.parametrize("stranger", [LongerText("a"), Integer(1), "a", None])
def test_a_message_of_another_class_is_refused(stranger: Any) -> None:
    coder = codec(Text)
    with pytest.raises(EncodeError, match="got"):
        coder.encode([Text("a"), stranger])
    [(position, error)] = coder.check_each([Text("a"), stranger])
    assert position == 1
    assert "expected" in str(error)


def test_good_values_of_the_same_batch_are_not_blamed() -> None:
    coder = codec(Text)
    assert coder.check_each([Text("a"), Text("b")]) == []
    with pytest.raises(EncodeError, match=r"Text.text: .*\n.*got int 1, expected str"):
        coder.encode([Text("a"), Text(1), Text("c")])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"flag": 1},
        {"raw": "text"},
        {"day": datetime(2026, 1, 1, tzinfo=UTC)},
        {"day": "2026-01-01"},
        {"span": 5},
        {"span": timedelta.max},
        {"amount": 1.5},
        {"amount": "1.5"},
        {"key": str(UUID(int=1))},
        {"color": "r"},
        {"access": 1},
    ],
)
def test_each_scalar_refuses_its_look_alikes(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "flag": True,
        "count": 1,
        "rate": 1.0,
        "text": "",
        "raw": b"",
        "day": date(2026, 1, 1),
        "span": timedelta(1),
        "amount": Decimal(1),
        "key": UUID(int=1),
        "color": Color.RED,
        "access": Access.READ,
    }
    coder = codec(Scalars)
    values = [Scalars(**fields), Scalars(**{**fields, **wrong}), Scalars(**fields)]
    with pytest.raises(EncodeError):
        coder.encode(values)
    [(position, error)] = coder.check_each(values)
    assert position == 1
    assert next(iter(wrong)) in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": ("a",)},
        {"names": ["a", 1]},
        {"names": ["\ud800"]},
        {"pair": (1, 2)},
        {"pair": (1, "a", "b")},
        {"floats": ("1.0",)},
        {"counts": {1: 1}},
        {"counts": {"a": None}},
        {"by_day": {"2026-01-01": []}},
        {"place": Point(1)},
        {"leaf": LongerText("a")},
        {"mixed": None},
        {"mixed": []},
        {"choice": "c"},
    ],
)
def test_nested_values_of_another_type_are_refused(wrong: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "names": [],
        "pair": (1, "a"),
        "floats": (),
        "numbers": set(),
        "frozen": frozenset(),
        "counts": {},
        "by_day": {},
        "place": Place("", Point(1)),
        "leaf": Leaf(""),
        "mixed": 1,
        "choice": "a",
    }
    coder = codec(Nested)
    with pytest.raises(EncodeError):
        coder.encode([Nested(**{**fields, **wrong})])
    [(_, error)] = coder.check_each([Nested(**{**fields, **wrong})])
    assert next(iter(wrong)) in str(error)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError):
        codec(Loose).encode([Loose(loop)])


def test_damaged_bytes_are_refused() -> None:
    coder = codec(Text)
    for data in (b"", b"not arrow", coder.encode([Text("a")])[:40]):
        with pytest.raises(ConnectorError, match="Text"):
            coder.decode(data)


def test_a_batch_of_another_schema_is_refused() -> None:
    with pytest.raises(ConnectorError, match="does not fit Scalars"):
        codec(Scalars).decode(codec(Text).encode([Text("a")]))


def test_a_batch_may_order_and_size_its_columns_differently() -> None:
    batch = pa.record_batch({"y": pa.array([1.5], pa.float32()), "x": pa.array([7], pa.int16())})
    assert codec(Point).from_batch(batch) == [Point(7, 1.5)]


@pytest.mark.parametrize("column", [pa.array([None], pa.int64()), pa.array([2**63], pa.uint64())])
def test_a_batch_with_nulls_or_values_out_of_range_is_refused(column: pa.Array[Any]) -> None:
    with pytest.raises(ConnectorError, match="does not fit Integer"):
        codec(Integer).from_batch(pa.record_batch({"n": column}))


def test_arrow_sees_native_columns_and_what_the_others_hold() -> None:
    schema = codec(Scalars).arrow_schema
    assert " ".join(str(field.type) for field in schema) == (
        "bool int64 double string binary date32[day] duration[us] string fixed_size_binary[16] string int64"
    )
    assert not any(field.nullable for field in schema)
    assert (schema.field("amount").metadata or {}) == {b"tupletree.form": b"decimal"}


def test_two_classes_of_one_name_in_an_untyped_corner_are_a_topology_error() -> None:
    def other() -> type:
        class Leaf(msgspec.Struct):
            number: int

        Leaf.__qualname__ = "Leaf"
        return Leaf

    pair = msgspec.defstruct("Pair", [("both", tuple.__class_getitem__((Leaf, other())))])
    with pytest.raises(TopologyError, match="have one name"):
        codec(pair)
