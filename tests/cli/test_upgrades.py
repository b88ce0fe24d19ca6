"""`tupletree check --state-dir`: what a start would do with what is stored, told before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.upgrading import complete
from tupletree.cli.target import load_target

Run = Callable[..., Any]
WriteTarget = Callable[[str], Path]

TARGET = """
from pathlib import Path
import msgspec
from tupletree import KeyedState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import items

class Line(msgspec.Struct, frozen=True):
    text: str

class Count(msgspec.Struct, frozen=True):
    word: str
    count: int

@bolt(state=int)
def count(line: Line, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(line.text, total.value)

def topology() -> Topology:
    t = Topology("words")
    lines = t.spout("lines", items([Line("a"), Line("b"), Line("a")]))
    counts = t.bolt("BOLT", count).fields(lines, "text")
    t.sink("out", jsonl(Path("out"))).shuffle(counts)
    return t
"""


@pytest.fixture
def first(tmp_path: Path, write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """The state directory of a run of the first version, and that version."""
    monkeypatch.chdir(tmp_path)
    target = str(write_target(TARGET.replace("BOLT", "count")))
    topology, _ = load_target(target, ())
    assert complete(topology, tmp_path).acked == 3
    return tmp_path / "state", target


def test_check_shows_what_a_start_would_do(run: Run, first: tuple[Path, str], write_target: WriteTarget) -> None:
    state, _ = first
    target = str(write_target(TARGET.replace("BOLT", "tally").replace("count).fields", "count, parallelism=2).fields")))
    before = sorted(state.rglob("*"))
    refused = run("check", target, "--state-dir", str(state))
    assert refused.code == 2
    assert "count      refused" in refused.out
    assert "2 keys of state" in refused.out
    assert "--rename count=tally or --drop count" in refused.err
    accepted = run("check", target, "--state-dir", str(state), "--rename", "count=tally")
    assert accepted.code == 0, accepted.err
    assert "it was 'count'" in accepted.out
    assert "words can start on" in accepted.out
    told = run("check", target, "--state-dir", str(state), "--drop", "count", "--json")
    found = json.loads(told.out)
    assert (told.code, found["starts"], found["faults"]) == (0, True, [])
    assert {"component": "count", "decision": "dropped", "change": "removed", "stored": "2 keys of state"} in found[
        "plan"
    ]
    assert json.loads(run("check", target, "--state-dir", str(state), "--json").out)["starts"] is False
    assert sorted(state.rglob("*")) == before


def test_check_says_that_nothing_has_changed_and_what_is_wrong_with_a_word(run: Run, first: tuple[Path, str]) -> None:
    state, target = first
    assert "nothing has changed" in run("check", target, "--state-dir", str(state)).out
    for word, said in (("--rename=count", "this is no rename"), ("--drop=cuont", "did you mean 'count'?")):
        told = run("check", target, "--state-dir", str(state), word)
        assert (told.code, said in told.err) == (2, True), told.err
    shutil.rmtree(state)
    assert "does not exist" in run("check", target, "--state-dir", str(state)).err
