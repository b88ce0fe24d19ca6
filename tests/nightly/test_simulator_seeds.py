"""The simulator, for as many seeds as there is time for: 10,000, or what TT_SEEDS says."""

from __future__ import annotations

import os

import pytest

from tests.simulator.campaign import simulate_all

SEEDS = int(os.environ.get("TT_SEEDS", "10000"))
SHARES = 10


@pytest.mark.nightly
@pytest.mark.parametrize("share", range(SHARES))
def test_the_guarantee_holds_under_many_seeds(share: int) -> None:
    simulate_all(range(100_000 + share, 100_000 + SEEDS, SHARES))
