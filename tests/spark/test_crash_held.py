"""Exactly once under kills where trees are open across epochs: held tuples, frames of a cycle, outputs that wait.

The count of `held` gives the rows of the plain one, though words go round before it and are held behind it,
and some fail when what they did is committed long since.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import write_text
from tests.spark.crashing import EPOCH_LINES, LINES, OPTIONS, How, check_crashed, check_ended, die_at
from tests.spark.deaths import Kill
from tests.spark.held import topology
from tupletree.runtimes.api import Summary

HOW = How(base_epochs=3, topology="tests.spark.held")

POINTS = {"settle.after_log": 5, "callbacks.after": 4}
"""Crash point → at which pass, late enough that frames are kept; `make nightly` has the others, which cost minutes."""

RARER = {
    "epoch.before_log": 4,
    "epoch.after_log": 3,
    "settle.after_run": 4,
    "settle.before_rerun": 1,
    "settle.before_log": 4,
    "publish.before_output": 2,
    "publish.after_output": 1,
    "publish.after_dead": 3,
    "settle.after_publish": 4,
    "callbacks.before": 5,
    "sweep.before_history": 1,
    "sweep.after_history": 2,
    "sweep.after": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path, LINES)
    return tmp_path


def resume(folder: Path, run_topology: RunTopology) -> Summary:
    return run_topology(topology(folder, EPOCH_LINES), folder / "state", **OPTIONS)


def test_nothing_is_lost_or_twice_without_a_kill(folder: Path, run_topology: RunTopology) -> None:
    check_ended(folder, resume(folder, run_topology))


@pytest.mark.parametrize(
    "killed",
    [
        *(pytest.param(Kill(f"{point}:{at}", HOW), id=point) for point, at in POINTS.items()),
        *(pytest.param(Kill(f"{point}:{at}", HOW), id=point) for point, at in RARER.items()),
    ],
    indirect=True,
)
def test_nothing_is_lost_or_twice_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    check_ended(killed, resume(killed, run_topology), before)


@pytest.mark.nightly
def test_a_task_runs_in_one_place_after_a_restart_with_fewer_cores(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "settle.after_run:4", replace(HOW, master="local[3]"))
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["settle.after_run", "settle.after_log"])
def test_nothing_is_lost_or_twice_after_kills_in_every_epoch(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    for _ in range(3):
        die_at(folder, f"{point}:2", HOW)
        check_crashed(folder)
    check_ended(folder, resume(folder, run_topology))
