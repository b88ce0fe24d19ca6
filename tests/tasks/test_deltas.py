from __future__ import annotations

import random
from functools import reduce
from operator import xor

from hypothesis import given
from hypothesis import strategies as st

from tupletree.data.frames import Root, roots_of
from tupletree.tasks.edges import DeltaPool, RootIds, combined, split_by_acker

roots = st.integers(0, 6) | st.tuples(st.integers(1, 6), st.integers(1, 6))
groups = st.lists(st.tuples(st.integers(1, 7), st.lists(roots, max_size=5)), max_size=6)


def expected_of(given_groups: list[tuple[int, list[Root]]]) -> dict[int, int]:
    values: dict[int, list[int]] = {}
    for value, entries in given_groups:
        for root in {one for entry in entries for one in roots_of(entry)}:
            values.setdefault(root, []).append(value)
    return {root: reduce(xor, listed) for root, listed in values.items()}


@given(groups)
def test_every_root_gets_the_xor_of_its_values_in_one_list(given_groups: list[tuple[int, list[Root]]]) -> None:
    found: dict[int, int] = {}
    for value, listed in combined(given_groups):
        for root in listed:
            assert root not in found
            found[root] = value
    assert found == expected_of(given_groups)


@given(groups)
def test_a_pool_leaves_out_what_cancels(given_groups: list[tuple[int, list[Root]]]) -> None:
    pool = DeltaPool()
    for value, listed in given_groups:
        pool.add(value, listed)
    found = {root: value for value, listed in pool.take() for root in listed if root}
    assert found == {root: value for root, value in expected_of(given_groups).items() if value}
    assert not pool


def test_an_edge_that_is_born_and_acked_with_one_list_costs_nothing() -> None:
    pool = DeltaPool()
    shared: list[Root] = [1, 2, 3]
    pool.add(10, shared)  # the parent's own edge
    pool.add(77, shared)  # a child is born
    pool.add(77, shared)  # and acked
    ((value, listed),) = pool.take()
    assert value == 10
    assert listed is shared


def test_lists_that_share_no_root_stay_the_same_objects() -> None:
    first: list[Root] = [1, 2]
    second: list[Root] = [3]
    assert [listed for _, listed in combined([(5, first), (6, second)])] == [first, second]
    assert combined([(5, first), (6, second)])[0][1] is first


@given(st.lists(st.integers(1, 2**64 - 1), unique=True), st.integers(1, 9))
def test_each_acker_gets_the_roots_of_its_share(listed: list[int], ackers: int) -> None:
    parts = split_by_acker(listed, ackers)
    assert sorted(root for _, part in parts for root in part) == sorted(listed)
    assert all(root % ackers == share for share, part in parts for root in part)
    assert all(part for _, part in parts)


def test_a_turn_draws_ids_of_one_share() -> None:
    draw = RootIds(random.Random(1).getrandbits, 5)
    for _ in range(5):
        draw.turn()
        many = draw(64 * 10).to_bytes(80, "little")
        ids = [int.from_bytes(many[at : at + 8], "little") for at in range(0, 80, 8)]
        assert len({one % 5 for one in [*ids, draw(64)]}) == 1
