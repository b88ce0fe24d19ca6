"""Messages that become very many tuples, or that are very large: in bounded memory, and each fails alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tupletree import KeyedState, TaskContext, Topology, bolt
from tupletree.runtimes.deadletters import read as read_letters
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items

pytestmark = pytest.mark.spark

CHILDREN = 3_000
SAMPLE = 100
"""One child in so many goes on to the sink."""


class Giant(msgspec.Struct, frozen=True):
    name: str
    children: int


class Child(msgspec.Struct, frozen=True, gc=False):
    giant: str
    number: int
    key: str


class Total(msgspec.Struct, frozen=True, gc=False):
    giant: str
    key: str
    total: int


@bolt
def explode(giant: Giant) -> Iterator[Child]:
    for number in range(giant.children):
        yield Child(giant.name, number, "one" if giant.name == "one key" else f"{giant.name} {number}")
    if giant.name == "broken":
        raise ValueError("broke at its end")


@bolt
def pick(child: Child) -> Child | None:
    return child if child.number % SAMPLE == 0 else None


@bolt(state=int)
def count(child: Child, total: KeyedState[int]) -> Total | None:
    total.value += 1
    return Total(child.giant, child.key, total.value) if child.number % SAMPLE == 0 else None


@bolt
def stumble(total: Total, context: TaskContext) -> Total:
    if total.giant == "stumbling" and context.attempt == 1:
        raise ConnectionError("not accepted")
    return total


GIANTS = [
    Giant("many keys", CHILDREN),
    Giant("one key", CHILDREN),
    Giant("broken", CHILDREN),
    Giant("endless", 10**9),
    Giant("stumbling", CHILDREN),
]


def test_oversized_messages_pass_in_chunks_and_those_that_fail_fail_alone(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("giants")
    source = t.spout("source", items(GIANTS))
    children = t.bolt("explode", explode, parallelism=2).shuffle(source)
    picked = t.bolt("pick", pick, parallelism=2).local_or_shuffle(children)
    counts = t.bolt("count", count, parallelism=2).fields(children, "key")
    passed = t.bolt("stumble", stumble).shuffle(counts)
    t.sink("picked", jsonl(tmp_path / "picked")).shuffle(picked)
    t.sink("totals", jsonl(tmp_path / "totals")).shuffle(passed)
    # So little that everything is spilled, and every frame makes a file of a sink.
    summary = run_topology(
        t, tmp_path / "state", stage_memory_bytes=0, call_max_bytes=400_000, max_attempts=2, message_timeout_s=None
    )
    assert (summary.acked, summary.dead) == (3, 2)

    alive = ["many keys", "one key", "stumbling"]
    numbers = range(0, CHILDREN, SAMPLE)
    picked_rows = Counter((row["giant"], row["number"]) for row in read_rows(tmp_path / "picked"))
    assert picked_rows == Counter((giant, number) for giant in alive for number in numbers)
    totals = Counter((row["giant"], row["total"]) for row in read_rows(tmp_path / "totals"))
    # Children of one key come in the order in which they were emitted.
    assert totals == Counter((giant, number + 1 if giant == "one key" else 1) for giant in alive for number in numbers)
    letters = {letter.payload["name"]: letter for letter in read_letters(tmp_path / "state")}
    assert letters["broken"].failure.error == "broke at its end"
    assert letters["broken"].attempts == 2
    assert "more than call_max_bytes" in letters["endless"].failure.error
    assert "expected at most 400,000" in letters["endless"].failure.error
    assert letters["endless"].attempts == 1
