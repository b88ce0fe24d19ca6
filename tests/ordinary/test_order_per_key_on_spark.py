"""O8 on Spark: ordered inputs, with the driver, stages and files of the Spark runtime in this process.

What random faults do to them is in tests/simulator/test_ordered_on_spark.py. Tasks are copies there, so what these
bolts share with the tests is kept beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import run_topology, start_topology
from tests.until import until
from tupletree import Collector, Emit, KeyedState, PermanentError, Spout, Topology, Window, bolt, window_bolt
from tupletree.errors import EndOfInput, TopologyError
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Summary
from tupletree.runtimes.run import why
from tupletree.runtimes.spark.settle import epoch_order
from tupletree.runtimes.spark.supported import refuse_unsupported
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.topology.splits import Split, SplitSpout

__all__ = ["run_topology", "start_topology"]  # fixtures


class Event(msgspec.Struct, frozen=True):
    world: str
    key: str
    number: int


class Placed(msgspec.Struct, frozen=True):
    world: str
    key: str
    number: int
    place: int


@dataclass
class World:
    """Fails the first calls of some tuples; notes each call: (number, whether it was good)."""

    fails: dict[tuple[str, int], int] = field(default_factory=dict)
    calls: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: defaultdict(list))

    def call(self, where: str, number: int) -> None:
        left = self.fails.get((where, number), 0)
        self.calls[where].append((number, not left))
        if left == FOR_GOOD:
            raise PermanentError(f"{where} never takes {number}")
        if left:
            self.fails[where, number] = left - 1
            raise ValueError(f"{where} is to fail {number}")


FOR_GOOD = -1

WORLDS: dict[str, World] = {}


@bolt
def parse(event: Event) -> Event:
    WORLDS[event.world].call("parse", event.number)
    return event


@bolt(state=int)
def count(event: Event, total: KeyedState[int]) -> Placed:
    WORLDS[event.world].call("count", event.number)
    total.value += 1
    return Placed(event.world, event.key, event.number, total.value)


@bolt
def end(placed: Placed) -> Placed:
    WORLDS[placed.world].call("end", placed.number)
    return placed


@bolt(auto_ack=False)
def by_hand(placed: Placed, out: Collector[Placed]) -> None:
    out.emit(placed)
    out.ack(placed)


def topology(world: str, folder: Path, *, keys: str = "ab", many: int = 12, parsed: bool = False) -> Topology:
    t = Topology("ordered")
    events = [Event(world, keys[number % len(keys)], number) for number in range(many)]
    source: Any = t.spout("events", items(events))
    if parsed:
        source = t.bolt("parse", parse, parallelism=2).shuffle(source)
    counted = t.bolt("count", count, parallelism=2).fields(source, "key", ordered=True)
    t.sink("out", jsonl(folder / "out")).shuffle(t.bolt("end", end, parallelism=2).shuffle(counted))
    return t


@pytest.fixture
def run(run_topology: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the topology in a world where these calls fail; what came of it, and the rows by key, in their places."""
    name = request.node.name
    world = WORLDS[name] = World()

    def run_it(
        fails: Mapping[tuple[str, int], int], options: Mapping[str, Any] | None = None, **settings: Any
    ) -> tuple[Summary, dict[str, list[int]], World]:
        world.fails.update(fails)
        summary = run_topology(topology(name, tmp_path, **settings), tmp_path / "state", **(options or {}))
        rows: dict[str, list[int]] = {}
        for row in sorted(read_rows(tmp_path / "out"), key=lambda row: row["place"]):
            rows.setdefault(row["key"], []).append(row["number"])
        return summary, rows, world

    yield run_it
    del WORLDS[name]


EVEN, ODD = [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]


def test_what_comes_later_for_a_key_waits_for_what_is_tried_again(run: Any) -> None:
    summary, rows, _ = run({("count", 0): 2, ("count", 5): 1})
    assert (summary.acked, summary.failed) == (12, 3), "waiting counts no attempt"
    assert rows == {"a": EVEN, "b": ODD}


def test_what_fails_before_the_input_is_waited_for_too(run: Any) -> None:
    summary, rows, _ = run({("parse", 2): 2, ("parse", 7): 1, ("count", 2): 1}, parsed=True)
    assert summary.acked == 12
    assert rows == {"a": EVEN, "b": ODD}


