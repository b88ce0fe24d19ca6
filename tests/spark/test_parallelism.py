"""A restart with another number of tasks: keyed state and what was logged go to the new tasks; nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.counting import count, expected_rows, heard, rows_of, split, topology, write_text
from tests.spark.crashing import LINES, OPTIONS, How, die_at
from tests.spark.tapped import TANKS, Tank, Tap, wait_until
from tupletree import TaskState, Topology, bolt
from tupletree.errors import CheckpointError
from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.format.entries import numbered, read_epoch
from tupletree.sinks import jsonl
from tupletree.sources.text import Line

TEXTS = [f"a b{number % 3} c{number}" for number in range(12)]


def unsettled(folder: Path) -> list[int]:
    state = folder / "state"
    return sorted(set(numbered(state / "epochs", ".epoch")) - set(numbered(state / "settles", ".settle")))


def test_counts_are_right_to_the_last_word_with_three_tasks_then_one_then_five(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    """Killed twice, each time with epochs that are logged for the old tasks and not settled."""
    write_text(tmp_path, LINES)
    (tmp_path / "mended").touch()
    die_at(tmp_path, "settle.before_log:2", How(tasks=(2, 3)))
    logged = unsettled(tmp_path)
    assert logged
    die_at(tmp_path, "settle.before_log", How(tasks=(4, 1)))
    header, _ = read_epoch(tmp_path / "state" / "epochs", logged[0])
    assert [count for _, count in (header.tasks["split"], header.tasks["count"])] == [4, 1]
    assert header.generation == 2
    summary = run_topology(topology(tmp_path, split_tasks=1, count_tasks=5), tmp_path / "state", **OPTIONS)

    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (LINES, LINES, 0, 0)
    texts = (tmp_path / "text").read_text().splitlines()
    for sink in ("lines", "columns"):
        assert rows_of(tmp_path, sink) == expected_rows(texts)
    assert {line for what, line in heard(tmp_path) if what == "acked"} == set(range(1, LINES + 1))
    _, (state,) = stored_state(tmp_path / "state")
    totals = {
        word: max(number for one, number in expected_rows(texts) if one == word) for word, _ in expected_rows(texts)
    }
    assert {entry.key: entry.value for entry in state.entries()} == totals


@bolt(state=int)
def seen(line: Line, number: TaskState[int]) -> None:
    number.value += 1


def with_task_state(name: str, out: Path, tasks: int) -> Topology:
    t = Topology("task-state")
    tap = t.spout("tap", Tap(name))
    words = t.bolt("split", split).shuffle(tap)
    t.sink("out", jsonl(out)).shuffle(t.bolt("count", count).fields(words, "word"))
    t.bolt("seen", seen, parallelism=tasks).shuffle(tap)
    return t


def test_state_per_task_lets_its_parallelism_change_only_while_nothing_is_open(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    tank = TANKS["task-state"] = Tank([*TEXTS, "flaky"])
    tank.open_all()
    state = tmp_path / "state"
    late = {"service_backoff_initial_ms": 8_000.0, "service_backoff_max_ms": 8_000.0, "backoff_jitter": 0.0}
    handle = start_topology(with_task_state("task-state", tmp_path / "out", 3), state, **late)
    wait_until(handle, lambda progress: progress.acked == len(TEXTS))
    handle.stop(0.0)

    with pytest.raises(CheckpointError, match="expected: no open message") as raised:
        run_topology(with_task_state("task-state", tmp_path / "out", 2), state, **late)
    assert "seen: parallelism changed from 3 to 2" in str(raised.value)
    assert "a drain ends them" in str(raised.value)

    assert run_topology(with_task_state("task-state", tmp_path / "out", 3), state, **late).open == 0
    before = {entry.key: entry.value for one in stored_state(state)[1] if one.name == "seen" for entry in one.entries()}
    assert sum(before.values()) == len(tank.texts)
    tank.texts += ["late"] * 4
    tank.open_all()
    assert run_topology(with_task_state("task-state", tmp_path / "out", 2), state, **late).open == 0
    after = {entry.key: entry.value for one in stored_state(state)[1] if one.name == "seen" for entry in one.entries()}
    assert sum(after.values()) == len(tank.texts)
    assert after[2] == before[2], "it stays with its index until there is such a task again"


def test_a_spout_keeps_its_parallelism_for_its_positions_belong_to_its_tasks(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    TANKS["spouts"] = Tank(["a"], allowed=1)

    def build(tasks: int) -> Topology:
        t = Topology("spouts")
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("tap", Tap("spouts"), parallelism=tasks))
        return t

    run_topology(build(1), tmp_path / "state")
    with pytest.raises(CheckpointError, match="tap: parallelism changed from 1 to 2"):
        run_topology(build(2), tmp_path / "state")
