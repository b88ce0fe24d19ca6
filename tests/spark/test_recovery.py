"""A start on a state directory that is damaged, changed or in use is refused; on a good one it continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.counting import count, split
from tests.spark.tapped import HANG_S, TANKS, Tank, Tap, rows_of, tapped, wait_until
from tupletree import Topology
from tupletree.errors import CheckpointError
from tupletree.runtimes.spark.format.entries import (
    Counters,
    EpochHeader,
    SettleEntry,
    epoch_path,
    numbered,
    read_settle,
    settle_path,
    write_epoch,
    write_settle,
)
from tupletree.sinks import jsonl
from tupletree.sinks.folders import visible_files
from tupletree.tracking.pending_log import PendingChanges

TEXTS = [f"a b{number % 3} c{number % 5}" for number in range(20)]
OPTIONS = {"epoch_max_messages": 5}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state (`state`) and output (`out`) of a run that was stopped after half its input."""
    from tests.spark.counting import QUICK, begin
    from tupletree.config import resolve_options

    folder = tmp_path_factory.mktemp("stopped")
    TANKS["stopped"] = Tank(TEXTS, allowed=10)
    options = resolve_options(code={**QUICK, **OPTIONS})
    handle = begin(tapped("stopped", folder / "out"), options, folder / "state", "in-process[2]")
    wait_until(handle, lambda progress: progress.acked == 10)
    handle.stop()
    handle.wait(HANG_S)
    TANKS["stopped"].open_all()
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to spoil or to continue."""
    shutil.copytree(stopped, tmp_path / "copy")
    return tmp_path / "copy"


def newest_settle(folder: Path) -> Path:
    settles = folder / "state" / "settles"
    return settle_path(settles, numbered(settles, ".settle")[-1])


def newest_epoch(folder: Path) -> Path:
    epochs = folder / "state" / "epochs"
    return epoch_path(epochs, numbered(epochs, ".epoch")[-1])


def state_file(folder: Path) -> Path:
    """A file of the committed version of the keyed state."""
    settles = folder / "state" / "settles"
    state = read_settle(settles, numbered(settles, ".settle")[-1]).state["count"]
    return folder / "state" / "state" / "count" / state[0].name


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x20
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [truncate, empty, flip, remove])
@pytest.mark.parametrize("which", [newest_epoch, state_file])
def test_a_damaged_or_missing_file_is_named(
    which: Callable[[Path], Path], spoil: Callable[[Path], None], folder: Path, run_topology: RunTopology
) -> None:
    path = which(folder)
    spoil(path)
    visible = visible_files(folder / "out")
    with pytest.raises(CheckpointError) as raised:
        run_topology(tapped("stopped", folder / "out"), folder / "state", **OPTIONS)
    assert str(path) in str(raised.value)
    assert "fresh --state-dir" in str(raised.value)
    assert visible_files(folder / "out") == visible


@pytest.mark.parametrize("spoil", [truncate, empty, flip])
def test_a_damaged_settle_entry_is_named(
    spoil: Callable[[Path], None], folder: Path, run_topology: RunTopology
) -> None:
    path = newest_settle(folder)
    spoil(path)
    with pytest.raises(CheckpointError) as raised:
        run_topology(tapped("stopped", folder / "out"), folder / "state", **OPTIONS)
    assert str(path) in str(raised.value)


def test_a_missing_settle_entry_before_the_newest_is_named(folder: Path, run_topology: RunTopology) -> None:
    settles = folder / "state" / "settles"
    gone = numbered(settles, ".settle")[-2]
    settle_path(settles, gone).unlink()
    with pytest.raises(CheckpointError, match=f"settle entry {gone}"):
        run_topology(tapped("stopped", folder / "out"), folder / "state", **OPTIONS)


def test_a_missing_log_of_an_epoch_that_is_to_run_is_named(folder: Path, run_topology: RunTopology) -> None:
    settles, epochs = folder / "state" / "settles", folder / "state" / "epochs"
    *_, first, second = numbered(settles, ".settle")
    settle_path(settles, first).unlink()
    settle_path(settles, second).unlink()
    epoch_path(epochs, first).unlink()
    shutil.rmtree(folder / "out")  # or the entries were missed by what was published
    with pytest.raises(CheckpointError, match=f"epoch log {first}"):
        run_topology(tapped("stopped", folder / "out"), folder / "state", **OPTIONS)


def test_a_changed_topology_is_refused_with_every_difference(folder: Path, run_topology: RunTopology) -> None:
    t = Topology("tapped")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("tap", Tap("stopped"), parallelism=3))
    t.sink("results", jsonl(folder / "out")).shuffle(t.bolt("count", count, parallelism=2).fields(words, "word"))
    with pytest.raises(CheckpointError) as raised:
        run_topology(t, folder / "state", **OPTIONS)
    said = str(raised.value)
    assert "tap: parallelism changed from 1 to 3" in said
    assert "component 'out' was removed" in said
    assert "--rename out=results or --drop out" in said


def test_a_good_one_continues_exactly(folder: Path, run_topology: RunTopology) -> None:
    summary = run_topology(tapped("stopped", folder / "out"), folder / "state", **OPTIONS)
    assert (summary.emitted, summary.acked, summary.open) == (20, 20, 0)
    assert rows_of(folder / "out") == TANKS["stopped"].rows()


def test_the_second_run_on_a_state_directory_stops_and_the_first_goes_on(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    tank = TANKS["first"] = Tank(TEXTS, allowed=5)
    first = start_topology(tapped("first", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    wait_until(first, lambda progress: progress.acked == 5)
    with pytest.raises(CheckpointError, match="another run is using this state directory") as raised:
        run_topology(tapped("first", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    assert "process" in str(raised.value)
    tank.open_all()
    assert first.wait(HANG_S).acked == 20
    assert rows_of(tmp_path / "out") == tank.rows()


def test_a_start_that_finds_an_epoch_settled_by_another_publishes_nothing_of_it(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    tank = TANKS["settled"] = Tank(TEXTS, allowed=5)
    handle = start_topology(tapped("settled", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    progress = wait_until(handle, lambda progress: progress.acked == 5)
    taken = SettleEntry(
        epoch=progress.epoch + 1, generation=2, run=0, time_s=0.0, counters=Counters(), pending=PendingChanges()
    )
    assert write_settle(tmp_path / "state" / "settles", taken)
    tank.open_all()
    with pytest.raises(CheckpointError, match="another start of this run has taken over; this one stops"):
        handle.wait(HANG_S)
    assert rows_of(tmp_path / "out") == tank.rows(until=5)
    assert set(tank.acked) == {1, 2, 3, 4, 5}


def test_a_start_that_finds_an_epoch_logged_by_another_runs_nothing_of_it(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    tank = TANKS["logged"] = Tank(TEXTS, allowed=5)
    handle = start_topology(tapped("logged", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    progress = wait_until(handle, lambda progress: progress.acked == 5)
    # The loop may look for more input before it looks for the log: an epoch without messages is a log like any other.
    taken = EpochHeader(epoch=progress.epoch + 2, generation=2, time_s=0.0)
    assert write_epoch(tmp_path / "state" / "epochs", taken, [])
    tank.open_all()
    with pytest.raises(CheckpointError, match="another start of this run has taken over; this one stops"):
        handle.wait(HANG_S)
    assert not rows_of(tmp_path / "out") - tank.rows(until=10)


@pytest.mark.parametrize("name", ["with blanks in it", "50% of #1", "Größe-大小-%20", "a[b]{c}*?"])
def test_any_path_will_do(name: str, tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology) -> None:
    folder = tmp_path / name
    tank = TANKS["path"] = Tank(TEXTS[:6], allowed=3)
    handle = start_topology(tapped("path", folder / "out"), folder / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.acked == 3)
    handle.stop()
    handle.wait(HANG_S)
    tank.open_all()
    assert run_topology(tapped("path", folder / "out"), folder / "state", **OPTIONS).acked == 6
    assert rows_of(folder / "out") == tank.rows()
