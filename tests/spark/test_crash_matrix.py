"""Exactly once under kills: SIGKILL at every step whose order matters, and a later start goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import topology, write_text
from tests.spark.crashing import (
    EPOCH_LINES,
    HANG_S,
    LINES,
    OPTIONS,
    How,
    check_crashed,
    check_ended,
    check_published,
    die_at,
    kill_in_session,
    kill_session,
    said,
    sleep_at,
    start_process,
    wait_for_settle,
)
from tupletree.runtimes.base import Summary
from tupletree.runtimes.crash import CRASH_POINTS
from tupletree.runtimes.spark.journal import numbered, read_settle

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


HOW = How(base_epochs=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path, LINES)
    return tmp_path


def resume(folder: Path, run_topology: RunTopology, source: str = "file") -> Summary:
    return run_topology(topology(folder, EPOCH_LINES, source), folder / "state", **OPTIONS)


def test_the_matrix_has_every_crash_point() -> None:
    assert set(MATRIX) == set(CRASH_POINTS)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_everything_is_there_once_after_a_kill(point: str, folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, f"{point}:{MATRIX[point]}", HOW)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


@pytest.mark.parametrize(
    "point", ["epoch.after_log", "settle.after_log", "publish.before_output", "sweep.after_history"]
)
def test_everything_is_there_once_after_two_kills_at_the_same_point(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    die_at(folder, f"{point}:{MATRIX[point]}", HOW)
    check_crashed(folder)
    die_at(folder, point, HOW)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


@pytest.mark.parametrize("point", ["epoch.after_log", "settle.after_log", "callbacks.before", "callbacks.after"])
def test_a_message_that_its_source_delivers_again_after_a_kill_is_not_processed_again(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    die_at(folder, f"{point}:2", How(source="broker"))
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology, "broker"), before)


def test_an_epoch_that_was_logged_ahead_runs_after_a_kill(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "settle.before_log", How(master="local[2]"))
    check_crashed(folder)
    state = folder / "state"
    assert numbered(state / "settles", ".settle") == []
    assert numbered(state / "epochs", ".epoch") == [0, 1]
    check_ended(folder, resume(folder, run_topology))


def test_what_a_killed_driver_leaves_running_does_no_harm(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "epoch.after_log:2", How(master="local[2]"), alone=True)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_run_goes_on_with_fewer_cores_than_it_began_with(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "settle.after_run:2", How(master="local[3]"))
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_driver_that_was_only_asleep_may_still_commit(folder: Path, run_topology: RunTopology) -> None:
    sleeper = sleep_at(folder, "settle.before_log:2", How())
    try:
        die_at(folder, "settle.after_run")  # another start has taken over, but not committed anything
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.wait(HANG_S)
    finally:
        kill_session(sleeper.pid)
    before = check_crashed(folder)
    assert read_settle(folder / "state" / "settles", 1).generation == 1
    check_ended(folder, resume(folder, run_topology), before)


def test_a_driver_that_was_only_asleep_stops_when_another_has_committed(
    folder: Path, run_topology: RunTopology
) -> None:
    sleeper = sleep_at(folder, "settle.before_log:2", HOW)
    try:
        check_ended(folder, resume(folder, run_topology))
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.wait(HANG_S)
    finally:
        kill_session(sleeper.pid)
    assert sleeper.returncode == 1
    assert "another start of this run has taken over; this one stops" in said(folder)
    # What it had written stays hidden, and goes with the next start.
    check_ended(folder, resume(folder, run_topology))


def test_workers_that_are_killed_cost_nothing_but_time(folder: Path) -> None:
    process = start_process(folder, How())
    try:
        wait_for_settle(folder, process, 0)
        assert kill_in_session(process.pid, "pyspark.daemon pyspark.worker")
        process.wait(HANG_S)
    finally:
        kill_session(process.pid)
    assert process.returncode == 0, said(folder)
    check_published(folder)


def test_a_jvm_that_dies_ends_the_run_with_the_way_to_go_on(folder: Path, run_topology: RunTopology) -> None:
    process = start_process(folder, How())
    try:
        wait_for_settle(folder, process, 0)
        assert kill_in_session(process.pid, "java")
        process.wait(HANG_S)
    finally:
        kill_session(process.pid)
    assert process.returncode == 1
    assert f"resume with --state-dir {folder / 'state'}: nothing is lost" in said(folder)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_run_that_is_left_alone_ends_clean(folder: Path) -> None:
    process = start_process(folder, HOW)
    try:
        process.wait(HANG_S)
    finally:
        kill_session(process.pid)
    assert process.returncode == 0, said(folder)
    check_published(folder)
