"""Dead letters are replayed as new messages: of a running topology and of a stopped one, and never twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.counting import SINKS, expected_rows, heard, rows_of, topology, write_text
from tests.spark.crashing import EPOCH_LINES, OPTIONS, check_clean, check_crashed, check_ended, die_at, texts_of
from tests.spark.tapped import HANG_S, wait_until
from tupletree.errors import ConfigError
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Summary
from tupletree.tracking.message_ids import id_text

LINES = 22


@pytest.fixture(scope="module")
def ended_with_dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose poisoned lines died."""
    from tests.spark.counting import QUICK, begin
    from tupletree.config import resolve_options

    folder = tmp_path_factory.mktemp("dead")
    write_text(folder, LINES)
    options = resolve_options(code={**QUICK, **OPTIONS})
    handle = begin(topology(folder, EPOCH_LINES), options, folder / "state", "in-process[2]")
    check_ended(folder, handle.wait(HANG_S))
    return folder


def continue_run(folder: Path, run_topology: RunTopology) -> Summary:
    return run_topology(topology(folder, EPOCH_LINES), folder / "state", **OPTIONS)


def check_all_acked(folder: Path, summary: Summary) -> None:
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (LINES, LINES, 0, 0)
    for sink in SINKS:
        assert rows_of(folder, sink) == expected_rows(texts_of(folder))
    assert deadletters.read(folder / "state") == []
    assert {number for what, number in heard(folder) if what == "acked"} == set(range(1, LINES + 1))
    check_clean(folder)


@pytest.fixture
def folder(ended_with_dead: Path, start_topology: StartTopology) -> Path:
    """The run whose poisoned lines died; the topology knows its folder by name, so it is restored, not copied."""
    kept = ended_with_dead.with_name("kept")
    if not kept.exists():
        shutil.copytree(ended_with_dead, kept)
    shutil.rmtree(ended_with_dead)
    shutil.copytree(kept, ended_with_dead)
    return ended_with_dead


def test_letters_of_a_stopped_run_are_replayed_at_its_next_start(folder: Path, run_topology: RunTopology) -> None:
    (folder / "mended").touch()
    deadletters.request_replay(folder / "state", None)
    check_all_acked(folder, continue_run(folder, run_topology))


def test_one_letter_is_replayed_and_the_others_stay(folder: Path, run_topology: RunTopology) -> None:
    first, second = deadletters.read(folder / "state")
    (folder / "mended").touch()
    deadletters.request_replay(folder / "state", [f"source/{id_text(second.message_id)}"])
    summary = continue_run(folder, run_topology)
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (LINES, LINES - 1, 1, 0)
    assert deadletters.read(folder / "state") == [first]


def test_a_replayed_letter_that_fails_again_is_dead_again(folder: Path, run_topology: RunTopology) -> None:
    before = deadletters.read(folder / "state")
    deadletters.request_replay(folder / "state", None)
    summary = continue_run(folder, run_topology)
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (LINES, LINES - 2, 2, 0)
    after = deadletters.read(folder / "state")
    # They come back at once, so which of them dies first is open.
    assert sorted(letter.message_id for letter in after) == sorted(letter.message_id for letter in before)
    assert all(letter.died_s > max(one.died_s for one in before) for letter in after)


def test_a_request_that_comes_again_changes_nothing(folder: Path, run_topology: RunTopology) -> None:
    (folder / "mended").touch()
    request = deadletters.request_replay(folder / "state", None)
    asked = folder / "state" / "inbox" / f"{request}.json"
    content = asked.read_bytes()
    check_all_acked(folder, continue_run(folder, run_topology))
    asked.write_bytes(content)
    check_all_acked(folder, continue_run(folder, run_topology))
    assert not asked.exists()


def test_two_requests_for_one_letter_replay_it_once(folder: Path, run_topology: RunTopology) -> None:
    (folder / "mended").touch()
    deadletters.request_replay(folder / "state", None)
    deadletters.request_replay(folder / "state", None)
    check_all_acked(folder, continue_run(folder, run_topology))


def test_what_is_replayed_already_cannot_be_asked_for(folder: Path, run_topology: RunTopology) -> None:
    (folder / "mended").touch()
    deadletters.request_replay(folder / "state", None)
    continue_run(folder, run_topology)
    with pytest.raises(ConfigError, match="no dead letters"):
        deadletters.request_replay(folder / "state", None)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("epoch.after_log", marks=pytest.mark.nightly),
        "settle.before_log",
        pytest.param("settle.after_log", marks=pytest.mark.nightly),
    ],
)
def test_a_kill_between_acceptance_and_settle_replays_a_letter_once(
    point: str, folder: Path, run_topology: RunTopology
) -> None:
    (folder / "mended").touch()
    deadletters.request_replay(folder / "state", None)
    die_at(folder, point)
    check_crashed(folder)
    check_all_acked(folder, continue_run(folder, run_topology))


def test_letters_are_replayed_while_the_topology_runs(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    write_text(tmp_path, LINES)
    texts = texts_of(tmp_path)
    handle = start_topology(topology(tmp_path, EPOCH_LINES, "endless"), tmp_path / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.open == 0 and len(deadletters.read(tmp_path / "state")) == 2)
    (tmp_path / "mended").touch()
    deadletters.request_replay(tmp_path / "state", None)
    wait_until(handle, lambda progress: progress.acked == LINES)
    wait_until(handle, lambda _: deadletters.read(tmp_path / "state") == [])
    handle.stop()
    summary = handle.wait(HANG_S)
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (len(texts), len(texts), 0, 0)
    assert rows_of(tmp_path, "lines") == expected_rows(texts)
