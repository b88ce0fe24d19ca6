"""Rows that executors read: their ids, and how the driver finds them again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.test_splits import Numbers
from tupletree.runtimes.spark.format.rows import KEY_BITS, keys_of, root_ids
from tupletree.runtimes.spark.format.split_messages import SplitMessages
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.topology.model import TopologySpec
from tupletree.topology.splits import Split
from tupletree.tracking.pending import Pending
from tupletree.tracking.retry import RetryPolicy

KEYS = st.integers(1, (1 << KEY_BITS) - 1)


def splits(key: int) -> list[PlannedSplit]:
    return [
        PlannedSplit("numbers", 9, 0, key, Split(3, 0, "n"), 0),
        PlannedSplit("numbers", 9, 1, key + 3, Split(1, 3, "n"), 1),
        PlannedSplit("numbers", 8, 0, key + 4, Split(5, 5), 2),
    ]


def accounts(draws: Callable[[int], int]) -> Accounts:
    def draw_roots(bits: int) -> int:
        return own.draw_roots(bits)

    pending = Pending(RetryPolicy(), draw_roots, random.Random(1).random)
    pending.register(9, "numbers")
    own = Accounts(TopologySpec("t", {}), pending, {9: "numbers"}, random_bits=draws)
    return own


@given(KEYS)
def test_roots_are_distinct_and_never_0_and_lead_back_to_their_keys(key: int) -> None:
    roots = root_ids(key, 100).tolist()
    assert len({*roots, 0}) == 101
    assert keys_of(roots).tolist() == [*range(key, key + 100)]


@given(KEYS)
def test_a_row_is_found_by_its_root(key: int) -> None:
    rows = SplitMessages(splits(key))
    assert len(rows.roots) == 9
    assert rows.by_task == {9: 4, 8: 5}
    named = [(one.task, one.message_id) for one in rows]
    assert [rows.id_of(root) for root in rows.roots.tolist()] == [message_id for _, message_id in named]
    assert rows.id_of(int(root_ids(key, 10)[9])) is None
    assert named == [(9, ("n", 0)), (9, ("n", 1)), (9, ("n", 2)), (9, ("n", 3))] + [
        (8, number) for number in range(5, 10)
    ]
    assert rows.among([5, int(rows.roots[4]), int(root_ids(key, 10)[9])]) == [int(rows.roots[4])]


def test_rows_are_read_again_by_their_roots_a_rejected_one_as_its_payload() -> None:
    rows = SplitMessages(splits(77), lambda _: Numbers(10))
    wanted = [int(rows.roots[at]) for at in (6, 1, 8)]
    values = {one.root: value for one, value in rows.find(wanted)}
    assert {root: getattr(value, "value", value) for root, value in values.items()} == dict(
        zip(wanted, (b"7", 1, 9), strict=True)
    )


def test_untracked_rows_have_no_roots() -> None:
    rows = SplitMessages([PlannedSplit("numbers", 9, 0, 0, Split(3), 0)])
    assert (rows.among([1, 2]), rows.roots.tolist(), rows.by_task) == ([], [], {})
    assert rows.has_work(())


def drawn(*values: int) -> Callable[[int], int]:
    left: Iterator[int] = iter(values)
    return lambda _bits: next(left)


@pytest.mark.parametrize("taken", [100, 95, 108])
def test_a_key_whose_rows_would_meet_those_of_another_epoch_is_drawn_again(taken: int) -> None:
    own = accounts(drawn(taken, 500))
    own.log(1, [SplitMessages(splits(100))])
    assert own.draw_key(9) == 500


def test_a_key_whose_rows_would_meet_a_message_in_flight_or_leave_the_bits_is_drawn_again() -> None:
    root = int(root_ids(105, 1)[0])
    own = accounts(drawn(root, 100, 0, (1 << KEY_BITS) - 8, 106))
    own.pending.emit(9, "m", "value", 0.0, 0.0)
    assert own.draw_key(9) == 106


def test_a_root_that_is_that_of_a_row_being_read_is_drawn_again() -> None:
    row = int(root_ids(103, 1)[0])
    own = accounts(drawn(row, 5, row << 64 | 5, 7 << 64 | 6))
    own.log(1, [SplitMessages(splits(100))])
    own.pending.emit(9, "m", "value", 0.0, 0.0)
    own.pending.emit_many(9, ["n", "o"], ["value", "value"], 0.0, 0.0)
    assert own.pending.roots_in_flight() == [5, 6, 7]