def test_what_fails_further_on_takes_back_what_the_input_did_and_is_waited_for(run: Any) -> None:
    summary, rows, _ = run({("end", 0): 2, ("end", 5): 1})
    assert (summary.acked, summary.failed) == (12, 3)
    assert rows == {"a": EVEN, "b": ODD}


def test_without_a_call_that_fails_nothing_is_run_again_or_put_back(run: Any) -> None:
    summary, rows, world = run({}, parsed=True)
    assert summary.acked == 12
    assert rows == {"a": EVEN, "b": ODD}
    assert len(world.calls["count"]) == 12


def test_what_fails_for_good_holds_nothing_up(run: Any) -> None:
    summary, rows, _ = run({("count", 0): FOR_GOOD})
    assert (summary.acked, summary.dead) == (11, 1)
    assert rows == {"a": EVEN[1:], "b": ODD}


def test_a_key_that_waits_holds_no_other_key(run: Any) -> None:
    """Key a waits for a second, and b is done meanwhile."""
    options = {"backoff_initial_ms": 1000.0, "backoff_max_ms": 1000.0, "backoff_jitter": 0.0}
    _, rows, world = run({("count", 0): 1}, options)
    assert rows == {"a": EVEN, "b": ODD}
    good = [number for number, is_good in world.calls["count"] if is_good]
    assert good.index(11) < good.index(0), "of b the last one was called before a's first one was tried again"


def test_no_call_is_made_for_what_is_known_to_wait_at_the_input(run: Any) -> None:
    """More comes while key a waits: for none of it a call is made until the first one has succeeded."""
    _, rows, world = run({("count", 0): 2}, {"epoch_max_messages": 4})
    assert rows == {"a": EVEN, "b": ODD}
    of_a = [(number, is_good) for number, is_good in world.calls["count"] if number % 2 == 0]
    first_good = of_a.index((0, True))
    assert {number for number, _ in of_a[:first_good]} == {0}
    seen = list(dict.fromkeys(number for number, is_good in of_a if is_good))
    assert seen == EVEN


@pytest.mark.parametrize("epoch", [12, 4])
def test_why_says_at_which_bolt_a_message_waits_and_for_which(run: Any, tmp_path: Path, epoch: int) -> None:
    """With epochs of four, what it waits for is in another epoch."""

    def waits_of(number: int) -> set[str]:
        facts = why(tmp_path / "state", str(number))
        assert facts[-1].what == "acked"
        assert {fact.note for fact in facts if fact.what != "put back"} == {""}
        return {fact.note for fact in facts if fact.what == "put back"}

    run({("count", 0): 2, ("count", 5): 2}, {"epoch_max_messages": epoch})
    assert waits_of(0) == waits_of(1) == waits_of(3) == waits_of(5) == set()
    for number in (2, 4, 6):
        assert waits_of(number) == {"waiting for a call of count, behind message events/0"}
    for number in (7, 9):
        assert waits_of(number) == {"waiting for a call of count, behind message events/5"}


def test_where_tasks_are_not_told_of_all_that_waits_the_order_is_the_same(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_order, "MOST_HELD", 1)
    summary, rows, _ = run({("count", 0): 2, ("count", 5): 2}, {"epoch_max_messages": 4})
    assert (summary.acked, summary.failed) == (12, 4)
    assert rows == {"a": EVEN, "b": ODD}


def test_a_limit_full_of_messages_that_wait_is_no_deadlock(run: Any) -> None:
    summary, rows, _ = run({("count", 0): 3}, {"max_spout_pending": 4}, keys="a", many=50)
    assert summary.acked == 50
    assert rows == {"a": [*range(50)]}


def test_waiting_behind_a_key_is_no_timeout(run: Any) -> None:
    options = {
        "message_timeout_s": 0.5,
        "backoff_initial_ms": 800.0,
        "backoff_max_ms": 800.0,
        "backoff_jitter": 0.0,
    }
    summary, rows, _ = run({("count", 0): 1}, options)
    assert (summary.acked, summary.failed) == (12, 1)
    assert rows == {"a": EVEN, "b": ODD}


def test_state_that_may_be_at_least_once_is_exact_all_the_same(run: Any) -> None:
    summary, rows, _ = run({("count", 0): 1, ("end", 3): 1}, {"state_guarantee": "at_least_once"})
    assert summary.acked == 12
    assert rows == {"a": EVEN, "b": ODD}


