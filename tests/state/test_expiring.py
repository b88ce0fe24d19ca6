"""What expires: in memory as on the disk, a key is gone `ttl_s` after it last changed, and then takes no room."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tupletree.routing.hashing import KEY_GROUPS
from tupletree.state.cells import ExpiringCell, ValueCell, cell_of
from tupletree.state.contents import entries
from tupletree.state.segments import Segment
from tupletree.state.store import OpenSegments, StateCodec, TaskStore
from tupletree.state.versions import StateFile, version_after
from tupletree.topology.model import StateSpec
from tupletree.topology.states import MapState

TTL_S = 10.0


def put(cell: ValueCell[Any], key: str, time_s: float, value: Any) -> None:
    """Set a key as dispatch does; None only reads it."""
    cell.prepare([key], time_s)
    cell.key = key
    cell.value = held = cell.changed[key] if key in cell.changed else cell.load(key)
    if value is not None:
        cell.value = value
    if cell.value is not held:
        cell.changed[key] = cell.value


def get(cell: ValueCell[Any], key: str, time_s: float) -> Any:
    cell.prepare([key], time_s)
    return cell.changed[key] if key in cell.changed else cell.load(key)


def test_reading_a_value_and_setting_it_to_what_it_is_renew_nothing() -> None:
    cell = cell_of(StateSpec(int, int, ttl_s=TTL_S))
    put(cell, "a", 0.0, 1000)
    put(cell, "a", 5.0, None)
    put(cell, "a", 6.0, int("1000"))

    assert get(cell, "a", 9.9) == 1000
    assert get(cell, "a", 10.0) == 0


def test_a_value_that_changes_restarts_its_time_to_live() -> None:
    cell = cell_of(StateSpec(int, int, ttl_s=TTL_S))
    for number in range(1, 6):
        put(cell, "a", 9.0 * number, number)

    assert get(cell, "a", 54.9) == 5
    assert get(cell, "a", 55.0) == 0
    assert cell.changed == {}, "what expired takes no room"


def test_a_value_that_could_be_changed_in_place_counts_as_changed_when_it_is_read() -> None:
    cell = cell_of(StateSpec(list[int], list, ttl_s=TTL_S))
    put(cell, "a", 0.0, [1])
    put(cell, "a", 8.0, None)

    assert get(cell, "a", 17.9) == [1]
    assert get(cell, "a", 28.0) == []


def test_of_a_map_only_writes_count() -> None:
    cell = cell_of(StateSpec(dict[str, int], dict, "map", TTL_S))
    view: MapState[str, int] = MapState.over(cell)
    put(cell, "a", 0.0, None)
    view["x"] = 1
    put(cell, "a", 6.0, None)
    assert view["x"] == 1
    put(cell, "b", 7.0, None)
    view["y"] = 2

    assert get(cell, "a", 10.0) == {}
    assert get(cell, "b", 16.9) == {"y": 2}
    assert get(cell, "b", 17.0) == {}


class Expiring(RuleBasedStateMachine):
    """A local cell and Spark's store, told the same, against a dict of values and the moments of their last change."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(mkdtemp())
        self.codec = StateCodec("count", [str], int)
        self.version: list[StateFile] = []
        self.local = cell_of(StateSpec(int, int, ttl_s=TTL_S))
        self.model: dict[str, tuple[int, float]] = {}
        self.now_s = 0.0
        self.names = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def alive(self) -> dict[str, int]:
        return {key: value for key, (value, since) in self.model.items() if since + TTL_S > self.now_s and value}

    @rule(seconds=st.integers(0, 12))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(changes=st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 2)), max_size=4))
    def an_epoch_runs(self, changes: dict[str, int | None]) -> None:
        store = TaskStore(
            self.folder,
            self.version,
            range(KEY_GROUPS),
            self.codec,
            now_s=self.now_s,
            ttl_s=TTL_S,
            segments=OpenSegments(),
        )
        stored = cell_of(StateSpec(int, int, ttl_s=TTL_S), store.load)
        alive = self.alive()
        for key, value in changes.items():
            assert get(stored, key, self.now_s) == get(self.local, key, self.now_s) == alive.get(key, 0)
            put(stored, key, self.now_s, value)
            put(self.local, key, self.now_s, value)
            if value is not None and value != alive.get(key, 0):
                self.model[key] = (value, self.now_s)
        changed = stored.delta()
        if changed:
            self.names += 1
            written = store.write(f"{self.names}.state", store.encode(changed))
            self.version = version_after(self.version, written.file, written.merged)

    @invariant()
    def nothing_else_is_there(self) -> None:
        segments = {file.name: Segment(self.folder / file.name) for file in self.version}
        found = {entry.key: entry.value for entry in entries(segments, self.version, now_s=self.now_s)}
        assert found == self.alive()
        for key in "abcdef":
            assert get(self.local, key, self.now_s) == self.alive().get(key, 0)


TestExpiring = Expiring.TestCase
TestExpiring.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_what_expired_is_compacted_away(tmp_path: Path) -> None:
    codec = StateCodec("count", [int], int)
    version: list[StateFile] = []
    for epoch in range(100):
        store = TaskStore(
            tmp_path,
            version,
            range(KEY_GROUPS),
            codec,
            now_s=float(epoch),
            ttl_s=TTL_S,
            segments=OpenSegments(),
        )
        written = store.write(f"{epoch}.state", store.encode({epoch * 100 + number: 1 for number in range(100)}))
        version = version_after(version, written.file, written.merged)

        assert sum(file.records for file in version) <= 3 * 100 * TTL_S


@pytest.mark.parametrize("ttl_s", [None, TTL_S])
def test_a_cell_expires_only_if_it_is_asked_to(ttl_s: float | None) -> None:
    assert isinstance(cell_of(StateSpec(int, int, ttl_s=ttl_s)), ExpiringCell) is (ttl_s is not None)
