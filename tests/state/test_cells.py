"""A task's values in hand, and the committed version beneath them that no run may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.bolts.frame_bench import Word, emitted, frame, task_of, words
from tupletree import Collector, KeyedState, bolt
from tupletree.state.cells import CLEARED, ValueCell, is_immutable

Use = Callable[[KeyedState[Any], str], None]


def run(cell: ValueCell[Any], use: Use, *texts: str) -> None:
    """Let a bolt use its state once per word, keyed by the word."""

    @bolt(state=int)
    def uses(word: Word, total: KeyedState[Any]) -> None:
        use(total, word.text)

    worked = task_of(uses, state=cell).work(frame((1, words(*texts))))
    assert not worked.failures, worked.failures


def read(cell: ValueCell[Any], key: str) -> Any:
    seen = []
    run(cell, lambda state, _: seen.append(state.value), key)
    return seen[0]


def assign(value: Any) -> Use:
    def use(state: KeyedState[Any], _: str) -> None:
        state.value = value

    return use


def test_a_key_that_was_never_set_has_the_default() -> None:
    cell = ValueCell({}, int)

    assert read(cell, "a") == 0
    assert cell.delta() == {}


def test_reading_changes_nothing() -> None:
    cell = ValueCell({"a": 5}, int)

    assert read(cell, "a") == 5
    assert cell.delta() == {}


def test_what_was_set_is_read_again_in_the_same_run() -> None:
    cell: ValueCell[int] = ValueCell({"a": 5}, int)
    run(cell, assign(7), "a")

    assert read(cell, "a") == 7
    assert cell.delta() == {"a": 7}


@pytest.mark.parametrize("falsy", ["", b"", False, None, 0.0, ()])
def test_a_falsy_value_is_a_value(falsy: Any) -> None:
    cell = ValueCell({"a": 5}, lambda: 1)
    run(cell, assign(falsy), "a")

    assert read(cell, "a") == falsy
    assert cell.delta() == {"a": falsy}


def test_each_key_has_a_default_of_its_own() -> None:
    cell: ValueCell[list[str]] = ValueCell({}, list)
    run(cell, lambda state, key: state.value.append(key), "a", "b", "a")

    assert cell.delta() == {"a": ["a", "a"], "b": ["b"]}


def test_keys_do_not_share_a_default_that_is_one_object() -> None:
    shared = ["first"]
    cell: ValueCell[list[str]] = ValueCell({"c": []}, lambda: shared)
    run(cell, lambda state, key: state.value.append(key), "a", "b")

    def clear_and_append(state: KeyedState[Any], key: str) -> None:
        state.clear()
        state.value.append(key)

    run(cell, clear_and_append, "c")

    assert shared == ["first"]
    assert cell.delta() == {"a": ["first", "a"], "b": ["first", "b"], "c": ["first", "c"]}


class Basket(msgspec.Struct):
    items: list[str] = []


def test_changing_a_value_in_place_never_reaches_the_committed_version() -> None:
    committed: dict[str, Any] = {"list": ["x"], "dict": {"k": ["x"]}, "basket": Basket(["x"])}
    cell: ValueCell[Any] = ValueCell(committed, int)

    def use(state: KeyedState[Any], key: str) -> None:
        value = state.value
        changeable: list[str] = {"list": lambda: value, "dict": lambda: value["k"], "basket": lambda: value.items}[
            key
        ]()
        changeable.append("y")

    run(cell, use, *committed)

    assert committed == {"list": ["x"], "dict": {"k": ["x"]}, "basket": Basket(["x"])}
    assert cell.delta() == {"list": ["x", "y"], "dict": {"k": ["x", "y"]}, "basket": Basket(["x", "y"])}


def test_clearing_removes_the_key() -> None:
    cell: ValueCell[int] = ValueCell({"a": 5, "b": 6}, int)
    run(cell, lambda state, _: state.clear(), "a", "new")

    assert read(cell, "a") == 0
    assert cell.delta() == {"a": CLEARED}


def test_a_key_that_is_set_after_it_was_cleared_has_the_new_value() -> None:
    cell: ValueCell[int] = ValueCell({"a": 5}, int)
    run(cell, lambda state, _: state.clear(), "a")
    run(cell, assign(9), "a")

    assert cell.delta() == {"a": 9}


def test_a_key_that_is_cleared_after_it_was_set_is_removed() -> None:
    cell: ValueCell[int] = ValueCell({"a": 5}, int)
    run(cell, assign(9), "a", "b")
    run(cell, lambda state, _: state.clear(), "a", "b")

    assert cell.delta() == {"a": CLEARED}


def test_a_value_that_is_back_at_its_default_needs_no_room() -> None:
    cell: ValueCell[int] = ValueCell({"a": 1}, int)

    def use(state: KeyedState[Any], _: str) -> None:
        state.value -= 1

    run(cell, use, "a")

    assert cell.delta() == {"a": CLEARED}


@pytest.mark.parametrize(
    ("value", "default"),
    [(-0.0, 0.0), (False, 0), (0.0, 0), (Decimal("0.00"), Decimal(0)), ([], None)],
)
def test_what_only_equals_the_default_is_kept(value: Any, default: Any) -> None:
    cell = ValueCell({"a": 1}, lambda: default)
    run(cell, assign(value), "a")

    assert repr(cell.delta()) == repr({"a": value})


def test_an_emptied_collection_is_removed_where_the_default_is_empty() -> None:
    cell: ValueCell[list[int]] = ValueCell({"a": [1], "b": [1]}, list)

    def use(state: KeyedState[Any], key: str) -> None:
        if key == "a":
            state.value.pop()
        else:
            state.value = []

    run(cell, use, "a", "b")

    assert cell.delta() == {"a": CLEARED, "b": CLEARED}


def test_every_fresh_run_starts_from_the_committed_version() -> None:
    committed = {"a": [1]}
    thrown_away: ValueCell[list[int]] = ValueCell(committed, list)
    run(thrown_away, lambda state, _: state.value.append(2), "a")

    assert read(ValueCell(committed, list), "a") == [1]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_default_that_raises_fails_the_tuple_and_not_the_task(by_hand: bool) -> None:
    def sometimes() -> int:
        if next(turns) == 2:
            raise ConnectionError("no default today")
        return 0

    @bolt(state=int)
    def plain(word: Word, total: KeyedState[int]) -> Word:
        return word

    @bolt(state=int)
    def collecting(word: Word, total: KeyedState[int], out: Collector[Word]) -> None:
        out.emit(word)

    turns: Iterator[int] = iter(range(1, 100))
    cell = ValueCell({}, sometimes)
    worked = task_of(collecting if by_hand else plain, state=cell).work(
        frame((1, words("a")), (2, words("b")), (3, words("c")))
    )

    assert emitted(worked) == [(1, Word("a")), (3, Word("c"))]
    assert worked.failures[2].error == "no default today"


def test_only_what_cannot_change_is_handed_out_without_a_copy() -> None:
    assert all(map(is_immutable, [1, "a", b"a", None, 1.5, True, Decimal(1)]))
    assert not any(map(is_immutable, [[], {}, set(), Basket(), ([],)]))


def test_a_memory_of_its_own_drops_values_that_are_back_at_the_default() -> None:
    cell = ValueCell[int]({}, int)
    for number in range(100_000):
        cell.prepare([number], 0.0)
        cell.changed[number] = 1
        cell.changed[number] = 7 if number % 1000 == 0 else 0
    assert len(cell.changed) <= 2 * 1024
    assert sum(value == 7 for value in cell.changed.values()) == 100


def test_a_default_that_raises_keeps_what_is_there() -> None:
    def broken() -> int:
        raise RuntimeError("no default")

    cell = ValueCell[int]({}, broken)
    cell.changed.update(dict.fromkeys(range(2000), 1))
    cell.prepare([1], 0.0)
    assert len(cell.changed) == 2000