class Pieces(SplitSpout[Event]):
    """Gives so many events of key b, and of key a before them, in pieces of four."""

    def __init__(self, world: str, of_a: int, many: int) -> None:
        self.world, self.of_a, self.many, self.at = world, of_a, many, 0

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        if self.at >= self.many:
            raise EndOfInput
        begin, self.at = self.at, min(self.at + min(4, max_rows), self.many)
        return [Split(self.at - begin, begin, "events")]

    def read(self, split: Split) -> Iterator[Event]:
        for number in range(split.first, split.first + split.rows):
            yield Event(self.world, "a" if number < self.of_a else "b", number)

    def snapshot(self) -> int:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position


def test_a_dead_letter_that_is_replayed_beside_pieces_of_its_source_is_behind_them(
    run_topology: Any, tmp_path: Path
) -> None:
    """It comes into one epoch with rows that have numbers without the driver having made objects of them."""
    world = WORLDS["replayed"] = World()

    def in_pieces(many: int) -> Topology:
        t = Topology("ordered")
        source = t.spout("events", Pieces("replayed", 4, many))
        counted = t.bolt("count", count, parallelism=1).fields(source, "key", ordered=True)
        t.sink("out", jsonl(tmp_path / "out"), parallelism=1).shuffle(counted)
        return t

    world.fails["count", 1] = FOR_GOOD
    summary = run_topology(in_pieces(4), tmp_path / "state", epoch_max_messages=8)
    assert (summary.acked, summary.dead) == (3, 1)
    deadletters.request_replay(tmp_path / "state", None)
    world.fails.update({("count", number): 2 for number in (1, 4, 5, 9, 13)})
    run_topology(in_pieces(40), tmp_path / "state", epoch_max_messages=8)
    rows = sorted((row["key"], row["place"], row["number"]) for row in read_rows(tmp_path / "out"))
    assert [number for key, _, number in rows if key == "a"] == [0, 2, 3, 1]
    assert [number for key, _, number in rows if key == "b"] == [*range(4, 40)]


@bolt
def unanchored(event: Event, out: Collector[Event]) -> None:
    if event.number % 4 == 1:
        out.emit(event, anchors=())
    else:
        out.emit(event)


def test_what_belongs_to_no_message_stays_behind_what_its_sender_sent_before_it(
    run_topology: Any, tmp_path: Path
) -> None:
    WORLDS["unanchored"] = World()
    t = Topology("ordered")
    source = t.spout("events", items([Event("unanchored", "a", number) for number in range(12)]))
    sent = t.bolt("unanchored", unanchored, parallelism=1).shuffle(source)
    counted = t.bolt("count", count, parallelism=1).fields(sent, "key", ordered=True)
    t.sink("out", jsonl(tmp_path / "out"), parallelism=1).shuffle(counted)
    run_topology(t, tmp_path / "state", epoch_max_messages=4)
    rows = sorted((row["place"], row["number"]) for row in read_rows(tmp_path / "out"))
    assert [number for _, number in rows] == [*range(12)]


class Growing(Spout[Event]):
    """Gives so many events of one key; a later start may find more."""

    def __init__(self, world: str, many: int, *, ends: bool) -> None:
        self.world, self.many, self.ends, self.at = world, many, ends, 0

    def next(self) -> Emit[Event] | None:
        if self.at >= self.many:
            if self.ends:
                raise EndOfInput
            return None
        self.at += 1
        return Emit(Event(self.world, "a", self.at - 1), self.at - 1)

    def snapshot(self) -> int:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position


def test_what_waits_when_an_ordered_input_is_added_is_earlier_than_all_that_comes(
    start_topology: Any, tmp_path: Path
) -> None:
    world = WORLDS["added"] = World({("count", 2): 1, ("count", 0): 1})

    def grown(many: int, *, ordered: bool) -> Topology:
        t = Topology("ordered")
        source = t.spout("events", Growing("added", many, ends=ordered))
        counted = t.bolt("count", count, parallelism=1).fields(source, "key", ordered=ordered)
        t.sink("out", jsonl(tmp_path / "out"), parallelism=1).shuffle(counted)
        return t

    slow = {"backoff_initial_ms": 3000.0, "backoff_max_ms": 3000.0, "backoff_jitter": 0.0}
    run = start_topology(grown(4, ordered=False), tmp_path / "state", **slow)
    until(lambda: run.progress().acked >= 2)
    run.stop(2.0)
    assert {number for number, is_good in world.calls["count"] if is_good} == {1, 3}
    summary = start_topology(grown(8, ordered=True), tmp_path / "state", **slow).wait(30)
    assert summary.dead == 0
    rows = sorted((row["place"], row["number"]) for row in read_rows(tmp_path / "out"))
    assert [number for _, number in rows] == [1, 3, 0, 2, 4, 5, 6, 7]


