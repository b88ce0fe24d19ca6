"""The simulator: seeds that must pass, and what it says when one does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.campaign import rows_expected, rows_of, simulate_all
from tests.simulator.topologies import KINDS, Nowhere, Number, generated
from tupletree import Topology, TopologyError, batch_bolt
from tupletree.sources import items
from tupletree.testing import Faults, SimulationError, simulate
from tupletree.tracking.acker import Acker

SEEDS = range(600)
SHARES = 6


@pytest.mark.parametrize("share", range(SHARES))
def test_the_guarantee_holds_under_every_seed(share: int) -> None:
    totals = simulate_all(SEEDS[share::SHARES])
    assert totals["acked"] > totals["dead"] > 0


def test_every_fault_comes_up() -> None:
    totals = simulate_all(range(1000, 1150))
    assert {name for name in vars(Faults()) if not totals[name]} == set()


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_without_faults_every_row_is_written_once_and_every_message_ends(kind: int) -> None:
    for seed in range(kind, 8 * len(KINDS), len(KINDS)):
        topology = generated(seed)
        result = simulate(topology.make, topology.inputs, seed=seed, faults=Faults.none())
        assert result.faults == {}
        assert result.left == {}
        if topology.expected is not None:
            assert rows_of(result) == rows_expected(topology, result)


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    program = (
        "from tests.simulator.topologies import generated\n"
        "from tupletree.testing import simulate\n"
        "topologies = [(seed, generated(seed)) for seed in range(13)]\n"
        "print([simulate(one.make, one.inputs, seed=seed).fingerprint for seed, one in topologies])\n"
    )
    root = Path(__file__).resolve().parents[2]
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_broken_rule_is_reported_with_the_seed_the_topology_and_the_last_events_and_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Acker, "_early", lambda self, root, current: type("Nothing", (), {"value": 0})())
    monkeypatch.setattr(Acker, "_fail", lambda *_: None)
    topology = generated(0)
    errors = []
    for _ in range(2):
        with pytest.raises(SimulationError) as raised:
            simulate(topology.make, topology.inputs, seed=0)
        errors.append(raised.value)
    text = str(errors[0])
    assert errors[0].seed == 0
    assert text == str(errors[1])
    for part in (
        "seed 0: its acker heard",
        "spout numbers",
        "← first.Number  none",
        "the last events:",
        "Track(",
        "s  to task",
    ):
        assert part in text


@batch_bolt(size=2)
async def awaited(batch: list[Number]) -> list[Number]:
    return batch


def test_a_topology_that_the_local_runtime_refuses_is_refused() -> None:
    def make() -> Topology:
        t = Topology("awaited")
        t.sink("out", Nowhere()).shuffle(t.bolt("awaited", awaited).shuffle(t.spout("numbers", items([Number(1)]))))
        return t

    with pytest.raises(TopologyError, match="an async batch bolt cannot run locally"):
        simulate(make, {"numbers": []}, seed=0)


def test_a_probability_is_a_probability() -> None:
    with pytest.raises(ValueError, match="restart is a probability"):
        Faults(restart=1.5)
