from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.routes.payloads import MAX_DEPTH, PayloadError, canonical_hash, decode, encode


def alike(first: Any, second: Any) -> bool:
    """Equal, of equal types, with NaN equal to NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    if isinstance(first, dict):
        return list(first) == list(second) and all(alike(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    return bool(first == second)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


any_text = st.text(st.characters(), max_size=5) | st.sampled_from(["$bytes", "$", "\ud800", "$dict", "$ref", '"$'])
scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(2**62, 2**70) | st.floats() | st.binary() | any_text
)  # fmt: skip
values = st.recursive(
    scalars | st.datetimes() | st.decimals(allow_nan=False) | st.uuids() | st.dates() | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(any_text, inner, max_size=4)
        | st.dictionaries(st.integers() | any_text, inner, max_size=2)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@given(values)
def test_every_payload_comes_back_unchanged(payload: Any) -> None:
    body = encode(payload)
    assert alike(decode(body), payload)
    json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@given(values)
def test_a_payload_that_came_back_has_the_same_hash(payload: Any) -> None:
    found = canonical_hash(payload)
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert canonical_hash(decode(encode(payload))) == found


@given(st.dictionaries(any_text, scalars, max_size=5), st.randoms())
def test_the_hash_does_not_know_the_order_of_keys(payload: dict[str, Any], random: Any) -> None:
    items = list(payload.items())
    random.shuffle(items)
    assert canonical_hash(dict(items)) == canonical_hash(payload)


def test_different_payloads_have_different_hashes() -> None:
    payloads: list[Any] = [
        None,
        0,
        0.0,
        False,
        "0",
        [],
        {},
        [0],
        math.nan,
        math.inf,
        b"",
        "",
        [None],
        "null",
        {"a": None},
    ]
    assert len({canonical_hash(payload) for payload in payloads}) == len(payloads)


def test_the_hash_is_the_same_in_every_version() -> None:
    assert canonical_hash({"b": [1, 2.5, None], "a": "ü"}) == "23705ceaef051493"


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'{"$ref": "#/a"}', {"$ref": "#/a"}),
        (b'{"$schema": "x", "type": "object"}', {"$schema": "x", "type": "object"}),
        (b'{"$bytes": 5}', {"$bytes": 5}),
        (b'{"$bytes": "no base64!"}', {"$bytes": "no base64!"}),
        (b'{"$dict": [1]}', {"$dict": [1]}),
        (b'{"$date": "yesterday"}', {"$date": "yesterday"}),
        (b'{"$decimal": "x"}', {"$decimal": "x"}),
        (b"[NaN, Infinity, -Infinity]", [math.nan, math.inf, -math.inf]),
        (b'"\\ud800"', "\ud800"),
        (b"12345678901234567890123", 12345678901234567890123),
        (b" null ", None),
        (b"[1, 1.0, 1e3]", [1, 1.0, 1000.0]),
    ],
)
def test_bodies_of_others_are_read_as_json(body: bytes, payload: Any) -> None:
    assert alike(decode(body), payload)
    assert alike(decode(encode(payload)), payload)


@pytest.mark.parametrize("body", [b"", b"{", b"hello", b"\xff\xfe", b"{'a': 1}", b"1 2", b"9" * 5000])
def test_a_body_that_is_no_json_is_refused_for_good(body: bytes) -> None:
    with pytest.raises(PayloadError, match="is no JSON"):
        decode(body)


def test_integers_of_any_size_come_back() -> None:
    for number in (2**63, 2**64, -(2**63) - 1, 10**30, 10**5000, -(10**5000)):
        assert decode(encode({"n": number})) == {"n": number}


def test_nesting_is_limited_with_a_clear_error() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(PayloadError, match="nested too deeply") as caught:
        encode(nested(MAX_DEPTH + 1))
    assert "at most 64 levels" in str(caught.value)
    for levels in (MAX_DEPTH + 1, 500, 100_000):
        with pytest.raises(PayloadError, match="nested too deeply"):
            decode(b"[" * levels + b"]" * levels)
    assert canonical_hash(nested(MAX_DEPTH + 1)) == ""


def test_a_payload_that_holds_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(PayloadError, match="nested too deeply"):
        encode(payload)


class Colour(enum.IntEnum):
    RED = 1


class Point(msgspec.Struct):
    x: int


class Here(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> str:
        return "here"


@pytest.mark.parametrize("value", [object(), Colour.RED, Point(1), 1j, range(3), datetime(2026, 1, 1, tzinfo=Here())])
def test_what_would_come_back_as_something_else_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(PayloadError, match="cannot be published") as caught:
        encode({"a": [1, {"b": value}]})
    assert caught.value.findings[0].where == "payload.a[1].b"
    assert canonical_hash({"a": value}) == ""


def test_what_databases_and_parquet_files_give_comes_back() -> None:
    row = {
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC),
        "zone": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        "day": date(2026, 1, 2),
        "time": time(3, 4),
        "price": Decimal("1.10"),
        "id": UUID(int=5),
        "raw": b"\x00",
        "tags": {"a", "b"},
        "pair": (1, 2),
        5: "five",
    }
    assert decode(encode(row)) == row
