"""Exactly once under kills with windows by event time and a join: nothing is late because a process died."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import write_text
from tests.spark.crashing import EPOCH_LINES, LINES, OPTIONS, How, check_crashed, check_ended, die_at
from tests.spark.deaths import Kill
from tests.spark.timed import topology
from tupletree.runtimes.api import Summary

HOW = How(base_epochs=3, topology="tests.spark.timed")

POINTS = {
    "epoch.before_log": 4,
    "epoch.after_log": 3,
    "settle.after_run": 4,
    "settle.before_rerun": 1,
    "settle.before_log": 4,
    "settle.after_log": 5,
    "publish.before_output": 2,
    "publish.after_output": 1,
    "publish.after_dead": 3,
    "settle.after_publish": 4,
    "callbacks.before": 5,
    "callbacks.after": 4,
    "sweep.after": 1,
}
"""Crash point → at which pass, late enough that tuples are held."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path, LINES)
    return tmp_path


def resume(folder: Path, run_topology: RunTopology) -> Summary:
    return run_topology(topology(folder, EPOCH_LINES), folder / "state", **OPTIONS)


def test_nothing_is_lost_or_twice_without_a_kill(folder: Path, run_topology: RunTopology) -> None:
    check_ended(folder, resume(folder, run_topology))


@pytest.mark.parametrize(
    "killed", [pytest.param(Kill(f"{point}:{at}", HOW), id=point) for point, at in POINTS.items()], indirect=True
)
def test_nothing_is_lost_or_twice_or_late_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    check_ended(killed, resume(killed, run_topology), before)


@pytest.mark.parametrize("point", ["settle.after_run", "settle.after_log"])
def test_nothing_is_lost_or_twice_or_late_after_kills_in_every_epoch(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    for _ in range(4):
        die_at(folder, f"{point}:2", HOW)
        check_crashed(folder)
    check_ended(folder, resume(folder, run_topology))
