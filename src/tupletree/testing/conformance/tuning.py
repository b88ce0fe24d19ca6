"""Scenarios: Storm's three ways to do without the guarantee, each for what it is asked for only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from tupletree.errors import PermanentError
from tupletree.testing.conformance.messages import Item, numbered_items
from tupletree.testing.conformance.observed import Observed
from tupletree.testing.conformance.runtime import RuntimeUnderTest
from tupletree.testing.conformance.scenario import Bench, Scenario
from tupletree.topology.components import Collector, Emit
from tupletree.topology.decorators import bolt


class Note(msgspec.Struct, frozen=True):
    """Something beside the message."""

    number: int


@bolt
def refuse_fours(item: Item) -> Item:
    """Fail every fourth item."""
    if item.number % 4 == 3:
        raise ValueError("every fourth fails")
    return item


class Untracked(Scenario):
    """Messages without an id are processed and never retried; no source is told of them, and they are never pending."""

    name = "untracked"

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        messages = [*numbered_items(8), *(Emit(Item(number)) for number in range(100, 120))]
        source = bench.spout("source", Item, messages)
        bench.sink("out").shuffle(bench.bolt("refuse", refuse_fours, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=[0, 1, 2, 4, 5, 6], dead=[3, 7])
        expected = Counter(number for number in (*range(8), *range(100, 120)) if number % 4 != 3)
        seen.expect_equal(seen.tally("out", "number"), expected, "rows")


@bolt
def note_aside(item: Item, out: Collector[Item | Note]) -> None:
    """Emit a note that is anchored to nothing, and then fail some of the items."""
    out.emit(Note(item.number), anchors=())
    out.emit(item)
    if item.number % 4 == 3:
        out.fail(item, PermanentError("after the note"))


@bolt
def refuse_even_notes(note: Note) -> Note:
    """Fail every other note."""
    if note.number % 2 == 0:
        raise ValueError("an even note")
    return note


class Unanchored(Scenario):
    """A tuple that is anchored to nothing fails no message, and goes on when its message fails."""

    name = "unanchored"
    # Another scenario's failure behind state or a held tuple lets Spark run the epoch again without what failed in it.
    runs_alone = True

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(20))
        noted = bench.bolt("note", note_aside, parallelism=2).shuffle(source)
        bench.sink("items").shuffle(noted.stream(Item))
        bench.sink("notes").shuffle(bench.bolt("refuse", refuse_even_notes).shuffle(noted.stream(Note)))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        living = [number for number in range(20) if number % 4 != 3]
        seen.expect_verdicts("source", acked=living, dead=[3, 7, 11, 15, 19])
        seen.expect_equal(seen.tally("items", "number"), Counter(living), "rows of items")
        # At least once: an attempt that Spark runs again notes again.
        odd = {number for number in range(20) if number % 2}
        seen.expect_equal(set(seen.tally("notes", "number")), odd, "rows of notes")


class NoAckers(Scenario):
    """With 0 ackers every message is acked as it is emitted, with any outcome; nothing is retried."""

    name = "no-ackers"

    def options(self, runtime: RuntimeUnderTest) -> Mapping[str, Any]:  # noqa: ARG002 - the same for all
        """No tracking."""
        return {"acker_tasks": 0}

    def build(self, bench: Bench) -> None:
        """See `Scenario`."""
        source = bench.spout("source", Item, numbered_items(20))
        bench.sink("out").shuffle(bench.bolt("refuse", refuse_fours, parallelism=2).shuffle(source))

    def check(self, seen: Observed) -> None:
        """See `Scenario`."""
        seen.expect_verdicts("source", acked=range(20))
        seen.expect_equal(seen.tally("out", "number"), Counter(one for one in range(20) if one % 4 != 3), "rows")


TUNING: tuple[Scenario, ...] = (Untracked(), Unanchored(), NoAckers())
