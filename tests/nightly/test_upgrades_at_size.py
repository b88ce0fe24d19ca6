"""A million keys of state through four upgrades on Spark: a new sink, a new branch, a new field, another parallelism.

TUPLETREE_KEYS says how many keys (default 1,000,000).
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.runtimes import run
from tupletree.runtimes.run import stored_state
from tupletree.sinks import jsonl, read_rows
from tupletree.topology.changes.upgrades import Words
from tupletree.topology.model import TargetRef

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

HANG_S = 1_800.0
MORE = 1_000
"""Messages of each start after the first: keys that are there, so that each is counted once more."""

SOURCE = """
import msgspec
from tupletree import KeyedState, bolt
from tupletree.errors import EndOfInput
from tupletree.topology.splits import Split, SplitSpout

class Key(msgspec.Struct, frozen=True, gc=False):
    number: int

class Count(msgspec.Struct, frozen=True, gc=False):
    number: int
    count: int

class Total(msgspec.Struct, gc=False):
    count: int = 0

class Keys(SplitSpout[Key]):
    message_type = Key

    def __init__(self, counts):
        self.counts, self.at, self.given = counts, 0, 0

    def plan(self, rows, size_bytes):
        while self.at < len(self.counts) and self.given == self.counts[self.at]:
            self.at, self.given = self.at + 1, 0
        if self.at == len(self.counts):
            raise EndOfInput
        rows = min(rows, 50_000, self.counts[self.at] - self.given)
        split = Split(rows, first=self.given, source=f"part-{self.at}")
        self.given += rows
        return [split]

    def read(self, split):
        return [Key(number) for number in range(split.first, split.first + split.rows)]

    def snapshot(self):
        return [self.at, self.given]

    def restore(self, position):
        self.at, self.given = position

@bolt(state=Total)
def count(key: Key, total: KeyedState[Total]) -> Count | None:
    value = total.value
    value.count += 1
    total.value = value
    return Count(key.number, value.count) if value.count > 1 else None
"""

WIDER = SOURCE.replace("    count: int = 0\n", '    count: int = 0\n    lang: str = "?"\n')


def written(name: str, source: str, place: Path, patch: pytest.MonkeyPatch) -> Any:
    """A module in a file, which workers import, too."""
    (place / f"{name}.py").write_text(source)
    patch.syspath_prepend(place)
    return importlib.import_module(name)


def topology(version: Any, place: Path, counts: list[int], step: int) -> Topology:
    """Step 1 adds a sink, 2 a branch, 3 a field of the state, 4 tasks."""
    t = Topology("size")
    keys = t.spout("keys", version.Keys(counts))
    counted = t.bolt("count", version.count, parallelism=5 if step >= 4 else 2).fields(keys, "number")
    t.sink("out", jsonl(place / "out")).shuffle(counted)
    if step >= 1:
        t.sink("copy", jsonl(place / "copy")).shuffle(counted)
    if step >= 2:
        t.sink("again", jsonl(place / "again")).shuffle(t.bolt("branch", version.count).fields(keys, "number"))
    return t


def test_no_key_of_a_million_is_lost_in_four_upgrades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = int(os.environ.get("TUPLETREE_KEYS", "1000000"))
    sources = {"upgraded_at_size": SOURCE, "upgraded_at_size_wider": WIDER}
    narrow, wide = [written(name, source, tmp_path, monkeypatch) for name, source in sources.items()]
    versions = [narrow] * 3 + [wide] * 2
    counts = [keys]
    for step, version in enumerate(versions):
        t = topology(version, tmp_path, counts, step)
        options = resolve_options(code={"epoch_max_messages": 200_000})
        if step:
            plan = run.preview(t, options, tmp_path / "state", Words())
            assert not plan.faults, step
            assert {one.component: one.stored for one in plan.steps}["count"] == f"{keys:,} keys of state"
        ended = run.run(
            t,
            options=options,
            state_dir=tmp_path / "state",
            target=TargetRef("upgraded_at_size", "count", str(tmp_path)),
        ).wait(HANG_S)
        assert (ended.acked, ended.dead, ended.open) == (sum(counts), 0, 0), step
        counts.append(MORE)
    counts.pop()
    (state,) = [one for one in stored_state(tmp_path / "state")[1] if one.name == "count"]
    found = np.zeros(keys, dtype=np.int64)
    for entry in state.entries():
        found[entry.key] += entry.value["count"]
    assert found[:MORE].tolist() == [5] * MORE
    assert bool((found[MORE:] == 1).all())
    for folder, firsts in (("out", 2), ("copy", 2), ("again", 2)):
        rows = {(row["number"], row["count"]) for row in read_rows(tmp_path / folder)}
        last = {"out": 5, "copy": 5, "again": 3}[folder]
        assert rows == {(number, n) for number in range(MORE) for n in range(firsts, last + 1)}, folder
