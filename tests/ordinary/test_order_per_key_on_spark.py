"""O8 on Spark: ordered inputs, with the driver, stages and files of the Spark runtime in this process.

What random faults do to them is in tests/simulator/test_ordered_on_spark.py. Tasks are copies there, so what these
bolts share with the tests is kept beside them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import run_topology, start_topology
from tupletree import Collector, Emit, KeyedState, PermanentError, Spout, Topology, bolt
from tupletree.errors import TopologyError
from tupletree.runtimes.api import Summary
from tupletree.runtimes.spark.supported import refuse_unsupported
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items

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


def test_a_bolt_behind_an_ordered_input_that_settles_by_hand_is_refused() -> None:
    t = Topology("by-hand")
    counted = t.bolt("count", count).fields(t.spout("events", items([Event("", "a", 0)])), "key", ordered=True)
    t.sink("out", jsonl("never")).shuffle(t.bolt("by_hand", by_hand).shuffle(counted))
    assert "it acks or fails by hand, and an input of 'count' before it is ordered" in refusal(t)
