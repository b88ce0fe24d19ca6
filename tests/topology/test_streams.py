"""A message class becomes a schema, or says why it cannot."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pickle
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NewType

import msgspec
import pytest

from tupletree.errors import TopologyError
from tupletree.topology.streams import Schema

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Everything(msgspec.Struct):
    text: str
    number: int | None
    price: decimal.Decimal
    at: dt.datetime
    raw: bytes
    tags: list[str]
    scores: dict[str, float]
    where: Point | None
    colour: Colour
    user: UserId
    level: Literal["low", "high"]
    note: Annotated[str, "shown"] = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    sensor: str
    celsius: float = 20.0
    tags: list[str] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    left: str
    right: int = 0


class Node(msgspec.Struct):
    name: str
    children: list[Node]


def test_a_struct_gives_its_fields_in_order_with_resolved_types() -> None:
    schema = Schema.of(Everything)
    assert list(schema.fields)[:4] == ["text", "number", "price", "at"]
    assert schema.fields["number"] == (int | None)
    assert schema.fields["where"] == (Point | None)
    assert schema.fields["note"] == Annotated[str, "shown"]
    assert "note" not in schema.required
    assert "text" in schema.required


def test_a_frozen_dataclass_with_slots_is_a_message_class() -> None:
    schema = Schema.of(Reading)
    assert dict(schema.fields) == {"sensor": str, "celsius": float, "tags": list[str]}
    assert schema.required == {"sensor"}


def test_a_named_tuple_is_a_message_class() -> None:
    schema = Schema.of(Pair)
    assert dict(schema.fields) == {"left": str, "right": int}
    assert schema.required == {"left"}


def test_a_message_may_contain_itself() -> None:
    assert dict(Schema.of(Node).fields) == {"name": str, "children": list[Node]}
    assert Schema.of(Node).fingerprint().count("children") == 1


@pytest.mark.parametrize("cls", [int, dict, msgspec.Struct, threading.Thread, tuple, "Word", list[int]])
def test_what_is_no_message_class_is_refused(cls: Any) -> None:
    with pytest.raises(TopologyError, match="not a message class") as caught:
        Schema.of(cls)
    assert caught.value.findings[0].expected == "a msgspec.Struct, a dataclass or a NamedTuple"


def test_every_field_that_cannot_travel_is_named() -> None:
    class Bad(msgspec.Struct):
        work: Callable[[], int]
        lock: list[threading.Thread]
        fine: int
        mixed: str | bytes

    with pytest.raises(TopologyError) as caught:
        Schema.of(Bad)
    assert [finding.what.split()[1] for finding in caught.value.findings] == ["work", "lock", "mixed"]
    assert "threading.Thread" in str(caught.value)


def test_a_dataclass_field_outside_the_constructor_is_refused() -> None:
    @dataclasses.dataclass
    class Derived:
        size: int
        area: int = dataclasses.field(init=False)

    with pytest.raises(TopologyError, match="field area cannot be given to the constructor"):
        Schema.of(Derived)


def test_a_type_that_cannot_be_found_is_named() -> None:
    class Lost(msgspec.Struct):
        inner: Missing  # type: ignore[name-defined]  # noqa: F821 - the fault under test

    with pytest.raises(TopologyError, match="name 'Missing' is not defined"):
        Schema.of(Lost)


def test_local_names_can_be_given_for_classes_inside_functions() -> None:
    class Inner(msgspec.Struct):
        x: int

    class Outer(msgspec.Struct):
        inner: Inner

    assert Schema.of(Outer, locals()).fields["inner"] is Inner


def test_a_schema_can_be_hashed_compared_and_pickled() -> None:
    schema = Schema.of(Everything)
    assert schema == Schema.of(Everything)
    assert hash(schema) == hash(Schema.of(Everything))
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_the_fingerprint_spells_out_nested_messages() -> None:
    class Holder(msgspec.Struct):
        points: list[Point]
        best: Point | None = None

    text = Schema.of(Holder).fingerprint()
    assert "points: list[" in text
    assert text.count("x: float, y: float") == 1
    assert text == Schema.of(Holder).fingerprint()


class TestCheck:
    def test_a_good_value_passes(self) -> None:
        now = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
        value = Everything(
            "é", None, decimal.Decimal(1), now, b"x", ["a"], {"a": 1}, Point(1), Colour.RED, UserId(5), "low"
        )
        Schema.of(Everything).check(value)
        Schema.of(Pair).check(Pair("a", True))
        Schema.of(Node).check(Node("a", [Node("b", [])]))

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (Pair("a", 2**63), "Pair.right: got int 9223372036854775808, expected an int of at most 64 bits (signed)"),
            (Pair("a", -(2**63) - 1), "expected an int of at most 64 bits"),
            (Pair("\ud800", 1), "Pair.left: got str '\\ud800', expected text without lone surrogates"),
            (Pair(5, 1), "Pair.left: got int 5, expected str"),  # type: ignore[arg-type]  # the fault under test
            (Pair("a", 1.0), "Pair.right: got float 1.0, expected int"),  # type: ignore[arg-type]  # as above
            (Reading("a", 1.0, [1]), "Reading.tags[0]: got int 1, expected str"),  # type: ignore[list-item]  # as above
            (Node("a", [Node("b", ["c"])]), "Node.children[0].children[0]: got str 'c', expected"),  # type: ignore[list-item]  # as above
        ],
    )
    def test_the_field_and_both_types_are_named(self, value: Any, text: str) -> None:
        with pytest.raises(TypeError) as caught:
            Schema.of(type(value)).check(value)
        assert text in str(caught.value)

    def test_bounds_of_64_bits_are_inside(self) -> None:
        Schema.of(Pair).check(Pair("a", 2**63 - 1))
        Schema.of(Pair).check(Pair("a", -(2**63)))

    def test_another_class_is_refused_even_a_subclass(self) -> None:
        class Point3(Point, frozen=True):
            z: float = 0.0

        for value in (Point3(1), None, "x"):
            with pytest.raises(TypeError, match=r"Point: got .*expected .*Point"):
                Schema.of(Point).check(value)

    def test_values_in_unions_dicts_and_dynamic_fields_are_judged_too(self) -> None:
        class Loose(msgspec.Struct):
            anything: Any = None
            number: int | None = None
            table: dict[str, list[int]] = {}
            fixed: tuple[int, str] = (0, "")

        check = Schema.of(Loose).check
        check(Loose(anything={"a": [1, None, Point(1)]}, number=None, table={"a": [1]}))
        cases = [
            (Loose(anything={"a": [2**64]}), "Loose.anything['a'][0]: got int"),
            (Loose(anything=threading.Lock()), "expected a type that can travel"),
            (Loose(number=2**63), "Loose.number: got int 9223372036854775808, expected an int of at most 64 bits"),
            (Loose(number="1"), "Loose.number: got str '1', expected int | None"),  # type: ignore[arg-type]  # tested
            (Loose(table={"a": [1, "b"]}), "Loose.table['a'][1]: got str 'b'"),  # type: ignore[list-item]  # tested
            (Loose(table={1: []}), "Loose.table key 1: got int 1"),  # type: ignore[dict-item]  # tested
            (Loose(fixed=(1, "a", 2)), "Loose.fixed: got tuple (1, 'a', 2), expected 2 items"),  # type: ignore[arg-type]  # tested
        ]
        for value, text in cases:
            with pytest.raises(TypeError) as caught:
                check(value)
            assert text in str(caught.value)
