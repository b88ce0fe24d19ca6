"""Values that are hard to carry: each arrives exactly as it was or is a clear dead letter, and never stops the rest."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.helpers_semantics import Feed, Result, finish
from tupletree import Collector, Emit, KeyedState, Topology, bolt
from tupletree.sinks import jsonl, parquet


class Value(msgspec.Struct, frozen=True):
    name: str
    text: str | None = "text"
    whole: int | None = 1
    real: float | None = 1.0
    raw: bytes | None = b"raw"
    many: list[int] | None = None
    anything: Any = None


HARD: dict[str, dict[str, Any]] = {
    "good": {},
    "none": {"text": None, "whole": None, "real": None, "raw": None},
    "nul": {"text": "a\0b", "raw": b"\0"},
    "empty": {"text": "", "raw": b"", "many": []},
    "astral": {"text": "\U0001f600 \u2028 e\u0301"},
    "largest": {"whole": 2**63 - 1, "many": [2**63 - 1]},
    "smallest": {"whole": -(2**63)},
    "nan": {"real": math.nan},
    "infinite": {"real": -math.inf},
    "surrogate": {"text": "half a \ud800 pair"},
    "2**63": {"whole": 2**63},
    "2**64": {"whole": 2**64},
    "-2**63-1": {"whole": -(2**63) - 1},
    "2**63 inside": {"many": [2**63]},
    "2**64 anywhere": {"anything": 2**64},
    "surrogate anywhere": {"anything": "\udfff"},
    "text for number": {"whole": "7"},
    "number for text": {"text": 7},
    "an object": {"anything": object()},
}
FLAT = ("name", "text", "whole", "real", "raw")
CARRIED = {"good", "none", "nul", "empty", "astral", "largest", "smallest", "nan", "infinite"}
NOT_JSON = {"nan", "infinite"}
"""JSON has no such numbers, so a JSON Lines sink refuses them."""


def value_of(name: str) -> Value:
    return Value(name, **HARD[name])


class Ask(msgspec.Struct, frozen=True):
    name: str
    where: str


@bolt
def make(ask: Ask, out: Collector[Value]) -> None:
    out.emit(value_of(ask.name), stream=ask.where)


@bolt
def compare(value: Value) -> Ask:
    """What came through an exchange is what was sent."""
    if repr(value) != repr(value_of(value.name)):
        raise AssertionError(f"{value!r} arrived for {value_of(value.name)!r}")
    return Ask(value.name, "exchange")


@bolt(state=list)
def remember_text(value: Value, kept: KeyedState[list[str | None]]) -> Ask:
    """The hard value is part of the key, and of the value kept under it."""
    kept.value.append(value.text)
    return Ask(value.name, f"key-{len(kept.value)}")


WHERE = ("exchange", "lines", "columns", "key")


@SPARK_NIGHTLY
def test_a_hard_value_goes_through_an_exchange_a_state_and_each_sink_exactly_or_fails_clearly(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    asks = [Ask(name, where) for name in HARD for where in WHERE]
    t = Topology("hard-values")
    source = t.spout("source", Feed(t.name, Ask, [Emit(ask, (ask.name, ask.where)) for ask in asks]))
    made = t.bolt("make", make).shuffle(source)
    streams = {where: made.stream(Value, name=where) for where in WHERE}
    compared = t.bolt("compare", compare, parallelism=2).fields(streams["exchange"], "name")
    # One task each, so that nothing leaves the process between the bolt and what takes it.
    t.sink("lines", jsonl(tmp_path / "lines")).shuffle(streams["lines"])
    t.sink("columns", parquet(tmp_path / "columns")).shuffle(streams["columns"])
    kept = t.bolt("remember", remember_text).fields(streams["key"], "name", "text", "whole", "real", "raw")
    t.sink("told", jsonl(tmp_path / "told")).shuffle(compared).shuffle(kept)
    result = finish(run_topology, t, tmp_path, max_attempts=2)
    dead = result.dead
    expected_dead = {(name, where) for name in HARD for where in WHERE if name not in CARRIED}
    expected_dead |= {(name, "lines") for name in NOT_JSON}
    # These do not stand in the key, or in the value that is kept under it.
    expected_dead -= {(name, "key") for name in ("2**63 inside", "2**64 anywhere", "surrogate anywhere", "an object")}
    assert dead.keys() == expected_dead
    for (name, where), letter in dead.items():
        assert letter.failure.component in {"make", "remember", where}, (name, where, letter.failure)
        assert letter.failure.error_type or letter.failure.error, (name, where, letter.failure)
        assert name in letter.failure.failing_tuple
    for field, names in {"whole": ["2**63", "2**64", "-2**63-1", "text for number"], "text": ["surrogate"]}.items():
        for name in names:
            assert field in dead[name, "exchange"].failure.error, dead[name, "exchange"].failure.error
    lines = {row["name"]: row for row in map(json.loads, text_of(tmp_path / "lines").split("\n")[:-1])}
    assert lines.keys() == CARRIED - NOT_JSON
    for name, row in lines.items():
        value = value_of(name)
        raw = None if value.raw is None else base64.b64encode(value.raw).decode()
        assert row == {**msgspec.structs.asdict(value), "raw": raw}
    for name in CARRIED:
        value = value_of(name)
        (row,) = [row for row in result.rows("columns") if row["name"] == name]
        assert {field: repr(row[field]) for field in FLAT} == {field: repr(getattr(value, field)) for field in FLAT}


@SPARK_NIGHTLY
def test_what_a_spout_emits_but_cannot_be_sent_is_dead_at_once_with_the_value_in_the_letter(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    names = list(HARD)
    messages: list[Emit[Any]] = [Emit(value_of(name), name) for name in names]
    messages += [Emit("not even the class", "text"), Emit(None, "None"), Emit(Ask("a", "b"), "stray")]
    t = Topology("hard-spout")
    source = t.spout("source", Feed(t.name, Value, messages))
    t.sink("out", parquet(tmp_path / "out")).shuffle(source)
    result = finish(run_topology, t, tmp_path, max_attempts=3)
    assert set(result.tally("out", "name")) == CARRIED
    assert result.dead.keys() == {*names, "text", "None", "stray"} - CARRIED
    assert result.dead["surrogate"].payload["text"] == {"$str": "half a \\ud800 pair"}
    assert result.dead["2**64"].payload["whole"] == {"$int": hex(2**64)}
    # Sending the same value again cannot help.
    assert {letter.attempts for letter in result.letters} == {1}
    assert "str" in result.dead["text"].failure.error


def text_of(folder: Path) -> str:
    """The files of a JSON Lines sink, unread: Python's own reader takes integers of any size."""
    return "".join(path.read_text() for path in folder.glob("[!_]*.jsonl"))


