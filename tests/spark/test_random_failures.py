"""Bolts that fail at random before, in and behind the stateful bolt: what is remembered is what was acked."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import Count, Word
from tests.spark.tapped import TANKS, Tank, Tap
from tupletree import Bolt, Collector, KeyedState, Topology, arrow_bolt, batch_bolt, bolt
from tupletree.routing.hashing import stable_hash
from tupletree.runtimes import deadletters
from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.format.entries import numbered, read_settle
from tupletree.sinks import jsonl, read_rows
from tupletree.sources.text import Line

LINES = 900
TEXTS = [f"w{number % 5} w{number % 7} w{number}" for number in range(LINES)]

_calls = itertools.count()


def stumble(where: str, what: str, one_in: int) -> None:
    """Fail now and then; another run of the same epoch fails elsewhere, for calls are counted on."""
    if stable_hash((where, what, next(_calls))) % one_in == 0:
        raise ConnectionError(f"{where} stumbles over {what}")


@bolt
def split(line: Line) -> Iterator[Word]:
    stumble("before", line.text, 40)
    return map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    stumble("in", word.word, 60)
    return Count(word.word, total.value)


@bolt
def behind(counted: Count) -> Count:
    stumble("behind", counted.word, 60)
    return counted


@bolt(concurrency=4)
async def split_later(line: Line) -> list[Word]:
    await asyncio.sleep(0)
    stumble("before", line.text, 40)
    return [*map(Word, line.text.split())]


class Counting(Bolt[Word]):
    state_default = int
    total: KeyedState[int]

    def process(self, value: Word, collector: Collector[Count]) -> None:
        self.total.value += 1
        collector.emit(Count(value.word, self.total.value))
        stumble("in", value.word, 60)


@arrow_bolt(outputs=Count)
def check_rows(counted: pa.RecordBatch) -> pa.RecordBatch:
    for word in counted["word"].to_pylist():
        stumble("behind, in columns", word or "", 80)
    return counted


@batch_bolt(size=20, max_age_s=0.2)
def check_together(counted: list[Count]) -> list[Count]:
    for one in counted:
        stumble("behind, together", one.word, 80)
    return counted


def of_every_kind(name: str, out: Path) -> Topology:
    t = Topology("random-kinds")
    words = t.bolt("split", split_later, parallelism=2).shuffle(t.spout("tap", Tap(name, batch_size=100)))
    counts = t.bolt("count", Counting, parallelism=2).fields(words, "word")
    rows = t.bolt("rows", check_rows, parallelism=2).shuffle(counts)
    t.sink("out", jsonl(out)).shuffle(t.bolt("together", check_together).shuffle(rows))
    return t


def topology(name: str, out: Path) -> Topology:
    t = Topology("random")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("tap", Tap(name, batch_size=100)))
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    t.sink("out", jsonl(out)).shuffle(t.bolt("behind", behind, parallelism=2).shuffle(counts))
    return t


def remembered(state_dir: Path) -> Counter[str]:
    return Counter({entry.key: entry.value for one in stored_state(state_dir)[1] for entry in one.entries()})


def runs_of(state_dir: Path) -> list[int]:
    """How often each epoch had to run."""
    settles = state_dir / "settles"
    return [read_settle(settles, epoch).run + 1 for epoch in numbered(settles, ".settle")]


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_counts_of_what_was_acked_equal_an_independent_count(
    guarantee: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    tank = TANKS[guarantee] = Tank(TEXTS, allowed=LINES)
    summary = run_topology(
        topology(guarantee, tmp_path / "out"),
        tmp_path / "state",
        max_attempts=3,
        epoch_max_messages=300,
        state_guarantee=guarantee,
    )

    assert (summary.emitted, summary.open) == (LINES, 0)
    assert summary.failed > 20
    acked = [TEXTS[number - 1] for number in tank.acked if isinstance(number, int)]
    assert len(acked) == summary.acked == LINES - summary.dead
    expected = Counter(" ".join(acked).split())
    assert Counter(row["word"] for row in read_rows(tmp_path / "out")) == expected
    letters = deadletters.read(tmp_path / "state")
    if guarantee == "exactly_once":
        assert remembered(tmp_path / "state") == expected
        runs = runs_of(tmp_path / "state")
        assert 2 <= max(runs) <= 3, "calls are made again at once, so that an epoch comes to its end"
        assert sum(runs) < 2.5 * len(runs)
        assert {letter.note for letter in letters} <= {"keyed state does not hold this message"}
    else:
        assert remembered(tmp_path / "state") > expected, "what failed messages did stays"
        assert set(runs_of(tmp_path / "state")) == {1}
        assert {letter.note for letter in letters} <= {"keyed state may hold this message"}


@bolt
def words_of(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt(state=int)
def total(word: Word, number: KeyedState[int]) -> Count:
    number.value += 1
    return Count(word.word, number.value)


CALLED: Counter[str] = Counter()
"""Word → calls for its counts."""


@bolt
def check(counted: Count) -> Count:
    CALLED[counted.word] += 1
    if counted.word.startswith("bad"):
        raise ValueError("never accepted")
    if counted.word.startswith("w") and CALLED.total() % 20 == 0:
        raise ConnectionError("not accepted now")
    return counted


@bolt(concurrency=4)
async def check_later(counted: Count) -> Count:
    await asyncio.sleep(0)
    return check(counted)


class Checking(Bolt[Count]):
    def process(self, value: Count, collector: Collector[Count]) -> None:
        collector.emit(check(value))


@pytest.mark.parametrize("what", [check, check_later, Checking])
def test_first_runs_repeat_calls_as_long_as_that_helps(what: Any, tmp_path: Path, run_topology: RunTopology) -> None:
    CALLED.clear()
    stumbling = [f"w{number}" for number in range(300)]
    fine = [f"w{number}" if number % 2 else f"v{number}" for number in range(300)]
    bad = [[f"bad{part}-{number}" for number in range(20)] for part in range(2)]
    good = [[f"v{part}-{number}" for number in range(320)] for part in range(2)]
    texts = [*stumbling, *fine, *good[0], *bad[0], *good[1], *bad[1]]
    TANKS["repeated"] = Tank(texts, allowed=len(texts))
    t = Topology("repeated")
    words = t.bolt("split", words_of, parallelism=2).shuffle(t.spout("tap", Tap("repeated", batch_size=100)))
    counts = t.bolt("count", total, parallelism=2).fields(words, "word")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("check", what, parallelism=2).shuffle(counts))
    summary = run_topology(t, tmp_path / "state", max_attempts=1, epoch_max_messages=300)

    assert runs_of(tmp_path / "state")[:2] == [2, 1]
    assert 0 < summary.dead - 40 < 20, "only the first run of the first epoch failed for what passes"
    assert CALLED[bad[0][0]] == 3, "it had helped before"
    assert CALLED[bad[1][-1]] == 1, "it did not help any more"
    assert remembered(tmp_path / "state").total() == summary.acked


@pytest.mark.nightly
def test_so_they_do_with_every_kind_of_bolt(tmp_path: Path, run_topology: RunTopology) -> None:
    tank = TANKS["kinds"] = Tank(TEXTS, allowed=LINES)
    summary = run_topology(
        of_every_kind("kinds", tmp_path / "out"), tmp_path / "state", max_attempts=10, epoch_max_messages=300
    )

    assert (summary.emitted, summary.open) == (LINES, 0)
    assert summary.failed > 10, "calls that fail at random are repeated, but not before that has helped once"
    acked = [TEXTS[number - 1] for number in tank.acked if isinstance(number, int)]
    assert len(acked) == summary.acked == LINES - summary.dead
    expected = Counter(" ".join(acked).split())
    assert Counter(row["word"] for row in read_rows(tmp_path / "out")) == expected
    assert summary.dead or remembered(tmp_path / "state") == expected
    assert max(runs_of(tmp_path / "state")) <= 4
