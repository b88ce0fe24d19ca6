"""Versions: a component's state through runs that count or do not, merges, and changes of parallelism."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tupletree.errors import CheckpointError
from tupletree.routing.hashing import KEY_GROUPS, key_group, task_of_group
from tupletree.state.cells import ValueCell
from tupletree.state.contents import entries
from tupletree.state.segments import Segment
from tupletree.state.store import OpenSegments, StateCodec, TaskStore
from tupletree.state.versions import (
    GROWTH,
    MAX_FILES,
    StateFile,
    files_of,
    groups_of_task,
    newest_to_merge,
    version_after,
)

CODEC = StateCodec("count", [str], int)


def store_of(
    folder: Path, version: list[StateFile], segments: OpenSegments, groups: range = range(KEY_GROUPS)
) -> TaskStore:
    return TaskStore(folder, files_of(version, groups), groups, CODEC, now_s=0.0, ttl_s=None, segments=segments)


def commit(folder: Path, version: list[StateFile], segments: OpenSegments, **changes: int) -> list[StateFile]:
    store = store_of(folder, version, segments)
    written = store.write(f"{len(list(folder.iterdir()))}.state", store.encode(changes))
    return version_after(version, written.file, written.merged)


def test_every_key_group_belongs_to_one_task_at_any_parallelism() -> None:
    for parallelism in range(1, 40):
        owned = [group for task in range(parallelism) for group in groups_of_task(task, parallelism)]
        assert owned == list(range(KEY_GROUPS))


def test_a_segment_that_is_open_is_not_read_again(tmp_path: Path) -> None:
    segments = OpenSegments()
    version = commit(tmp_path, [], segments, a=1)
    store_of(tmp_path, version, segments)
    for file in tmp_path.iterdir():
        file.unlink()

    assert store_of(tmp_path, version, segments).load(["a"]) == {"a": 1}
    with pytest.raises(CheckpointError, match="missing"):
        store_of(tmp_path, version, OpenSegments())


def test_a_process_releases_what_no_version_names_any_more(tmp_path: Path) -> None:
    segments = OpenSegments()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    names = []
    for _ in range(5):
        for folder in (tmp_path / "a", tmp_path / "b"):
            version = commit(folder, [], segments, a=1)
            store_of(folder, version, segments)
            names.append(version[0].name)
    assert len(segments) == 10
    segments.keep_only(tmp_path / "a", names[:1])

    assert len(segments) == 6


@given(size=st.integers(1, 100_000), changes=st.lists(st.integers(1, 300), max_size=200))
def test_a_version_has_few_files_and_a_record_is_written_few_times(size: int, changes: list[int]) -> None:
    version: list[StateFile] = []
    written = 0
    for number, changed in enumerate([size, *changes]):
        taken = newest_to_merge(version, changed, 0.0)
        kept = version[: len(version) - taken]
        records = changed + sum(file.records for file in version[len(version) - taken :])
        written += records
        version = [*kept, StateFile(str(number), 0, KEY_GROUPS, records)]
        sizes = [file.records for file in version]
        assert all(older > GROWTH * newer for older, newer in itertools.pairwise(sizes))
        assert len(version) <= MAX_FILES
    # Each of at most log(total) levels rewrites what it holds once for every half of it that comes in.
    total = size + sum(changes)
    assert written <= size + sum(changes) * (1 + GROWTH) * (1 + total.bit_length())


def test_a_file_half_of_which_has_expired_is_taken_into_the_next_write() -> None:
    old = StateFile("old", 0, KEY_GROUPS, 1_000_000, half_expires_s=50.0)
    young = StateFile("young", 0, KEY_GROUPS, 1_000, half_expires_s=90.0)

    assert newest_to_merge([old, young], 1, 49.0) == 0
    assert newest_to_merge([old, young], 1, 50.0) == 2


def test_what_a_task_merged_goes_on_counting_for_the_groups_of_others() -> None:
    wide = StateFile("wide", 0, 32, 100)
    version = version_after([wide], StateFile("middle", 8, 16, 40), ["wide"])

    assert [(file.name, file.first_group, file.end_group) for file in version] == [
        ("wide", 0, 8),
        ("wide", 16, 32),
        ("middle", 8, 16),
    ]
    assert [file.name for file in files_of(version, range(8, 16))] == ["middle"]
    # Another task that owns both parts takes both of them.
    assert newest_to_merge(files_of(version, range(32)), 100, 0.0) == 3
    assert [file.name for file in version_after(version, StateFile("all", 0, 32, 90), ["wide", "middle"])] == ["all"]


values = st.dictionaries(st.text("abcdefgh", max_size=2), st.one_of(st.integers(-2, 2), st.none()), max_size=5)


class Versions(RuleBasedStateMachine):
    """Runs that count or do not, at any parallelism, on workers that come, go and restart, against a plain dict.

    A change of None clears its key. The model knows no files, versions, segments or groups.
    """

    @initialize(parallelism=st.integers(1, 5))
    def start(self, parallelism: int) -> None:
        self.folder = Path(mkdtemp())
        self.workers = [OpenSegments(), OpenSegments()]
        self.version: list[StateFile] = []
        self.model: dict[str, int] = {}
        self.parallelism = parallelism
        self.names = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def work(self, worker: int, changes: dict[str, int | None]) -> list[StateFile]:
        """One epoch as Spark's workers run it, all tasks from the same version; returns the version it would leave."""
        after = self.version
        for task in range(self.parallelism):
            groups = groups_of_task(task, self.parallelism)
            mine = {
                key: change
                for key, change in changes.items()
                if task_of_group(key_group(key), self.parallelism) == task
            }
            store = store_of(self.folder, self.version, self.workers[worker], groups)
            cell: ValueCell[int] = ValueCell({}, int, store.load)
            cell.prepare(list(mine), 0.0)
            for key, change in mine.items():
                cell.key = key
                cell.value = held = cell.changed[key] if key in cell.changed else cell.load(key)
                assert held == self.model.get(key, 0)
                if change is None:
                    cell.clear()
                else:
                    cell.value += change
                cell.changed[key] = cell.value
            changed = cell.delta()
            if changed:
                self.names += 1
                written = store.write(f"{self.names}.state", store.encode(changed))
                after = version_after(after, written.file, written.merged)
        return after

    @rule(worker=st.integers(0, 1), changes=values)
    def a_run_is_committed(self, worker: int, changes: dict[str, int | None]) -> None:
        self.version = self.work(worker, changes)
        for key, change in changes.items():
            after = 0 if change is None else self.model.get(key, 0) + change
            self.model[key] = after
            if after == 0:
                del self.model[key]

    @rule(worker=st.integers(0, 1), changes=values)
    def a_run_is_thrown_away(self, worker: int, changes: dict[str, int | None]) -> None:
        self.work(worker, changes)

    @rule(parallelism=st.integers(1, 5))
    def the_parallelism_changes(self, parallelism: int) -> None:
        self.parallelism = parallelism

    @rule(worker=st.integers(0, 1))
    def a_worker_is_replaced(self, worker: int) -> None:
        self.workers[worker] = OpenSegments()

    @rule()
    def what_no_version_names_is_swept(self) -> None:
        named = {file.name for file in self.version}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink()
        for worker in self.workers:
            worker.keep_only(self.folder, named)

    @invariant()
    def a_new_worker_would_read_the_same(self) -> None:
        segments = {file.name: Segment(self.folder / file.name) for file in self.version}
        found: dict[Any, Any] = {entry.key: entry.value for entry in entries(segments, self.version, now_s=0.0)}
        assert found == self.model
        store = store_of(self.folder, self.version, OpenSegments())
        assert store.load([*self.model, "never"]) == self.model


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
