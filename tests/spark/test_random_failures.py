"""Bolts that fail at random before, in and behind the stateful bolt: what is remembered is what was acked."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import Count, Word
from tests.spark.tapped import TANKS, Tank, Tap
from tupletree import KeyedState, Topology, bolt
from tupletree.hashing import stable_hash
from tupletree.runtimes import deadletters
from tupletree.runtimes.spark.journal import numbered, read_settle
from tupletree.runtimes.stored import stored_state
from tupletree.sinks import jsonl, read_rows
from tupletree.sources.text import Line

pytestmark = pytest.mark.spark

LINES = 1_200
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
