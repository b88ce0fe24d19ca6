"""Versions in a worker's memory: never trusted, always equal to what the files say."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tupletree.errors import CheckpointError
from tupletree.state.cells import CLEARED, ValueCell
from tupletree.state.files import StateCodec, StateFile, VersionCache, fold, needs_base

CODEC = StateCodec("count", [str], int)


def write(folder: Path, name: str, changed: dict[Any, Any], *, is_base: bool = False) -> StateFile:
    return CODEC.write(folder / name, 0, changed, is_base=is_base)


def without_files(folder: Path) -> None:
    """From here on nothing can be read."""
    for file in folder.iterdir():
        file.unlink()


def test_a_version_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    cache = VersionCache()
    files = [write(tmp_path, "1.base", {"a": 1}, is_base=True)]
    cache.load(tmp_path, 0, files, CODEC)
    without_files(tmp_path)

    assert cache.load(tmp_path, 0, files, CODEC) == {"a": 1}


def test_a_candidate_that_was_committed_is_caught_up_from_memory(tmp_path: Path) -> None:
    cache = VersionCache()
    base = write(tmp_path, "1.base", {"a": 1, "b": 1}, is_base=True)
    cache.load(tmp_path, 0, [base], CODEC)
    delta = write(tmp_path, "2.delta", {"a": 2, "b": CLEARED})
    cache.offer(tmp_path, 0, delta, {"a": 2, "b": CLEARED})
    without_files(tmp_path)

    assert cache.load(tmp_path, 0, [base, delta], CODEC) == {"a": 2}


def test_a_base_candidate_that_was_committed_is_caught_up_from_memory(tmp_path: Path) -> None:
    cache = VersionCache()
    old = [write(tmp_path, "1.base", {"a": 1}, is_base=True), write(tmp_path, "2.delta", {"b": 2})]
    cache.load(tmp_path, 0, old, CODEC)
    base = write(tmp_path, "3.base", {"a": 1, "b": 2, "c": 3}, is_base=True)
    cache.offer(tmp_path, 0, base, {"c": 3})
    without_files(tmp_path)

    assert cache.load(tmp_path, 0, [base], CODEC) == {"a": 1, "b": 2, "c": 3}


def test_a_candidate_that_lost_is_forgotten_and_the_winner_is_read(tmp_path: Path) -> None:
    cache = VersionCache()
    base = write(tmp_path, "1.base", {"a": 1}, is_base=True)
    cache.load(tmp_path, 0, [base], CODEC)
    mine = write(tmp_path, "2-mine.delta", {"a": 2})
    cache.offer(tmp_path, 0, mine, {"a": 2})
    theirs = write(tmp_path, "2-theirs.delta", {"a": 3})

    assert cache.load(tmp_path, 0, [base, theirs], CODEC) == {"a": 3}
    # Nor does it come back by a later version.
    last = write(tmp_path, "3.delta", {"b": 4})
    assert cache.load(tmp_path, 0, [base, theirs, last], CODEC) == {"a": 3, "b": 4}


def test_a_run_that_is_repeated_starts_again_from_the_committed_version(tmp_path: Path) -> None:
    cache = VersionCache()
    base = write(tmp_path, "1.base", {"a": 1}, is_base=True)
    cache.load(tmp_path, 0, [base], CODEC)
    cache.offer(tmp_path, 0, write(tmp_path, "2-first.delta", {"a": 2}), {"a": 2})

    assert cache.load(tmp_path, 0, [base], CODEC) == {"a": 1}


def test_versions_that_other_workers_wrote_are_caught_up_from_the_files(tmp_path: Path) -> None:
    cache = VersionCache()
    files = [write(tmp_path, "1.base", {"a": 1}, is_base=True)]
    cache.load(tmp_path, 0, files, CODEC)
    files += [write(tmp_path, "2.delta", {"b": 2}), write(tmp_path, "3.delta", {"a": CLEARED})]
    (tmp_path / "1.base").unlink()  # read already

    assert cache.load(tmp_path, 0, files, CODEC) == {"b": 2}


def test_an_own_candidate_under_the_work_of_others_is_caught_up_from_both(tmp_path: Path) -> None:
    cache = VersionCache()
    base = write(tmp_path, "1.base", {"a": 1}, is_base=True)
    cache.load(tmp_path, 0, [base], CODEC)
    mine = write(tmp_path, "2.delta", {"b": 2})
    cache.offer(tmp_path, 0, mine, {"b": 2})
    theirs = write(tmp_path, "3.delta", {"c": 3})

    assert cache.load(tmp_path, 0, [base, mine, theirs], CODEC) == {"a": 1, "b": 2, "c": 3}


def test_an_older_version_is_read_anew(tmp_path: Path) -> None:
    cache = VersionCache()
    files = [write(tmp_path, "1.base", {"a": 1}, is_base=True), write(tmp_path, "2.delta", {"a": 2})]
    cache.load(tmp_path, 0, files, CODEC)

    assert cache.load(tmp_path, 0, files[:1], CODEC) == {"a": 1}


def test_tasks_and_folders_are_told_apart(tmp_path: Path) -> None:
    cache = VersionCache()
    (tmp_path / "other").mkdir()
    here = [write(tmp_path, "1.base", {"a": 1}, is_base=True)]
    there = [write(tmp_path / "other", "1.base", {"a": 2}, is_base=True)]

    assert cache.load(tmp_path, 0, here, CODEC) == {"a": 1}
    assert cache.load(tmp_path / "other", 0, there, CODEC) == {"a": 2}
    assert cache.load(tmp_path, 1, [], CODEC) == {}
    assert cache.load(tmp_path, 0, here, CODEC) == {"a": 1}


def test_a_version_that_could_not_be_read_is_read_in_full_once_it_can(tmp_path: Path) -> None:
    cache = VersionCache()
    files = [write(tmp_path, "1.base", {"a": 1}, is_base=True), write(tmp_path, "2.delta", {"a": CLEARED, "b": 2})]
    (tmp_path / "2.delta").rename(tmp_path / "away")
    with pytest.raises(CheckpointError):
        cache.load(tmp_path, 0, files, CODEC)
    (tmp_path / "away").rename(tmp_path / "2.delta")

    assert cache.load(tmp_path, 0, files, CODEC) == {"b": 2}
    assert cache.load(tmp_path, 0, files[:1], CODEC) == {"a": 1}


def test_a_version_that_could_not_be_caught_up_leaves_no_half_of_it_behind(tmp_path: Path) -> None:
    cache = VersionCache()
    files = [write(tmp_path, "1.base", {"a": 1}, is_base=True)]
    cache.load(tmp_path, 0, files, CODEC)
    files += [write(tmp_path, "2.delta", {"a": 2}), StateFile("gone.delta", 1, False)]
    with pytest.raises(CheckpointError):
        cache.load(tmp_path, 0, files, CODEC)

    assert cache.load(tmp_path, 0, files[:1], CODEC) == {"a": 1}


values = st.dictionaries(st.sampled_from("abcdefgh"), st.one_of(st.integers(-2, 2), st.none()), max_size=5)


class Versions(RuleBasedStateMachine):
    """Runs that count or do not, on workers that come, go and forget, against a plain dict.

    A change of None clears its key. The model knows no files, versions, caches or bases.
    """

    @initialize()
    def start(self) -> None:
        self.folder = Path(mkdtemp())
        self.workers = [VersionCache(), VersionCache()]
        self.files: list[StateFile] = []
        self.model: dict[str, int] = {}
        self.names = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def work(self, worker: int, changes: dict[str, int | None]) -> StateFile | None:
        """One run as a Spark worker makes it; returns its candidate."""
        cache = self.workers[worker]
        committed = cache.load(self.folder, 0, self.files, CODEC)
        cell: ValueCell[int] = ValueCell(committed, int)
        for key, change in changes.items():
            cell.key = key
            cell.value = held = cell.changed[key] if key in cell.changed else cell.load(key)
            assert held == self.model.get(key, 0)
            if change is None:
                cell.clear()
            else:
                cell.value += change
            cell.changed[key] = cell.value
        changed = CODEC.as_stored(cell.delta())
        if not changed:
            return None
        is_base = needs_base(self.files, len(changed))
        whole = changed
        if is_base:
            whole = dict(committed)
            fold(whole, changed)
        self.names += 1
        file = write(self.folder, f"{self.names}.{'base' if is_base else 'delta'}", whole, is_base=is_base)
        cache.offer(self.folder, 0, file, changed)
        return file

    @rule(worker=st.integers(0, 1), changes=values)
    def a_run_is_committed(self, worker: int, changes: dict[str, int | None]) -> None:
        file = self.work(worker, changes)
        if file is not None:
            self.files = [file] if file.is_base else [*self.files, file]
        for key, change in changes.items():
            after = 0 if change is None else self.model.get(key, 0) + change
            self.model[key] = after
            if after == 0:
                del self.model[key]

    @rule(worker=st.integers(0, 1), changes=values)
    def a_run_is_thrown_away(self, worker: int, changes: dict[str, int | None]) -> None:
        self.work(worker, changes)

    @rule(worker=st.integers(0, 1))
    def a_worker_is_replaced(self, worker: int) -> None:
        self.workers[worker] = VersionCache()

    @rule()
    def what_no_version_names_is_swept(self) -> None:
        named = {file.name for file in self.files}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()

    @rule(worker=st.integers(0, 1))
    def a_worker_reads(self, worker: int) -> None:
        assert self.workers[worker].load(self.folder, 0, self.files, CODEC) == self.model

    @invariant()
    def a_new_worker_would_read_the_same(self) -> None:
        assert VersionCache().load(self.folder, 0, self.files, CODEC) == self.model


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
