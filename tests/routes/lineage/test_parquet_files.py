"""Lineage in a folder of many files: merged, they answer as before, whatever a crash or another process left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.routes.lineage.records import call
from tupletree.routes.lineage import Lineage, Tree, open_store
from tupletree.routes.lineage.parquet import ParquetStore
from tupletree.routes.lineage.parquet_files import LineageFiles

BATCHES = 9


def many(folder: Path) -> ParquetStore:
    """A chain m0 → m1 → …, a batch for each message."""
    store = open_store(f"parquet:{folder}", "ingest")
    assert isinstance(store, ParquetStore)
    store.open()
    for number in range(BATCHES):
        parents = [f"m{number - 1}"] if number else ()
        store.write([call(f"m{number}", started_s=1000.0 + number, parents=parents)])
    return store


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}-*.parquet"))


def answers(folder: Path) -> tuple[Tree, int]:
    with Lineage.open(f"parquet:{folder}") as lineage:
        return lineage.tree("m4"), sum(one.calls for one in lineage.stats())


def test_small_files_are_merged_while_the_run_goes_on_and_answers_stay(tmp_path: Path) -> None:
    store = many(tmp_path)
    before = answers(tmp_path)
    assert before[1] == BATCHES
    assert [len(before[0].messages), before[0].roots] == [BATCHES, ["m0"]]
    assert [len(files(tmp_path, kind)) for kind in ("calls", "edges", "parents")] == [BATCHES, BATCHES - 1, BATCHES - 1]
    while store.rest(0.0) == 0.0:
        pass
    assert [len(files(tmp_path, kind)) for kind in ("calls", "edges", "parents")] == [1, 1, 1]
    assert answers(tmp_path) == before
    store.write([call("m9", started_s=2000.0, parents=["m8"])])
    store.close()
    assert [len(files(tmp_path, kind)) for kind in ("calls", "edges", "parents")] == [1, 1, 1]
    assert answers(tmp_path)[1] == BATCHES + 1


def test_a_crash_between_a_merge_and_the_removal_of_what_it_is_made_of_changes_no_answer(tmp_path: Path) -> None:
    store = many(tmp_path / "store")
    before = answers(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    store.close()
    shutil.copytree(tmp_path / "copy", tmp_path / "store", dirs_exist_ok=True)
    assert len(files(tmp_path / "store", "calls")) == BATCHES + 1
    assert answers(tmp_path / "store") == before


def test_files_that_another_process_forgot_are_no_trouble_for_a_merge(tmp_path: Path) -> None:
    store = many(tmp_path)
    assert LineageFiles(tmp_path).forget(1004.0) > 0
    store.close()
    assert len(files(tmp_path, "calls")) == 1
    assert answers(tmp_path)[1] == BATCHES - 4


def test_a_merged_file_is_forgotten_when_all_of_it_is_old(tmp_path: Path) -> None:
    store = many(tmp_path)
    store.close()
    assert store.forget(1000.0 + BATCHES - 1) == 0
    assert store.forget(1000.0 + BATCHES) == 3
    assert files(tmp_path, "calls") == []


def test_a_question_that_meets_a_merge_is_asked_again(tmp_path: Path) -> None:
    store = many(tmp_path)
    with Lineage.open(f"parquet:{tmp_path}") as lineage:
        before = lineage.tree("m4")
        store.close()  # the files that its metadata cache knows are gone
        assert lineage.tree("m4") == before


def test_what_a_killed_writer_left_unfinished_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".calls-1-a.parquet.unfinished", tmp_path / ".calls-1-b.parquet.unfinished"
    old.touch()
    new.touch()
    os.utime(old, (1.0, 1.0))
    LineageFiles(tmp_path).open()
    assert (old.exists(), new.exists()) == (False, True)


def test_what_cannot_be_merged_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = many(tmp_path)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    store.close()
    assert len(files(tmp_path, "calls")) == BATCHES
    assert not [*tmp_path.glob(".*")]
