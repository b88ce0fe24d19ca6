"""Payloads as JSON-compatible data: exact, readable, and never failing on the way out."""

from __future__ import annotations

import enum
import json
import zoneinfo
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.data.payloads import from_jsonable, to_jsonable
from tupletree.errors import ProcessingError


class Level(enum.Enum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Track:
    points: list[Point] = field(default_factory=list)


class Order(msgspec.Struct, frozen=True):
    text: str
    anything: Any = None
    level: Level = Level.LOW
    access: Access = Access.READ
    track: Track = msgspec.field(default_factory=Track)
    raw: bytes = b""
    rate: float = 0.0


class Loose(msgspec.Struct, frozen=True):
    anything: Any


def through_json(value: Any) -> Any:
    return from_jsonable(json.loads(json.dumps(to_jsonable(value), allow_nan=False)), type(value))


CLEAN_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | CLEAN_TEXT
    | st.binary()
    | st.datetimes(timezones=st.sampled_from([None, UTC, zoneinfo.ZoneInfo("America/New_York")]))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(CLEAN_TEXT | st.integers(0, 9) | st.just("$type"), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(ANYTHING)
def test_any_value_comes_back_from_json_exactly(value: Any) -> None:
    assert repr(through_json(Loose(value))) == repr(Loose(value))


def test_nested_messages_enums_and_flags_come_back() -> None:
    order = Order("a", level=Level.LOW, access=Access.READ | Access.WRITE, track=Track([Point(1, 2.0)]), raw=b"\xff")
    assert through_json(order) == order


def test_what_json_can_say_is_itself() -> None:
    assert to_jsonable(Loose({"a": [1, "b", None, True, 1.5]})) == {"anything": {"a": [1, "b", None, True, 1.5]}}


def test_the_rest_is_readable() -> None:
    value = [
        b"hi",
        float("inf"),
        datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        date(2026, 7, 1),
        time(1, 2),
        timedelta(1, 2, 3),
        Decimal("1.10"),
        UUID(int=1),
        Level.LOW,
        Point(1, 2.0),
        (1,),
        {1},
        frozenset({1}),
        {1: 2},
    ]
    assert to_jsonable(value) == [
        {"$bytes": "aGk="},
        {"$float": "inf"},
        {"$datetime": "2026-07-01T12:00:00+02:00[Europe/Berlin]"},
        {"$date": "2026-07-01"},
        {"$time": "01:02:00"},
        {"$timedelta": [1, 2, 3]},
        {"$decimal": "1.10"},
        {"$uuid": "00000000-0000-0000-0000-000000000001"},
        {"$enum": "Level.LOW"},
        {"$type": "Point", "x": 1, "y": 2.0},
        {"$tuple": [1]},
        {"$set": [1]},
        {"$frozenset": [1]},
        {"$dict": [[1, 2]]},
    ]
    assert to_jsonable(Point(1, 2.0)) == {"x": 1, "y": 2.0}


@pytest.mark.parametrize("text", ["\ud800", "a\\u0041\n\udfff", "\ud83d\ude00", "😀\udc00"])
def test_lone_surrogates_are_escaped_so_that_a_reader_sees_them(text: str) -> None:
    data = to_jsonable(Loose({text: text}))
    encoded = json.dumps(data, ensure_ascii=False).encode()
    [[key, value]] = json.loads(encoded)["anything"]["$dict"]
    assert key["$str"].encode("ascii").decode("unicode_escape") == text
    assert key == value


def test_text_with_lone_surrogates_is_shown_but_still_may_not_travel() -> None:
    with pytest.raises(ProcessingError, match="lone surrogates"):
        through_json(Order("\ud800"))


class Cursed:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_writing_never_fails() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, object(), Cursed(), {Cursed(): 10**5000}, -(2**200), ValueError("x"), Order(Cursed())):  # type: ignore[arg-type]
        json.dumps(to_jsonable(value), allow_nan=False)


def test_what_was_only_shown_cannot_be_read_back() -> None:
    with pytest.raises(ProcessingError, match=r"\$repr cannot be read back"):
        through_json(Loose(object()))


def test_missing_fields_take_their_defaults() -> None:
    assert from_jsonable({"text": "a"}, Order) == Order("a")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"text": 1},
        {"text": "a", "unknown": 1},
        {"text": "a", "raw": "aGk="},
        {"text": "a", "raw": {"$bytes": "?"}},
        {"text": "a", "level": {"$enum": "Level.HIGH"}},
        {"text": "a", "track": {"$type": "os.system"}},
        {"text": "a", "track": {"points": []}},
        {"text": "a", "anything": {"$nonsense": 1}},
    ],
)
def test_data_that_makes_no_message_is_refused(data: Any) -> None:
    with pytest.raises(ProcessingError, match="no Order"):
        from_jsonable(data, Order)
