"""Which number a row gets in the order of making."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Bolt, Collector, TaskContext, Topology, batch_bolt, bolt


class Ordered(Gathering):
    """Keeps the rows with their numbers."""

    ordered = True

    @property
    def made(self) -> dict[str, int]:
        return {
            row.word: made for batch in self.batches for row, made in zip(batch.rows, batch.made or (), strict=True)
        }


@bolt
def the_first_comes_last(line: Line, context: TaskContext) -> Word:
    if line.text == "a" and context.attempt < 3:
        raise ValueError("not yet")
    return Word(line.text)


class Announces(Bolt[Line]):
    """Emits each line, and something that belongs to no line."""

    def process(self, value: Line, collector: Collector[Word]) -> None:
        collector.emit(Word(f"unanchored {value.text}"), anchors=())
        collector.emit(Word(value.text))


@batch_bolt(size=3, max_age_s=60.0)
def joined(given: list[Line]) -> Word:
    return Word("".join(line.text for line in given))


@batch_bolt(size=3, max_age_s=60.0)
def each(given: list[Line]) -> list[Word]:
    return [Word(line.text) for line in given]


def numbers_of(work: Any, folder: Path) -> dict[str, int]:
    """The numbers of the rows that come of three lines, counted from that of the first line."""
    sink = Ordered()
    t = Topology("order")
    t.sink("out", sink).shuffle(t.bolt("work", work).shuffle(t.spout("lines", Script([lines("a", "b", "c")]))))
    assert run(t, folder / "state", backoff_initial_ms=1.0, max_spout_pending=10).acked == 3
    first = sink.made.get("a", min(sink.made.values()))
    return {word: made - first for word, made in sink.made.items()}


@pytest.mark.parametrize("work", [the_first_comes_last, each])
def test_what_is_passed_on_has_the_number_of_its_tuple_also_in_later_attempts(work: Any, tmp_path: Path) -> None:
    assert numbers_of(work, tmp_path) == {"a": 0, "b": 1, "c": 2}


def test_what_is_anchored_to_several_tuples_is_as_new_as_the_newest(tmp_path: Path) -> None:
    sink = Ordered()
    t = Topology("order")
    source = t.spout("lines", Script([lines("a", "b", "c")]))
    t.sink("out", sink).shuffle(t.bolt("joined", joined).shuffle(source)).shuffle(t.bolt("each", each).shuffle(source))
    run(t, tmp_path / "state")
    assert sink.made["abc"] == sink.made["c"] == sink.made["a"] + 2


def test_what_is_emitted_unanchored_counts_as_made_then(tmp_path: Path) -> None:
    made = numbers_of(Announces, tmp_path)
    assert (made["a"], made["b"], made["c"]) == (0, 1, 2)
    assert [made[f"unanchored {text}"] for text in "abc"] == sorted(made[f"unanchored {text}"] for text in "abc")
    assert made["unanchored a"] > made["c"]
