"""`tupletree state`: what the bolts of a run remember, shown and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.format.entries import Counters, SettleEntry, write_settle
from tupletree.state.store import OpenSegments, StateCodec, TaskStore
from tupletree.state.versions import StateFile, groups_of_task, version_after
from tupletree.tracking.pending_log import PendingChanges

Run = Callable[..., Any]
WriteTarget = Callable[[str], Path]


def commit(run_dir: Path, epoch: int, before: dict[str, list[StateFile]], **changes: dict[Any, Any]) -> dict[str, Any]:
    """An epoch that changed these keys of these bolts, as the Spark runtime leaves it."""
    state = dict(before)
    for component, changed in changes.items():
        folder = run_dir / "state" / component
        folder.mkdir(parents=True, exist_ok=True)
        key, value = next(iter(changed.items()))
        codec = StateCodec(component, [type(key)], type(value))
        files = state.get(component, [])
        store = TaskStore(folder, files, groups_of_task(0, 1), codec, now_s=0.0, ttl_s=None, segments=OpenSegments())
        written = store.write(f"{epoch}.state", store.encode(changed))
        state[component] = version_after(files, written.file, written.merged)
    entry = SettleEntry(
        epoch=epoch, generation=1, run=0, time_s=1.0, state=state, counters=Counters(), pending=PendingChanges()
    )
    (run_dir / "settles").mkdir(exist_ok=True)
    assert write_settle(run_dir / "settles", entry)
    return state


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The latest run below the current folder: counts of words, and the newest text of each number."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / ".tupletree" / "words" / "1"
    run.mkdir(parents=True)
    (run / "tupletree.json").write_text("{}")
    state = commit(run, 0, {}, count={f"word-{number}": number for number in range(30)})
    commit(run, 1, state, count={"word-7": 700}, latest={1: "one"})
    return run


@pytest.mark.usefixtures("run_dir")
def test_a_table_for_each_bolt_shows_the_newest_version(run: Run) -> None:
    said = run("state", "--limit", 0)

    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("count: 30 keys, ")
    assert lines[0].endswith(" in 2 files, epoch 1")
    assert ["word-7", "700"] in [line.split() for line in lines]
    assert ["1", "one"] in [line.split() for line in lines]


@pytest.mark.usefixtures("run_dir")
def test_a_long_table_is_cut_and_says_so(run: Run) -> None:
    said = run("state", "--component", "count", "--limit", 5)

    assert len(said.out.splitlines()) == 8
    assert "... and 25 more" in said.out


def test_the_place_may_be_a_state_directory_or_a_target(
    run: Run, run_dir: Path, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = write_target("from tupletree import Topology\ntopology = Topology('words')\n")
    by_folder, by_target = run("state", run_dir), run("state", target)
    monkeypatch.chdir(tmp_path.parent)
    nowhere = run("state", target)

    assert by_folder.code == by_target.code == 0
    assert by_folder.out == by_target.out
    assert nowhere.code == 2
    assert "there is no run here" in nowhere.err


@pytest.mark.usefixtures("run_dir")
def test_an_export_holds_every_key_once(run: Run, tmp_path: Path) -> None:
    said = (
        run("state", "--export", tmp_path / "all.jsonl"),
        run("state", "--component", "count", "--export", tmp_path / "count.parquet"),
    )

    assert [one.code for one in said] == [0, 0]
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(rows) == 31
    assert {"component": "latest", "key": 1, "value": "one", "expires_s": None} in rows
    table = pq.read_table(tmp_path / "count.parquet").to_pylist()
    assert {row["key"]: row["value"] for row in table} == {
        **{f"word-{number}": number for number in range(30)},
        "word-7": 700,
    }


@pytest.mark.usefixtures("run_dir")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--component", "cuont"], "did you mean 'count'?"),
        (["--export", "state.csv"], ".parquet or .jsonl"),
        (["--state-dir", "nowhere"], "next: name the one that `tupletree run` showed"),
    ],
)
def test_an_export_that_is_impossible_is_an_error(run: Run, arguments: list[str], words: str) -> None:
    said = run("state", *arguments)

    assert said.code == 2
    assert words in said.err


@pytest.mark.usefixtures("run_dir")
def test_an_export_never_replaces_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("mine")
    said = run("state", "--export", tmp_path / "mine.jsonl")

    assert said.code == 2
    assert (tmp_path / "mine.jsonl").read_text() == "mine"


def test_a_version_that_was_opened_stays_readable_when_it_is_removed(run_dir: Path) -> None:
    epoch, components = stored_state(run_dir)
    for path in (run_dir / "state").rglob("*.state"):
        path.unlink()

    assert epoch == 1
    assert sum(1 for one in components for _ in one.entries()) == 31


def test_a_missing_segment_is_named(run: Run, run_dir: Path) -> None:
    (run_dir / "state" / "latest" / "1.state").unlink()
    said = run("state")

    assert said.code == 1
    assert "1.state" in said.err
    assert "restore it from a backup" in said.err


def test_a_run_without_state_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tupletree.json").write_text("{}")
    (tmp_path / "settles").mkdir()
    said = run("state", tmp_path)

    assert said.code == 0
    assert "no bolt" in said.out
