"""`tupletree state --import`: what an export wrote, or a hand, becomes the state of the next start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run, WriteTarget
from tests.local.running import run as run_locally
from tests.spark.upgrading import begin, complete, state_of
from tupletree import Topology
from tupletree.cli.target import load_target
from tupletree.config import resolve_options
from tupletree.errors import ConfigError
from tupletree.runtimes.run import import_state, stored_state
from tupletree.runtimes.state_file import ImportRow

TARGET = """
from datetime import datetime
from decimal import Decimal
from pathlib import Path
import msgspec
from tupletree import KeyedState, TaskState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import items

class Line(msgspec.Struct, frozen=True):
    text: str
    day: int

class Count(msgspec.Struct, frozen=True):
    word: str
    count: int

class Total(msgspec.Struct):
    count: int = 0
    last: Decimal | None = None
    at: datetime | None = None

@bolt(state=int)
def count(line: Line, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(line.text, total.value)

@bolt(state=Total)
def by_day(line: Line, total: KeyedState[Total]) -> None:
    value = total.value
    value.count += 1
    value.last, value.at = Decimal("1.50"), datetime(2026, 1, line.day)
    total.value = value

@bolt(state=int)
def seen(line: Line, total: TaskState[int]) -> None:
    total.value += 1

def topology(lines: int = 3) -> Topology:
    t = Topology("words")
    source = t.spout("lines", items([Line("ab"[n % 2], 1 + n % 2) for n in range(lines)]))
    t.sink("out", jsonl(Path("out"))).shuffle(t.bolt("count", count, parallelism=2).fields(source, "text"))
    t.bolt("by_day", by_day).fields(source, "text", "day")
    t.bolt("seen", seen).shuffle(source)
    return t
"""


@pytest.fixture
def target(tmp_path: Path, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(write_target(TARGET))


def topology(target: str, lines: int = 3) -> Topology:
    return load_target(target, [f"lines={lines}"])[0]


@pytest.mark.parametrize("suffix", [pytest.param(".jsonl", marks=pytest.mark.nightly), ".parquet"])
def test_what_was_exported_is_imported_into_another_run_as_it_was(
    run: Run, target: str, tmp_path: Path, suffix: str
) -> None:
    assert complete(topology(target), tmp_path).acked == 3
    for bolt in ("count", "by_day", "seen"):
        file = tmp_path / f"{bolt}{suffix}"
        exported = run("state", str(tmp_path / "state"), "--component", bolt, "--export", str(file))
        assert exported.code == 0, exported.err
        imported = run("state", target, "--state-dir", str(tmp_path / "fresh"), "--import", str(file))
        assert imported.code == 0, imported.err
        assert f"{bolt}: " in imported.err
    shown = [run("state", str(tmp_path / one), "--json", "--limit", "0").out for one in ("state", "fresh")]
    assert sorted(shown[0].splitlines()) == sorted(shown[1].splitlines())
    (tmp_path / "fresh").rename(tmp_path / "again")
    (tmp_path / "again").mkdir(exist_ok=True)
    place = tmp_path / "other"
    place.mkdir()
    (tmp_path / "again").rename(place / "state")
    handle = begin(topology(target, 5), place, append=True)
    assert handle.wait(30.0).acked == 5
    assert state_of(place, "count") == {"a": 2 + 3, "b": 1 + 2}
    assert state_of(place, "seen") == {0: 3 + 5}


def test_an_import_sets_keys_and_leaves_the_others(run: Run, target: str, tmp_path: Path) -> None:
    assert complete(topology(target), tmp_path).acked == 3
    file = tmp_path / "by_hand.jsonl"
    rows: list[dict[str, Any]] = [
        {"component": "count", "key": "b", "value": 100},
        {"component": "count", "key": "new", "value": 7},
        {"component": "by_day", "key": ["a", 1], "value": {"count": 50, "at": "2026-02-03T04:05:06"}},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("state", target, "--state-dir", str(tmp_path / "state"), "--import", str(file)).code == 0
    assert state_of(tmp_path, "count") == {"a": 2, "b": 100, "new": 7}
    assert complete(topology(target, 6), tmp_path).acked == 6
    assert state_of(tmp_path, "count") == {"a": 2 + 1, "b": 100 + 2, "new": 7}
    (days,) = [one for one in stored_state(tmp_path / "state")[1] if one.name == "by_day"]
    assert {tuple(entry.key): entry.value["count"] for entry in days.entries()} == {("a", 1): 50 + 1, ("b", 2): 1 + 2}


def test_everything_that_does_not_fit_is_named_and_nothing_is_written(run: Run, target: str, tmp_path: Path) -> None:
    assert complete(topology(target), tmp_path).acked == 3
    before = sorted((tmp_path / "state").rglob("*"))
    file = tmp_path / "bad.jsonl"
    rows: list[dict[str, Any]] = [
        {"component": "cuont", "key": "a", "value": 1},
        {"component": "count", "key": 5, "value": 1},
        {"component": "count", "key": "a", "value": "many"},
        {"component": "count", "key": "a", "value": 1},
        {"component": "count", "key": "a", "value": 2},
        {"component": "by_day", "key": "a", "value": {"count": 1}},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = run("state", target, "--state-dir", str(tmp_path / "state"), "--import", str(file))
    assert told.code == 2
    assert "5 rows do not fit" in told.err
    assert "did you mean 'count'?" in told.err
    assert all(f"bad.jsonl:{number}: " in told.err for number in (1, 2, 3, 5, 6)), told.err
    assert "the key is there twice: 'a'" in told.err
    assert sorted((tmp_path / "state").rglob("*")) == before
    file.write_text("{}\n")
    assert "this is no row of state" in run("state", target, "--state-dir", "state", "--import", str(file)).err
    assert "needs to know the topology" in run("state", "--import", str(file)).err


def test_an_import_is_refused_while_a_run_is_on(run: Run, target: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"component": ["count"], "key": ["a"], "value": [1]}), file)
    handle = begin(topology(target), tmp_path, active=False)
    try:
        told = run("state", target, "--state-dir", str(tmp_path / "state"), "--import", str(file))
        assert told.code == 1
        assert "another run is using this state directory" in told.err
    finally:
        handle.stop(5.0)


@pytest.mark.parametrize("durable", [False, True])
def test_state_of_a_local_run_is_refused_and_named(run: Run, target: str, tmp_path: Path, durable: bool) -> None:
    state = str(tmp_path / "state")
    assert run_locally(topology(target), tmp_path / "state", durable=durable).acked == 3
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"component": ["count"], "key": ["a"], "value": [1]}), file)
    for words, action in (
        (("state", target, "--state-dir", state, "--import", str(file)), "imported"),
        (("state", state, "--export", str(tmp_path / "all.jsonl")), "shown or exported"),
        (("state", state), "shown or exported"),
    ):
        told = run(*words)
        assert told.code == 2
        assert f"the state of a local run cannot be {action}" in told.err
        assert f"which keeps state in {'its journal' if durable else 'memory'}" in told.err


def test_state_of_another_type_is_converted_by_export_drop_and_import(
    run: Run, target: str, tmp_path: Path, write_target: WriteTarget
) -> None:
    assert complete(topology(target), tmp_path).acked == 3
    file = tmp_path / "count.jsonl"
    assert run("state", "state", "--component", "count", "--export", str(file)).code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, "value": row["value"] / 2}) + "\n" for row in rows))
    source = TARGET.replace("@bolt(state=int)\ndef count(line: Line, total: KeyedState[int])",
        "@bolt(state=float)\ndef count(line: Line, total: KeyedState[float])").replace(
        "Count(line.text, total.value)", "Count(line.text, int(total.value))")  # fmt: skip
    changed = str(write_target(source))
    refused = run("state", changed, "--state-dir", "state", "--import", str(file))
    assert refused.code == 2
    assert "--drop count" in refused.err
    assert state_of(tmp_path, "count") == {"a": 2, "b": 1}
    assert run("state", changed, "--state-dir", "state", "--drop", "count", "--import", str(file)).code == 0
    assert state_of(tmp_path, "count") == {"a": 1.0, "b": 0.5}
    assert complete(topology(changed, 5), tmp_path).acked == 5
    assert state_of(tmp_path, "count") == {"a": 1.0 + 1, "b": 0.5 + 1}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"component": "seen", "key": 99, "value": 1}, "no task of 'seen' has this key"),
        ({"component": "seen", "key": -1, "value": 1}, "no task of 'seen' has this key"),
        ({"component": "count", "key": "a", "value": 1, "expires_s": "soon"}, "expires_s is no time"),
        ({"component": "count", "key": "a", "value": 1, "expires_s": [1]}, "expires_s is no time"),
        ({"component": ["count"], "key": "a", "value": 1}, "this is no name of a bolt"),
    ],
)
def test_a_row_that_fits_nothing_is_refused_before_anything_is_written(
    target: str, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    given = ImportRow("file:1", row["component"], row["key"], row["value"], row.get("expires_s"))
    t = load_target(target, [])[0]
    with pytest.raises(ConfigError, match="cannot be imported") as refused:
        import_state(t, resolve_options(code={}), tmp_path / "fresh", [given])
    assert said in str(refused.value)
    assert not (tmp_path / "fresh").exists()
