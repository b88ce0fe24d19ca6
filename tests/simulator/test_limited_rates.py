"""Rates and policies of bolts under faults: no seed loses a message of a bolt that waits for its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.topologies import EveryThird, Nowhere, Number, flaky, in_parts, part_on, slowly
from tupletree import Retry, Topology
from tupletree.sources import items
from tupletree.testing.simulator.simulate import simulate

BOLTS: dict[str, Any] = {"plain": flaky, "by hand": EveryThird, "async": slowly}


def limited(kind: str, seed: int) -> Callable[[], Topology]:
    def make() -> Topology:
        options = {"message_timeout_s": 2.0, "max_spout_pending": 7 + 20 * (seed % 2), "acker_tasks": 1 + seed % 3}
        t = Topology("limited", options=options)
        numbers = t.spout("numbers", items([], message_type=Number))
        policy = Retry(attempts=4, backoff_s=0.05, on={ConnectionError: Retry(attempts=6, factor=1)})
        out = t.sink("out", Nowhere())
        if kind == "parts":
            parts = t.bolt("parts", in_parts).shuffle(numbers)
            out.shuffle(t.bolt("limited", part_on, parallelism=1 + seed % 2, max_rate=25.0).shuffle(parts))
        else:
            width = 1 if kind == "by hand" else 1 + seed % 3
            bolt = t.bolt("limited", BOLTS[kind], parallelism=width, max_rate=20.0, retry=policy)
            out.shuffle(bolt.shuffle(numbers))
        return t

    return make


@pytest.mark.parametrize("kind", [*BOLTS, "parts"])
def test_the_guarantee_holds_where_calls_wait_for_a_rate(kind: str) -> None:
    for seed in range(12):
        simulate(limited(kind, seed), {"numbers": [Number(value) for value in range(25)]}, seed=seed)
