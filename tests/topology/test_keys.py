"""Equal values of a key field become one key, whatever form they come in."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tupletree.errors import TopologyError
from tupletree.routing.hashing import pack_key
from tupletree.topology.keys import NAN, coercion_of
from tupletree.topology.streams import Schema


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ADA = "ada"


class Typed(msgspec.Struct):
    text: str = ""
    number: int = 0
    real: float = 0.0
    flag: bool = False
    raw: bytes = b""
    price: decimal.Decimal = decimal.Decimal(0)
    at: dt.datetime = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - naive on purpose
    day: dt.date = dt.date(2024, 1, 1)
    unique: uuid.UUID = uuid.UUID(int=0)
    level: Level = Level.LOW
    mode: Literal["a", "b"] = "a"
    maybe: int | None = None
    either: int | str = 0
    tags: list[str] = []


def key(field: str, value: Any) -> Any:
    return Schema.of(Typed).key_of((field,))(msgspec.structs.replace(Typed(), **{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("text", "a", "a"),
        ("text", Name.ADA, "ada"),
        ("number", True, 1),
        ("number", Level.LOW, 1),
        ("number", 2**63 - 1, 2**63 - 1),
        ("real", 3, 3.0),
        ("real", -0.0, 0.0),
        ("real", True, 1.0),
        ("raw", bytearray(b"x"), b"x"),
        ("price", decimal.Decimal("1.00"), decimal.Decimal(1)),
        ("price", 100, decimal.Decimal("1E+2")),
        ("price", decimal.Decimal("-0.0"), decimal.Decimal(0)),
        ("price", decimal.Decimal("Infinity"), decimal.Decimal("Infinity")),
        ("level", 1, Level.LOW),
        ("mode", "b", "b"),
        ("maybe", 4, 4),
        ("either", "4", "4"),
        ("either", True, 1),
    ],
)
def test_a_value_becomes_its_declared_type(field: str, value: Any, expected: Any) -> None:
    got = key(field, value)
    assert repr(got) == repr(expected)
    assert type(got) is type(expected)


@pytest.mark.parametrize("field", ["text", "number", "real", "flag", "raw", "price", "at", "level", "maybe", "either"])
def test_none_is_a_legal_key_of_every_type(field: str) -> None:
    assert key(field, None) is None


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("number", "1", "key field Typed.number: got str '1', expected int"),
        ("number", 2**63, "key field Typed.number: got int 9223372036854775808, expected an int of at most 64 bits"),
        ("number", 1.0, "got float 1.0, expected int"),
        ("real", "x", "got str 'x', expected float"),
        ("real", 10**400, "key field Typed.real: int too large"),
        ("text", 5, "key field Typed.text: got int 5, expected str"),
        ("text", b"a", "expected str"),
        ("flag", 1, "got int 1, expected bool"),
        ("raw", "a", "expected bytes"),
        ("price", 0.5, "expected Decimal"),
        ("at", dt.date(2024, 1, 1), "expected datetime"),
        ("day", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "expected date"),
        ("unique", "x", "expected UUID"),
        ("level", 7, "expected a member of Level"),
        ("either", 0.5, "expected int | str"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        key(field, value)
    assert text in str(caught.value)


BIG = 2**53 + 1
"""The first whole number that no float holds."""

UNION_KEYS: list[tuple[Any, list[Any]]] = [
    (int | float, [1, 1.0, True, 0, 0.0, -0.0, False, BIG - 1, BIG - 1.0, BIG, 2**63 - 1, 2.0**63, math.inf, math.nan]),
    (bool | float, [True, 1.0, False, 0.0, -0.0]),
    (float | decimal.Decimal, [0.5, 0.1, math.inf, *map(decimal.Decimal, ("0.50", "0.1", "Infinity", "-0"))]),
    (int | decimal.Decimal, [BIG, 1, *map(decimal.Decimal, map(str, (BIG, BIG - 1, "1.0", "1E+400", 0.1)))]),
    (int | Level | str, [1, Level.LOW, "1", True]),
    (str | Name | None, ["ada", Name.ADA, None, "None"]),
    (int | str | bytes | None, [1, "1", b"1", None]),
]


@pytest.mark.parametrize(("annotation", "values"), UNION_KEYS)
def test_keys_of_a_union_are_one_key_in_dictionaries_if_and_only_if_their_bytes_are(
    annotation: Any, values: list[Any]
) -> None:
    """Runtimes look keys up in dictionaries within an epoch, and by their bytes between epochs."""
    coerce = coercion_of(annotation)
    assert coerce is not None
    keys = [value if value is None else coerce(value) for value in values]
    for one, left in zip(values, keys, strict=True):
        for other, right in zip(values, keys, strict=True):
            assert (left == right or left is right) is (pack_key(left) == pack_key(right)), (one, other)
            assert not (one == other and pack_key(left) != pack_key(right)), (one, other)


def test_nan_equals_nan_alone_and_in_a_tuple() -> None:
    assert key("real", float("nan")) is NAN
    both = Schema.of(Typed).key_of(("text", "real"))
    first, second = both(Typed("a", real=float("nan"))), both(Typed("a", real=-float("nan")))
    assert first == second
    assert {first: 1}[second] == 1
    assert key("price", decimal.Decimal("sNaN")) is key("price", decimal.Decimal("NaN"))


def test_instants_beyond_the_years_of_utc_are_keys_too() -> None:
    zone = [dt.timezone(dt.timedelta(hours=hours)) for hours in (14, 15, -12, -13)]
    first, same = key("at", dt.datetime(1, 1, 1, tzinfo=zone[0])), key("at", dt.datetime(1, 1, 1, 1, tzinfo=zone[1]))
    last, other = (
        key("at", dt.datetime(9999, 12, 31, 23, tzinfo=zone[2])),
        key("at", dt.datetime.max.replace(tzinfo=zone[3])),
    )
    assert {first: 1}[same] == 1
    assert pack_key(first) == pack_key(same)
    assert len({first, last, other}) == len({*map(pack_key, (first, last, other))}) == 3


def test_minus_zero_is_zero_in_sign_too() -> None:
    assert math.copysign(1, key("real", -0.0)) == 1


def test_equal_instants_are_equal_keys_and_naive_ones_stay_apart() -> None:
    berlin = dt.timezone(dt.timedelta(hours=2))
    utc = key("at", dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC))
    assert repr(key("at", dt.datetime(2024, 5, 1, 12, tzinfo=berlin))) == repr(utc)
    naive = dt.datetime(2024, 5, 1, 10, fold=1)  # noqa: DTZ001 - naive on purpose
    assert key("at", naive).tzinfo is None
    assert key("at", naive).fold == 0


def test_several_fields_make_a_tuple_in_the_order_given() -> None:
    assert Schema.of(Typed).key_of(("number", "text"))(Typed("a", True)) == (1, "a")


def test_text_is_not_normalised() -> None:
    assert key("text", "e\u0301") != key("text", "\u00e9")


def test_unknown_fields_and_types_that_are_no_keys_are_findings() -> None:
    with pytest.raises(TopologyError) as caught:
        Schema.of(Typed).key_of(("txt", "tags"))
    unknown, unfit = caught.value.findings
    assert unknown.what == "Typed has no field 'txt'"
    assert unknown.next_step == "did you mean 'text'?"
    assert unfit.what == "field 'tags' of Typed cannot be a key"
    assert unfit.got == "list[str]"
    with pytest.raises(TopologyError, match="at least one field"):
        Schema.of(Typed).key_of(())


@given(st.decimals(allow_nan=False), st.integers(0, 6))
def test_equal_decimals_are_one_key(number: decimal.Decimal, zeros: int) -> None:
    assume(number.is_finite())
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    same = decimal.Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert str(key("price", same)) == str(key("price", number))
    assert key("price", number) == number


@given(st.one_of(st.floats(), st.integers(-(2**53), 2**53), st.booleans()))
def test_a_float_key_equals_its_value_and_is_the_same_for_every_form(number: float) -> None:
    got = key("real", number)
    assert type(got) is float
    assert repr(got) == repr(key("real", float(number)))
    assert got is NAN if math.isnan(number) else got == number


@given(st.integers())
def test_an_int_key_is_itself_or_refused(number: int) -> None:
    if -(2**63) <= number < 2**63:
        assert key("number", number) == number
    else:
        with pytest.raises(TypeError, match="64 bits"):
            key("number", number)


@given(st.text())
def test_a_text_key_is_the_very_text(text: str) -> None:
    assert key("text", text) is text


@given(
    st.datetimes(min_value=dt.datetime(1900, 1, 1), max_value=dt.datetime(2200, 1, 1)),  # noqa: DTZ001 - made aware below
    st.integers(-14 * 60, 14 * 60),
)
def test_a_datetime_key_does_not_depend_on_the_zone(moment: dt.datetime, offset_minutes: int) -> None:
    utc = moment.replace(tzinfo=dt.UTC)
    elsewhere = utc.astimezone(dt.timezone(dt.timedelta(minutes=offset_minutes)))
    assert repr(key("at", elsewhere)) == repr(key("at", utc))


def test_keys_canonicalise_again_to_themselves() -> None:
    for field, value in [("real", -0.0), ("price", decimal.Decimal("1.50")), ("number", True), ("text", Name.ADA)]:
        once = key(field, value)
        assert repr(key(field, once)) == repr(once)
