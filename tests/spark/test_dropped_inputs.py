"""An input of a holder is gone while tuples of it are held: dropped on request, and messages go on without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import SPARK_NIGHTLY, StartTopology
from tests.spark.tapped import wait_until
from tests.spark.upgrading import LONG, Feed, begin, complete, crash, planned
from tupletree import Topology, batch_bolt, bolt, join_bolt, window_bolt
from tupletree.errors import CheckpointError
from tupletree.runtimes.api import Progress
from tupletree.sinks import jsonl, read_rows

OTHER = 100
"""What the numbers of the second source begin with."""
LATER = 50_000
"""What those of marks begin with: no line is that close."""
END = 6
SOME_HOURS_S = 10_000.0


class Line(msgspec.Struct, frozen=True):
    number: int
    key: int = 0


class Mark(msgspec.Struct, frozen=True):
    number: int
    key: int = 0


class Held(msgspec.Struct, frozen=True):
    number: int
    together: int


@bolt
def passed(line: Line) -> Line:
    return line


FAILING: set[int] = set()


@batch_bolt(size=100, max_age_s=SOME_HOURS_S)
def batch(lines: list[Line]) -> list[Held]:
    return [Held(line.number, len(lines)) for line in lines]


@batch_bolt(size=2 * END, max_age_s=SOME_HOURS_S)
def full(lines: list[Line]) -> list[Held]:
    if FAILING.intersection(line.number for line in lines):
        raise RuntimeError("as asked for")
    return [Held(line.number, 0) for line in lines]


@window_bolt(length_s=SOME_HOURS_S, timestamp="number", lag_s=0, per_key=True, extend_timeout=True)
def window(lines: list[Line]) -> list[Held]:
    return [Held(line.number, len(lines)) for line in lines]


@window_bolt(gap_s=SOME_HOURS_S, timestamp="number", lag_s=0, per_key=True, extend_timeout=True)
def session(lines: list[Line]) -> list[Held]:
    return [Held(line.number, len(lines)) for line in lines]


@join_bolt(within_s=SOME_HOURS_S, timestamp="number", lag_s=0, extend_timeout=True)
def join(line: Line, mark: Mark | None) -> Held:
    return Held(line.number, 1 if mark is None else 2)


HOLDERS: Mapping[str, Any] = {"batch": batch, "full": full, "window": window, "session": session, "join": join}


@dataclass
class World:
    """What the sources are told, and how the topology looks.

    Attributes:
        holder: which bolt holds.
        feed: what the second input of it is: `spout`, a `bolt` behind that, or a bolt behind the `same` spout as the
            first one.
        has_input: whether it is there.
        keeps_feed: whether its producer stays, for a sink, when the input is gone.
    """

    place: Path
    holder: str = "batch"
    feed: str = "spout"
    has_input: bool = True
    keeps_feed: bool = True
    lines: Counter[Any] = field(default_factory=Counter)
    more: Counter[Any] = field(default_factory=Counter)

    @property
    def words(self) -> tuple[str, ...]:
        """What says that the input may go."""
        producer = "more" if self.feed == "spout" else "passed"
        return f"hold.{producer}.Line", *["passed", "copies"] * (not self.keeps_feed)

    def topology(self, *, waits: bool = False) -> Topology:
        t = Topology("feeds")
        lines = t.spout("lines", Feed(Line, END, waits=waits, heard=self.lines))
        more = t.spout("more", Feed(lambda number: Line(OTHER + number), END, waits=waits, heard=self.more))
        t.sink("raw", jsonl(self.place / "raw")).shuffle(more)
        feed: Any = more
        if self.feed != "spout":
            feed = None
            if self.has_input or self.keeps_feed:
                feed = t.bolt("passed", passed).shuffle(more if self.feed == "bolt" else lines)
                t.sink("copies", jsonl(self.place / "copies")).shuffle(feed)
        hold = t.bolt("hold", HOLDERS[self.holder])
        for source in (lines, feed) if self.has_input else (lines,):
            hold.fields(source, "key") if self.holder in {"window", "session", "join"} else hold.shuffle(source)
        if self.holder == "join":
            hold.fields(t.spout("marks", Feed(lambda number: Mark(LATER + number), 2, waits=waits)), "key")
        t.sink("held", jsonl(self.place / "held")).shuffle(hold)
        return t

    def rows(self, folder: str = "held") -> Counter[int]:
        return Counter(row["number"] for row in read_rows(self.place / folder))

    def held(self, now: Progress) -> int:
        return sum(hold.count for hold in now.holds if hold.component == "hold")

    def hold_all(self, start: Callable[..., Any]) -> None:
        """A first version, stopped while everything is held."""
        handle = start(self.topology(waits=True))
        tuples = 2 * END + (2 if self.holder == "join" else 0)
        wait_until(handle, lambda now: self.held(now) == tuples)
        handle.stop(10.0)
        handle.wait(60.0)
        self.has_input = False


POINTS = ("generation.claimed", "upgrade.written", "settle.before_log", "settle.after_log")


def of_all_kinds() -> list[Any]:
    """Every holder with every producer, which stays or goes; some of them at night only."""
    holders, feeds = ("batch", "window", "session", "join"), ("spout", "bolt", "same")
    kinds = [*product(holders, feeds, (True,)), *product(holders, feeds[1:], (False,))]
    quick = [("batch", "spout", True), ("window", "bolt", False), ("session", "same", True), ("join", "same", False)]
    return [pytest.param(*kind, marks=[] if kind in quick else [pytest.mark.nightly]) for kind in kinds]


@pytest.mark.parametrize(("holder", "feed", "keeps_feed"), of_all_kinds())
def test_messages_go_on_without_what_is_held_of_an_input_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str, feed: str, *, keeps_feed: bool
) -> None:
    """With kills at each step of the change; what is held of other inputs, also for the same messages, is held on."""
    world = World(tmp_path, holder, feed, keeps_feed=keeps_feed)
    world.hold_all(lambda t: begin(t, tmp_path))
    t = world.topology()
    with pytest.raises(CheckpointError) as refused:
        begin(t, tmp_path)
    assert f"--drop {world.words[0]}" in str(refused.value)
    assert "it holds 6 tuples of" in str(refused.value)
    plan = planned(t, tmp_path, drops=world.words)
    assert not plan.faults
    assert next(one.change for one in plan.steps if one.component == "hold").endswith("; 6 held tuples of it dropped")
    for point in POINTS:
        crash(world.topology(waits=True), tmp_path, point, monkeypatch, drops=world.words)
    handle = begin(world.topology(waits=True), tmp_path, drops=world.words)
    marks = 2 if holder == "join" else 0
    wait_until(handle, lambda now: world.held(now) == END + marks == now.open and len(world.more) == END)
    assert bool(world.lines) is False
    handle.stop(10.0)
    handle.wait(30.0)
    assert not planned(world.topology(), tmp_path).is_change
    ended = complete(world.topology(), tmp_path)
    assert (ended.open, ended.dead) == (0, 0)
    assert ended.acked == 2 * END + marks
    assert world.rows() == Counter(range(1, END + 1))
    assert set(world.lines) == {("acked", number) for number in range(1, END + 1)}
    assert world.rows("raw") == Counter(range(OTHER + 1, OTHER + END + 1))
    if keeps_feed and feed != "spout":
        first = 0 if feed == "same" else OTHER
        assert world.rows("copies") == Counter(range(first + 1, first + END + 1))


def test_a_message_that_waits_for_an_attempt_at_the_holder_is_done_without_its_tuple(tmp_path: Path) -> None:
    """The attempt is not made: the tuple that it was for is dropped."""
    FAILING.add(OTHER + 1)
    try:
        world = World(tmp_path, "full")
        handle = begin(world.topology(waits=True), tmp_path, epoch_max_messages=4, **LONG)
        wait_until(handle, lambda now: (now.emitted, now.failed) == (2 * END, 1))
        handle.stop(10.0)
        assert handle.wait(30.0).open == 2 * END
        world.has_input = False
        assert "6 held tuples of it dropped" in str(planned(world.topology(), tmp_path, drops=world.words).steps)
        ended = complete(world.topology(), tmp_path, drops=world.words, **LONG)
    finally:
        FAILING.clear()
    assert (ended.acked, ended.open, ended.dead) == (2 * END, 0, 0)
    assert world.more == Counter([("acked", number) for number in range(1, END + 1)])
    assert world.rows() == Counter(range(1, END + 1))


def test_an_input_that_comes_back_begins_with_what_is_new(tmp_path: Path) -> None:
    """What was dropped stays so, also where the input is there again before the holder has had anything to do."""
    world = World(tmp_path)
    world.hold_all(lambda t: begin(t, tmp_path))
    handle = begin(world.topology(waits=True), tmp_path, drops=world.words)
    wait_until(handle, lambda now: now.acked == END)
    handle.stop(10.0)
    handle.wait(30.0)
    world.has_input = True
    ended = complete(world.topology(), tmp_path)
    assert (ended.acked, ended.open, ended.dead) == (2 * END, 0, 0)
    assert set(world.rows()) == {*range(1, END + 1)}


@SPARK_NIGHTLY
def test_an_input_is_dropped_on_spark(tmp_path: Path, start_topology: StartTopology) -> None:
    world = World(tmp_path, "window", "bolt")
    world.hold_all(partial(start_topology, state_dir=tmp_path / "state"))
    t = world.topology()
    assert not planned(t, tmp_path, drops=world.words).faults
    ended = start_topology(t, tmp_path / "state", drops=world.words).wait(120.0)
    assert (ended.acked, ended.open, ended.dead) == (2 * END, 0, 0)
    assert world.rows() == Counter(dict.fromkeys(range(1, END + 1), 1))