@bolt
def first_only(placed: Placed) -> Placed | None:
    return placed if placed.number == 0 else None


@window_bolt(count=50, extend_timeout=True)
def gather(window: Window[Placed]) -> None:
    return None


def test_the_newest_row_is_known_by_its_number_where_earlier_ones_wait_for_a_window(
    run_topology: Any, tmp_path: Path
) -> None:
    """The row of the first message is published last, as a window keeps that to the end."""
    WORLDS["window"] = World()
    t = Topology("ordered")
    source = t.spout("events", items([Event("window", "a", number) for number in range(8)]))
    counted = t.bolt("count", count, parallelism=1).fields(source, "key", ordered=True)
    t.bolt("gather", gather, parallelism=1).global_(t.bolt("first", first_only).shuffle(counted))
    t.sink("out", jsonl(tmp_path / "out", made=True), parallelism=1).shuffle(counted)
    summary = run_topology(t, tmp_path / "state", epoch_max_messages=2)
    assert summary.acked == 8
    rows = [*read_rows(tmp_path / "out")]
    assert [row["number"] for row in sorted(rows, key=lambda row: row["place"])] == [*range(8)], "the calls"
    assert [row["number"] for row in sorted(rows, key=lambda row: row["_made"])] == [*range(8)]
    assert [row["number"] for row in read_rows(tmp_path / "out", latest_by="key")] == [7]


# --- what is refused --------------------------------------------------------------------------------------------------


def refusal(t: Topology) -> str:
    with pytest.raises(TopologyError) as raised:
        refuse_unsupported(t.build())
    return str(raised.value)


class Again(Spout[Event]):
    """Emits what failed again by itself."""

    def next(self) -> Emit[Event]:
        return Emit(Event("", "a", 0), 0)


def test_a_source_that_makes_the_retries_itself_is_refused() -> None:
    t = Topology("again")
    counted = t.bolt("count", count).fields(t.spout("events", Again(), replay="source"), "key", ordered=True)
    t.sink("out", jsonl("never")).shuffle(counted)
    text = refusal(t)
    assert "the source emits failed messages again by itself, and an input of 'count' behind it is ordered" in text
    assert "leave out replay" in text


def test_a_cycle_before_an_ordered_input_is_refused() -> None:
    t = Topology("cycle", allow_cycle=True)
    first = t.bolt("first", parse).shuffle(t.spout("events", items([Event("", "a", 0)])))
    second = t.bolt("second", parse).shuffle(first)
    first.shuffle(second)
    t.sink("out", jsonl("never")).shuffle(t.bolt("last", count).fields(second, "key", ordered=True))
    assert "it is part of a cycle, and an input of 'last' behind it is ordered" in refusal(t)


BY_HAND = "it acks or fails by hand what comes from 'events', which is before an ordered input"


def test_a_bolt_behind_an_ordered_input_that_settles_by_hand_is_refused() -> None:
    t = Topology("by-hand")
    counted = t.bolt("count", count).fields(t.spout("events", items([Event("", "a", 0)])), "key", ordered=True)
    t.sink("out", jsonl("never")).shuffle(t.bolt("by_hand", by_hand).shuffle(counted))
    assert BY_HAND in refusal(t)


@bolt(auto_ack=False)
def beside_by_hand(event: Event, out: Collector[Event]) -> None:
    out.emit(event)
    out.ack(event)


def test_a_bolt_beside_an_ordered_input_that_settles_by_hand_is_refused() -> None:
    t = Topology("beside")
    events = t.spout("events", items([Event("", "a", 0)]))
    others = t.spout("others", items([Event("", "a", 0)]))
    counted = t.bolt("count", count).fields(events, "key", ordered=True)
    beside = t.bolt("beside", beside_by_hand).shuffle(events)
    allowed = t.bolt("allowed", beside_by_hand).shuffle(others)
    t.sink("out", jsonl("never")).shuffle(counted)
    t.sink("rest", jsonl("never either")).shuffle(beside).shuffle(allowed)
    text = refusal(t)
    assert BY_HAND in text
    assert "bolt 'beside'" in text
    assert "bolt 'allowed'" not in text
    assert "read the source with a second spout for this bolt" in text
