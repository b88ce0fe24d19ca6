"""Changes of a topology at random, with failures and crashes in between, against an oracle that knows all attempts."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.simulator.upgrading import simulate


@pytest.mark.parametrize("seed", [4, 7])
def test_nothing_is_lost_and_nothing_comes_twice_while_the_topology_changes(tmp_path: Path, seed: int) -> None:
    simulate(seed, tmp_path)


@pytest.mark.nightly
def test_many_seeds_of_changes(tmp_path: Path) -> None:
    """TUPLETREE_SEEDS says how many (default 200); every kind of change occurs."""
    changes: Counter[str] = Counter()
    for seed in range(int(os.environ.get("TUPLETREE_SEEDS", "200"))):
        place = tmp_path / str(seed)
        place.mkdir()
        changes += simulate(seed, place).changes
    kinds = ("branch", "other", "held", "echo")
    assert changes.keys() >= {"rename", "widen", "tasks", "add branch", *(f"drop {kind}" for kind in kinds)}
