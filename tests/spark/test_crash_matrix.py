"""Exactly once under kills: SIGKILL at every step whose order matters, and a later start goes on."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.counting import delivered_by_broker, heard, topology, write_text
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
    end,
    kill_below,
    said,
    sleep_at,
    start_process,
    wait_for_settle,
)
from tests.spark.deaths import Kill
from tests.spark.every_sink import CALL_POINTS
from tests.spark.tapped import wait_until
from tupletree.runtimes.api import Summary
from tupletree.runtimes.crash_points import CRASH_POINTS
from tupletree.runtimes.spark.format.entries import numbered, read_epoch_header, read_settle

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

UPGRADE_POINTS = {"upgrade.written"}
"""Crash points that only a start with a changed topology comes to: tests/spark/test_upgrades.py kills there."""

TAKE_POINTS = {"take.before": 2, "take.after": 2}
"""Crash points that only a source comes to whose messages executors take → at which pass."""

HOW = How(base_epochs=2)

LAST_EPOCH = "settle.before_log:3"
"""All input is logged then, so that nothing but the settle is under way."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_text(tmp_path, LINES)
    return tmp_path


def resume(folder: Path, run_topology: RunTopology) -> Summary:
    return run_topology(topology(folder, EPOCH_LINES), folder / "state", **OPTIONS)


def lines_heard(folder: Path) -> set[int]:
    return {number for _, number in heard(folder)}


def test_the_matrices_have_every_crash_point() -> None:
    assert {*MATRIX, *CALL_POINTS, *TAKE_POINTS, *UPGRADE_POINTS} == set(CRASH_POINTS)


@pytest.mark.parametrize(
    "killed",
    [
        *(pytest.param(Kill(f"{point}:{at}", HOW), id=point) for point, at in MATRIX.items()),
        *(
            pytest.param(
                Kill(f"{point}:{MATRIX[point]}", replace(HOW, master="local[1]")),
                id=f"{point}-on-spark",
                marks=pytest.mark.spark,
            )
            for point in ("epoch.after_log", "settle.after_run", "settle.after_log", "publish.after_output")
        ),
    ],
    indirect=True,
)
def test_everything_is_there_once_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    check_ended(killed, resume(killed, run_topology), before)


@pytest.mark.nightly
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


@pytest.mark.parametrize(
    ("killed", "late"),
    [
        pytest.param(Kill(f"{point}:2", How(source="broker")), late, id=f"{point}-{late}")
        for point, late in (("epoch.after_log", True), ("settle.after_log", False), ("callbacks.after", True))
    ],
    indirect=["killed"],
)
def test_a_message_that_its_source_delivers_again_after_a_kill_is_not_processed_again(
    killed: Path, late: bool, start_topology: StartTopology
) -> None:
    before = check_crashed(killed)
    fresh = set(range(1, LINES + 1)) - delivered_by_broker(killed)
    if not late:
        (killed / "redeliver").touch()
    handle = start_topology(topology(killed, EPOCH_LINES, "broker"), killed / "state", **OPTIONS)
    # What the killed process had taken in is processed to its end, whether its source delivers it again or not.
    wait_until(handle, lambda progress: progress.acked and not progress.open and fresh <= lines_heard(killed))
    (killed / "redeliver").touch()
    wait_until(handle, lambda _: len(lines_heard(killed)) == LINES)
    handle.stop()
    check_ended(killed, handle.wait(HANG_S), before)


@pytest.mark.parametrize("killed", [Kill("settle.before_log", How(master="local[2]"))], indirect=True)
def test_an_epoch_that_was_logged_ahead_runs_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    check_crashed(killed)
    state = killed / "state"
    assert numbered(state / "settles", ".settle") == []
    assert numbered(state / "epochs", ".epoch") == [0, 1]
    check_ended(killed, resume(killed, run_topology))


def test_what_a_killed_driver_leaves_running_does_no_harm(folder: Path, run_topology: RunTopology) -> None:
    die_at(folder, "epoch.after_log:2", How(master="local[2]"), alone=True)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


@pytest.mark.parametrize("killed", [Kill("settle.after_run:2", How(master="local[3]"))], indirect=True)
def test_a_run_goes_on_with_fewer_cores_than_it_began_with(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    check_ended(killed, resume(killed, run_topology), before)


def test_a_driver_that_was_only_suspended_may_still_commit(folder: Path, run_topology: RunTopology) -> None:
    sleeper = sleep_at(folder, LAST_EPOCH, How())
    try:
        die_at(folder, "settle.after_run")  # another start has taken over, but not committed anything
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.wait(HANG_S)
    finally:
        end(sleeper)
    before = check_crashed(folder)
    assert read_settle(folder / "state" / "settles", 2).generation == 1
    check_ended(folder, resume(folder, run_topology), before)


def test_a_driver_that_was_only_suspended_stops_when_another_has_committed(
    folder: Path, run_topology: RunTopology
) -> None:
    sleeper = sleep_at(folder, LAST_EPOCH, How())
    try:
        check_ended(folder, resume(folder, run_topology))
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.wait(HANG_S)
    finally:
        end(sleeper)
    assert sleeper.returncode == 1
    assert "another start of this run has taken over; this one stops" in said(folder)
    assert "epoch 2 is settled already" in said(folder), "before it changes anything"
    assert read_settle(folder / "state" / "settles", 2).generation == 2
    # What it had written stays hidden, and goes with the next start.
    check_ended(folder, resume(folder, run_topology))


@pytest.mark.spark
def test_workers_that_are_killed_cost_nothing_but_time(folder: Path) -> None:
    process = start_process(folder, How(master="local[1]"))
    try:
        wait_for_settle(folder, process, 0)
        assert kill_below(process, "pyspark.daemon pyspark.worker")
        process.wait(HANG_S)
    finally:
        end(process)
    assert process.returncode == 0, said(folder)
    check_published(folder)


@pytest.mark.spark
def test_a_jvm_that_dies_ends_the_run_with_the_next_step(folder: Path, run_topology: RunTopology) -> None:
    process = start_process(folder, How(master="local[1]"))
    try:
        wait_for_settle(folder, process, 0)
        assert kill_below(process, "java")
        process.wait(HANG_S)
    finally:
        end(process)
    assert process.returncode == 1
    assert f"resume with --state-dir {folder / 'state'}: nothing is lost" in said(folder)
    before = check_crashed(folder)
    check_ended(folder, resume(folder, run_topology), before)


def test_a_run_without_a_kill_ends_clean(folder: Path) -> None:
    process = start_process(folder, HOW)
    try:
        process.wait(HANG_S)
    finally:
        end(process)
    assert process.returncode == 0, said(folder)
    check_published(folder)


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(Kill(f"{point}:{at}", replace(HOW, source="leased")), id=point)
        for point, at in {**MATRIX, **TAKE_POINTS}.items()
    ],
    indirect=True,
)
def test_messages_that_executors_take_are_there_once_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    check_ended(killed, run_topology(topology(killed, EPOCH_LINES, "leased"), killed / "state", **OPTIONS), before)
    logs = killed / "state" / "epochs"
    epochs = numbered(logs, ".epoch")
    named = {one.file for epoch in epochs for one in read_epoch_header(logs, epoch).segments}
    last = epochs[-1]
    left = {path.name for path in (killed / "state" / "segments").iterdir()}
    assert named <= left
    assert all(int(name.split("-")[2]) <= last for name in left)