class Step(msgspec.Struct, frozen=True):
    number: int
    key: float | None
    put: str


class Stored(msgspec.Struct, frozen=True):
    number: int
    total: int


STATES: dict[str, Any] = {
    "2**63": 2**63,
    "2**64": 2**64,
    "-2**63-1": -(2**63) - 1,
    "text": "text",
    "surrogate": "\ud800",
    "object": object(),
    "none": None,
    "float": 1.5,
    "nan": math.nan,
}


@bolt(state=int)
def store(step: Step, total: KeyedState[int]) -> Stored:
    """Count, or put something that is no number of this state."""
    total.value = total.value + 1 if step.put == "count" else STATES[step.put]
    return Stored(step.number, total.value if step.put == "count" else -1)


@SPARK_NIGHTLY
def test_a_state_value_that_cannot_be_stored_fails_who_put_it_and_leaves_the_key_as_it_was(
    run_topology: RunTopology, tmp_path: Path
) -> None:
    keys = [1.0, -0.0, 0.0, math.nan, None, math.inf]
    counting = [Step(number, key, "count") for number, key in enumerate(keys)]
    # Whoever shares a key with a value that cannot be stored fails with it, so each has a key of its own.
    putting = [Step(100 + place, 100.0 + place, put) for place, put in enumerate(STATES)]
    untracked = [Emit(Step(200, 200.0, "object")), Emit(Step(201, 1.0, "count"))]
    first = [*((Emit(step, step.number)) for step in (*counting, *putting)), *untracked]
    after = [
        Step(300 + place, key, "count") for place, key in enumerate([*keys, *(step.key for step in putting), 200.0])
    ]
    result: Result | None = None
    for messages in (first, [*first, *((Emit(step, step.number)) for step in after)]):
        t = Topology("hard-state")
        source = t.spout("source", Feed("hard-state", Step, messages))
        stored = t.bolt("store", store, parallelism=2).fields(source, "key")
        t.sink("out", jsonl(tmp_path / "out")).shuffle(stored)
        result = finish(run_topology, t, tmp_path, max_attempts=2)
        # An integer of up to 64 bits without a sign is stored as it is; the row that would tell it is refused.
        too_long = {306} if messages is not first else set()
        assert {letter.failure.component for letter in result.letters} <= {"store", "out"}
        assert result.dead.keys() == {step.number for step in putting if step.put != "2**63"} | too_long
    assert result is not None
    totals = result.tally("out", "number", "total")
    # -0.0 and 0.0 are one key, NaN is one, None is one.
    told = {number: total for number, total in totals if number >= 300}
    assert told == {300: 3, 301: 3, 302: 4, 303: 2, 304: 2, 305: 2} | dict.fromkeys(range(307, 316), 1)
