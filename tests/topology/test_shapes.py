"""Whether what was stored of one version of a class can be read with another, and what is lost by that."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest

from tupletree.errors import CheckpointError
from tupletree.state.encoding import ValueEncoding
from tupletree.state.store import StateCodec
from tupletree.topology.changes.shapes import fits, shape_changes, shape_of

Made: TypeAlias = Any


def struct(fields: list[Any], name: str = "Row", module: str = "m", **settings: Any) -> Made:
    return msgspec.defstruct(name, fields, module=module, **settings)


class Old(enum.Enum):
    A = 1
    B = 2


class Row(NamedTuple):
    a: int
    b: int = 2


def kinds(before: Any, after: Any, *, by_name: bool = False) -> dict[str, str]:
    return {one.what: one.kind for one in shape_changes(shape_of(before), shape_of(after), by_name=by_name)}


A = struct([("a", int)])


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (A, {}),
        (struct([("a", int)], module="other"), {"Row": "moved"}),
        (struct([("a", int), ("b", str, "")]), {"Row.b": "widened"}),
        (struct([("a", int), ("b", str)]), {"Row.b": "changed"}),
        (struct([("a", int | None)]), {"Row.a": "widened"}),
        (struct([("a", str)]), {"Row.a": "changed"}),
        (struct([("a", int | str)]), {"Row.a": "changed"}),
        (struct([("c", int, 0)]), {"Row.a": "removed", "Row.c": "widened"}),
        (struct([("c", int, 0)], forbid_unknown_fields=True), {"Row.a": "changed", "Row.c": "widened"}),
        (struct([("a", int)], name="Other"), {"": "changed"}),
    ],
)
def test_a_class_may_move_and_get_fields_with_a_default(after: Any, expected: dict[str, str]) -> None:
    assert kinds(A, after) == expected
    assert fits(shape_of(A), shape_of(after)) is ("changed" not in expected.values())


def test_none_may_go_away_from_no_field_and_not_come_into_a_list() -> None:
    assert kinds(struct([("a", int | None)]), A) == {"Row.a": "changed"}
    assert kinds(struct([("a", list[int])]), struct([("a", list[int | None])])) == {"Row.a": "changed"}
    assert kinds(int, int | None) == {"": "widened"}


def test_members_of_an_enum_may_be_added() -> None:
    make: Any = enum.Enum
    assert kinds(Old, make("Old", {"A": 1, "B": 2, "C": 3}, module=__name__)) == {"Old.C": "widened"}
    assert kinds(Old, make("Old", {"A": 1}, module=__name__)) == {"Old.B": "changed"}


def row(*names: str) -> Any:
    """Another version of `Row`, with a default for `c`."""
    made = namedtuple("Row", names)  # type: ignore[misc]  # noqa: PYI024 - its fields are the test's
    made.__annotations__ = dict.fromkeys(names, int)
    made._field_defaults = {"c": 3}
    return made


def test_fields_that_are_stored_by_position_are_added_at_the_end() -> None:
    assert kinds(list[Row], list.__class_getitem__(row("a", "b", "c"))) == {"Row.c": "widened"}
    assert kinds(list[Row], list.__class_getitem__(row("c", "a", "b")))["Row"] == "changed"
    assert kinds(Row, row("c", "a", "b"), by_name=True) == {"Row.c": "widened"}


def test_what_a_class_has_inside_is_compared_too() -> None:
    inner: Any = struct([("a", int)], "Inner")
    wider: Any = struct([("a", int), ("b", int, 0)], "Inner")
    assert kinds(struct([("rows", list[inner])]), struct([("rows", list[wider])])) == {"Inner.b": "widened"}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({}, {"rename": "camel"}, True),
        ({"rename": "camel"}, {}, True),
        ({"rename": "camel"}, {"rename": "camel"}, False),
        ({"array_like": True}, {"array_like": True, "rename": "camel"}, False),
    ],
)
def test_a_field_that_is_stored_under_another_name_has_changed(before: Any, after: Any, changed: bool) -> None:
    """Its stored values would be left out without a word, and read as the default."""
    old, new = struct([("my_count", int, 0)], **before), struct([("my_count", int, 0)], **after)
    assert kinds(old, new) == ({"Row.my_count": "changed"} if changed else {})
    assert kinds(old, new, by_name=True) == {}
    named = struct([("my_count", int, msgspec.field(default=0, name="n"))])
    assert kinds(struct([("my_count", int, 0)]), named) == {"Row.my_count": "changed"}
    codecs = [StateCodec("it", [str], kind) for kind in (old, new)]
    codecs[0].check(codecs[0].header(), "here")
    if changed:
        with pytest.raises(CheckpointError, match=r"stored as 'my_?[cC]ount', now stored as 'my_?[cC]ount'"):
            codecs[1].check(codecs[0].header(), "here")
    else:
        codecs[1].check(codecs[0].header(), "here")


def test_a_default_that_is_not_stored_may_not_change() -> None:
    out: Any = {"omit_defaults": True}
    old = struct([("a", int, 1), ("b", list[int], msgspec.field(default_factory=list))], **out)
    other = struct([("a", int, 2), ("b", list[int], msgspec.field(default_factory=list))], **out)
    assert kinds(old, old) == {}
    assert kinds(old, other) == {"Row.a": "changed"}
    assert kinds(old, struct([("b", list[int], msgspec.field(default_factory=list)), ("a", int, 1)], **out)) == {}
    assert kinds(struct([("a", int, 1)]), struct([("a", int, 2)])) == {}
    assert kinds(struct([("a", int, 1)]), struct([("a", int, 2)], **out)) == {}


def test_the_order_of_the_fields_of_a_key_counts() -> None:
    (change,) = shape_changes(shape_of(int, str), shape_of(str, int))
    assert (change.kind, change.was, change.now) == ("changed", "(int, str)", "(str, int)")


@dataclasses.dataclass
class Plain:
    a: int


def test_values_are_read_in_the_form_that_they_were_written_in() -> None:
    """A moment in a class makes all of it tagged: what msgpack has no exact form for is named."""
    wide = dataclasses.make_dataclass("Plain", [("a", int), ("at", datetime | None, None)])
    wide.__module__ = __name__
    old, new = ValueEncoding(Plain), ValueEncoding(wide)
    assert (old.form, new.form) == ("native", "tagged")
    (stored,) = old.encode([Plain(3)])
    assert new.decode_form("native", 1, stored) == [wide(3)]
    (stored,) = new.encode([wide(4)])
    assert old.decode_form("tagged", 1, stored) == [Plain(4)]
