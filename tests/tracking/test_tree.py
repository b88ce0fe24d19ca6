"""Edges of siblings."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tupletree.tracking.tree import draw_edges, xor_all


@given(st.integers(0, 40), st.integers())
def test_rule_2_every_copy_has_an_edge_of_its_own(copies: int, seed: int) -> None:
    edges = draw_edges(copies, random.Random(seed).getrandbits)
    assert len(set(edges)) == copies


def test_rule_9_zero_repeated_and_cancelling_edges_are_redrawn() -> None:
    draws: Iterator[int] = iter([0, 1, 1, 2, 3, 4, 5, 6])  # 1 ^ 2 ^ 3 == 0
    assert draw_edges(3, lambda bits: next(draws)) == [4, 5, 6]


def test_rule_4_no_copies_are_no_edges_and_a_sum_of_zero() -> None:
    assert draw_edges(0, random.Random(1).getrandbits) == []
    assert xor_all([]) == 0
