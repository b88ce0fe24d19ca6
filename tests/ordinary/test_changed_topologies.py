"""A topology that has changed goes on with the state that a local run left, or says at once what it needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.upgrading import module
from tupletree import Topology
from tupletree.errors import CheckpointError
from tupletree.runtimes import run as api_run
from tupletree.sinks import foreach
from tupletree.sources import items

HANG_S = 30.0

V1 = """
from datetime import datetime
import msgspec
from tupletree import KeyedState, bolt

class Word(msgspec.Struct, frozen=True):
    text: str

class Count(msgspec.Struct, frozen=True):
    text: str
    count: int

class Total(msgspec.Struct):
    count: int = 0
    noted: int = 5

@bolt(state=Total)
def count(word: Word, total: KeyedState[Total]) -> Count:
    value = total.value
    value.count += 1
    total.value = value
    return Count(word.text, value.count)
"""
WIDER = V1.replace("    noted: int = 5\n", "    noted: int = 5\n    at: datetime | None = None\n")
NARROWER = WIDER.replace("    noted: int = 5\n", "")


def run(version: Any, place: Path, names: str | tuple[str, ...] = "count", **words: Any) -> dict[str, int]:
    """One run with the snapshot, of a bolt or several alike; the last count of each word."""
    found: dict[str, int] = {}
    t = Topology("words")
    source = t.spout("words", items([version.Word("a"), version.Word("b")]))
    for number, name in enumerate((names,) if isinstance(names, str) else names):
        counts = t.bolt(name, version.count).fields(source, "text")
        out: Any = foreach(lambda batch: found.update((row.text, row.count) for row in batch.rows))
        t.sink(f"out{number or ''}", out).shuffle(counts)
    state_dir = place / f"state{len([*place.glob('state*')])}"
    handle = api_run.run(t, runtime="local", state_dir=state_dir, state_snapshot=place / "snapshot", **words)
    handle.wait(HANG_S)
    return found


def test_values_of_a_wider_class_of_another_module_are_read_with_their_defaults(tmp_path: Path) -> None:
    """The moment in it changes how values are written."""
    assert run(module("narrow_local", V1), tmp_path) == {"a": 1, "b": 1}
    wide = module("wide_local", WIDER)
    assert run(wide, tmp_path) == {"a": 2, "b": 2}
    assert run(wide, tmp_path) == {"a": 3, "b": 3}


def test_words_that_give_two_states_one_name_are_refused_and_those_that_name_nothing_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version = module("words_local", V1)
    assert run(version, tmp_path, ("count", "tally")) == {"a": 1, "b": 1}
    before = (tmp_path / "snapshot").read_bytes()
    for new, said in (("tally", "something is stored under the new name"), ("totals", "no component of the new name")):
        with pytest.raises(CheckpointError, match=said):
            run(version, tmp_path, "tally", renames={"count": new})
        assert (tmp_path / "snapshot").read_bytes() == before
    words: dict[str, Any] = {"renames": {"cuont": "tally"}, "drops": ["count", "nonsense"]}
    assert run(version, tmp_path, "tally", **words) == {"a": 2, "b": 2}
    assert "--rename cuont=tally, --drop nonsense does nothing" in caplog.text


def test_a_removed_field_and_another_name_need_a_word(tmp_path: Path) -> None:
    assert run(module("before_local", WIDER), tmp_path) == {"a": 1, "b": 1}
    after = module("after_local", NARROWER)
    with pytest.raises(CheckpointError) as refused:
        run(after, tmp_path)
    assert "--drop count.Total.noted" in str(refused.value)
    assert run(after, tmp_path, drops=["count.Total.noted"]) == {"a": 2, "b": 2}
    with pytest.raises(CheckpointError, match="--rename count=NEW"):
        run(after, tmp_path, "tally")
    assert run(after, tmp_path, "tally", renames={"count": "tally"}) == {"a": 3, "b": 3}
    assert run(after, tmp_path, "anew", drops=["tally"]) == {"a": 1, "b": 1}
