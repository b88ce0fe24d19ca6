"""Exactly once under kills: SIGKILL at every step whose order matters, and a later start goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import topology, write_text
from tests.spark.crashing import (
    EPOCH_LINES,
    LINES,
    OPTIONS,
    check_crashed,
    check_ended,
    die_at,
    kill_session,
    start_process,
)
from tupletree.runtimes.base import Summary
from tupletree.runtimes.crash import CRASH_POINTS
from tupletree.runtimes.spark.journal import numbered

pytestmark = pytest.mark.spark

MATRIX = {
    "generation.claimed": 1,
    "epoch.before_log": 2,
    "epoch.after_log": 2,
    "settle.after_run": 2,
    "settle.before_rerun": 1,
    "settle.before_log": 2,
    "settle.after_log": 2,
    "publish.before_output": 2,
    "publish.after_output": 2,
    "publish.after_dead": 2,
    "settle.after_publish": 2,
    "callbacks.before": 2,
    "callbacks.after": 2,
    "sweep.before_history": 1,
    "sweep.after_history": 1,
    "sweep.after": 1,
}
"""Crash point → at which pass: mostly the second, so that something is committed already."""

BASE_EPOCHS = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path, LINES)
    return tmp_path


def resume(folder: Path, run_topology: RunTopology) -> Summary:
    return run_topology(topology(folder, EPOCH_LINES), folder / "state", **OPTIONS)


def test_the_matrix_has_every_crash_point() -> None:
    assert set(MATRIX) == set(CRASH_POINTS)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_everything_is_there_once_after_a_kill(point: str, folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, f"{point}:{MATRIX[point]}", base_epochs=BASE_EPOCHS)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


@pytest.mark.parametrize(
    "point", ["epoch.after_log", "settle.after_log", "publish.before_output", "sweep.after_history"]
)
def test_everything_is_there_once_after_two_kills_at_the_same_point(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    die_at(folder, f"{point}:{MATRIX[point]}", base_epochs=BASE_EPOCHS)
    check_crashed(folder)
    die_at(folder, point, base_epochs=BASE_EPOCHS)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_an_epoch_that_was_logged_ahead_runs_after_a_kill(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "settle.before_log", master="local[2]")
    check_crashed(folder)
    state = folder / "state"
    assert numbered(state / "settles", ".settle") == []
    assert numbered(state / "epochs", ".epoch") == [0, 1]
    check_ended(folder, resume(folder, run_topology))


def test_what_a_killed_driver_leaves_running_does_no_harm(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "epoch.after_log:2", alone=True, master="local[2]")
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_run_goes_on_with_fewer_cores_than_it_began_with(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "settle.after_run:2", master="local[3]")
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_run_that_is_left_alone_ends_clean(folder: Path) -> None:
    process = start_process(folder, base_epochs=BASE_EPOCHS)
    try:
        _, said = process.communicate(timeout=240.0)
    finally:
        kill_session(process.pid)
    assert process.returncode == 0, said.decode()[-3000:]
    check_crashed(folder)
