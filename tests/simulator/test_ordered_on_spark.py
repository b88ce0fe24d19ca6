"""Ordered inputs in the simulation of the Spark protocol: what is committed is in order, under every seed."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulator.ordered import simulate
from tests.simulator.ordered_shapes import SHAPES
from tupletree.runtimes.spark.settle.epoch_order import EpochOrder
from tupletree.testing.spark_protocol import ProtocolFaults

SEEDS = range(120)
SHARES = 4
QUIET = ProtocolFaults(crashes=0, executor=0.0, twice=0.0, job=0.0)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, in memory if possible."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="tupletree-", dir=memory) as folder:
        yield Path(folder)


def simulate_all(seeds: range, place: Path, faults: ProtocolFaults | None = None) -> Counter[str]:
    totals: Counter[str] = Counter()
    for seed in seeds:
        folder = place / str(seed)
        folder.mkdir()
        try:
            totals.update(simulate(seed, folder, faults).counts)
        finally:
            shutil.rmtree(folder)
    return totals


@pytest.mark.parametrize("share", range(SHARES))
def test_what_is_committed_is_in_order_under_every_seed(place: Path, share: int) -> None:
    totals = simulate_all(SEEDS[share::SHARES], place)
    assert totals["machine"] > 4
    assert totals["process"] > 2
    assert totals["replayed"] > 2


def test_so_it_is_although_calls_are_made_in_another_order_and_what_they_did_is_put_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this the tests above would say nothing."""
    totals: Counter[str] = Counter()
    judge = EpochOrder.behind

    def behind(order: EpochOrder, *run: Any) -> set[int]:
        found = judge(order, *run)
        totals["put back"] += len(found)
        return found

    monkeypatch.setattr(EpochOrder, "behind", behind)
    for seed in range(2, 12):
        folder = place / str(seed)
        folder.mkdir()
        totals.update(simulate(seed, folder, QUIET, "crossed").counts)
    assert totals["put back"] > 20
    assert totals["wrong order at one"] + totals["wrong order at two"] > 20


@pytest.mark.nightly
@pytest.mark.parametrize("share", range(20))
def test_so_it_is_under_two_thousand_seeds(place: Path, share: int) -> None:
    """Without jobs that fail: four in a row end a run, which is not looked for here."""
    simulate_all(range(2000)[share::20], place, ProtocolFaults(job=0.0))


@pytest.mark.parametrize("shape", [one.__name__ for one in SHAPES])
def test_without_crashes_every_shape_is_in_order(place: Path, shape: str) -> None:
    for seed in range(6):
        folder = place / str(seed)
        folder.mkdir()
        simulate(seed, folder, QUIET, shape)
