"""`pending=`: one spout has a limit of its own, and the others have theirs, on both runtimes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin
from tests.ordinary.conftest import begin_in_process
from tests.tasks.streams import Line
from tests.until import until
from tupletree import (
    Emit,
    EndOfInput,
    Options,
    Spout,
    TaskContext,
    Topology,
    TopologyError,
    Window,
    bolt,
    testing,
    window_bolt,
)
from tupletree.ids import MessageId
from tupletree.queues import Message, QueueMessage, open_queue
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import jsonl
from tupletree.sources import items, queue
from tupletree.topology.limits import refuse_stuck

LIMIT = 10
BATCH = 25
COUNT = 200

Begin = Callable[..., RunHandle]


def begin_local(t: Topology, state_dir: Path, **options: Any) -> RunHandle:
    """With the options that tests on Spark have."""
    return begin(t, state_dir, **{"backoff_initial_ms": 1.0, "spout_idle_wait_ms": 5.0, **options})


RUNTIMES = pytest.mark.parametrize("start", [begin_local, begin_in_process], ids=["local", "in process"])


@dataclass
class Books:
    """What is known of one spout's messages.

    Attributes:
        given: those that the spout gave.
        acked: how often each was.
        worked: those that were.
        most_open: of these, those that were not acked, at most. On Spark acks are told a little late.
        epochs: epoch time → those that were worked in it, on Spark.
    """

    given: set[int] = field(default_factory=set)
    acked: Counter[MessageId] = field(default_factory=Counter)
    worked: set[int] = field(default_factory=set)
    most_open: int = 0
    epochs: dict[float, set[int]] = field(default_factory=lambda: defaultdict(set))

    def most(self, start: Begin) -> int:
        """How many of them were open together at most."""
        return self.most_open if start is begin_local else max(map(len, self.epochs.values()))


BOOKS: dict[str, Books] = {}


class Delivering(Spout[Line]):
    """As a broker: no position, batches of 25, and what is not acked is given again by the next start."""

    def __init__(self, name: str, batch: int = BATCH) -> None:
        self.name = name
        self.batch = batch
        BOOKS[name] = Books()

    def open(self, context: TaskContext) -> None:
        self.ready = [number for number in range(COUNT) if not BOOKS[self.name].acked[number]]

    def next(self) -> list[Emit[Line]]:
        if not self.ready:
            raise EndOfInput
        batch, self.ready = self.ready[: self.batch], self.ready[self.batch :]
        BOOKS[self.name].given.update(batch)
        return [Emit(Line(f"{self.name} {number}"), number) for number in batch]

    def ack(self, message_id: MessageId) -> None:
        BOOKS[self.name].acked[message_id] += 1


@bolt
def work(line: Line, context: TaskContext) -> None:
    """Every third message fails twice."""
    name, _, number = line.text.partition(" ")
    books = BOOKS[name]
    books.worked.add(int(number))
    books.most_open = max(books.most_open, sum(1 for one in books.worked if not books.acked[one]))
    books.epochs[context.epoch_time_s].add(int(number))
    if int(number) % 3 == 0 and context.attempt < 3:
        raise ValueError("not yet")


def two_spouts() -> tuple[Topology, Delivering]:
    t = Topology("limits")
    few = Delivering("few")
    t.bolt("work", work).shuffle(t.spout("few", few, pending=LIMIT)).shuffle(t.spout("many", Delivering("many")))
    return t, few


@RUNTIMES
def test_one_spout_keeps_to_its_limit_through_retries_and_another_one_does_not(start: Begin, tmp_path: Path) -> None:
    t, _ = two_spouts()
    assert start(t, tmp_path / "state").wait(HANG_S).acked == 2 * COUNT
    assert BOOKS["few"].most(start) == LIMIT
    assert BOOKS["many"].most(start) >= BATCH


HANDLES: list[RunHandle] = []
OPEN: list[int] = []
"""Messages that were open as calls began."""


@bolt
def look(line: Line) -> None:
    """Every third message fails, again and again."""
    if HANDLES:
        OPEN.append(HANDLES[-1].progress().open)
    if int(line.text.split()[1]) % 3 == 0 and len(HANDLES) < 3:
        raise ValueError("not yet")


@RUNTIMES
def test_a_spout_keeps_to_its_limit_over_restarts(start: Begin, tmp_path: Path) -> None:
    """In the end all that are open are those that fail, and no other is asked for.

    One by one: the drain of a stop emits what a spout has given, beside messages that wait for a retry.
    """
    OPEN.clear()
    HANDLES.clear()
    t = Topology("restarts")
    t.bolt("look", look).shuffle(t.spout("few", Delivering("few", 1), pending=LIMIT))
    options = {"durable": True, "max_attempts": 1_000_000, "backoff_initial_ms": 1.0, "backoff_max_ms": 5.0}
    for _ in range(2):
        HANDLES.append(start(t, tmp_path / "state", **options))
        until(lambda: HANDLES[-1].progress().failed > 100 * len(HANDLES), what=HANDLES[-1].progress)
        HANDLES[-1].stop()
        HANDLES[-1].wait(HANG_S)
        assert HANDLES[-1].progress().open == LIMIT
    HANDLES.append(start(t, tmp_path / "state", **options))
    assert HANDLES[-1].wait(HANG_S).dead == 0
    assert {*BOOKS["few"].acked} == {*range(COUNT)}
    assert max(OPEN) == LIMIT


@pytest.mark.parametrize("point", ["epoch.before_log", "epoch.after_log", "callbacks.before", "callbacks.after"])
def test_what_waits_beyond_the_limit_when_the_process_dies_on_spark_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    t, _ = two_spouts()
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == 4:
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        with pytest.raises(BaseException, match=point):
            begin_in_process(t, tmp_path / "state").wait(HANG_S)
    assert begin_in_process(t, tmp_path / "state").wait(HANG_S).open == 0
    assert {*BOOKS["few"].acked} == {*range(COUNT)}
    assert BOOKS["few"].most(begin_in_process) == LIMIT


class Positioned(Delivering):
    """With a position, which is after all that it has given."""

    def snapshot(self) -> int:
        return COUNT - len(self.ready)

    def restore(self, position: int) -> None:
        self.ready = [*range(position, COUNT)]


@RUNTIMES
def test_of_a_source_with_a_position_spark_takes_a_batch_that_it_began_to_the_end(start: Begin, tmp_path: Path) -> None:
    t = Topology("positions")
    t.bolt("work", work).shuffle(t.spout("few", Positioned("few"), pending=LIMIT))
    assert start(t, tmp_path / "state").wait(HANG_S).acked == COUNT
    most = BOOKS["few"].most(start)
    assert most == LIMIT if start is begin_local else LIMIT < most < LIMIT + BATCH


@RUNTIMES
def test_what_waits_beyond_the_limit_is_worked_by_the_drain_of_a_stop(start: Begin, tmp_path: Path) -> None:
    t, _ = two_spouts()
    handle = start(t, tmp_path / "state", max_attempts=1_000_000)
    until(lambda: BOOKS["few"].acked.total() >= LIMIT)
    handle.stop()
    handle.wait(HANG_S)
    assert BOOKS["few"].worked == BOOKS["few"].given


class Burst(Spout[Line]):
    """Gives all at once, and no position: what a run drops of it is lost."""

    def __init__(self, gather: Callable[[list[Emit[Line]]], Sequence[Emit[Line]]], *, ids: bool) -> None:
        self.batch = gather([Emit(Line(str(number)), number if ids else None) for number in range(COUNT)])

    def next(self) -> Sequence[Emit[Line]] | None:
        batch, self.batch = self.batch, []
        return batch or None


SEEN: list[str] = []


@bolt
def see(line: Line) -> None:
    SEEN.append(line.text)


@RUNTIMES
@pytest.mark.parametrize("gather", [list, deque])
@pytest.mark.parametrize("ids", [True, False])
def test_of_a_batch_far_beyond_the_limit_a_stop_loses_nothing(
    start: Begin, tmp_path: Path, gather: Callable[[list[Emit[Line]]], Sequence[Emit[Line]]], ids: bool
) -> None:
    SEEN.clear()
    t = Topology("burst")
    t.bolt("see", see).shuffle(t.spout("burst", Burst(gather, ids=ids)))
    options = {} if start is begin_local else {"epoch_max_messages": LIMIT}
    handle = start(t, tmp_path / "state", max_spout_pending=LIMIT, **options)
    until(lambda: len(SEEN) >= 2 * LIMIT)
    handle.stop()
    assert handle.wait(HANG_S).open == 0
    assert sorted(SEEN) == sorted(map(str, range(COUNT)))


@bolt
def count_open(message: QueueMessage) -> None:
    if HANDLES:
        OPEN.append(HANDLES[0].progress().open)


@RUNTIMES
def test_of_a_queue_that_leases_a_hundred_at_a_time_ten_are_open(start: Begin, tmp_path: Path) -> None:
    OPEN.clear()
    HANDLES.clear()
    url = f"sqlite:///{tmp_path}/shop.db?queue=orders"
    with open_queue(url) as orders:
        orders.publish([Message(id=f"m{number}", body=b"") for number in range(COUNT)])
    t = Topology("queues")
    t.bolt("count_open", count_open).shuffle(t.spout("orders", queue(url, follow=False, prefetch=100), pending=LIMIT))
    HANDLES.append(start(t, tmp_path / "state"))
    assert HANDLES[0].wait(HANG_S).acked == COUNT
    assert 1 < max(OPEN) <= LIMIT


def test_its_own_limit_counts_and_not_that_of_the_options() -> None:
    t = Topology("own", options={"max_spout_pending": 2})
    t.bolt("work", work).shuffle(t.spout("few", Delivering("few"), pending=LIMIT))
    assert all(one.acked for one in testing.run(t).messages["few"])
    assert 2 < BOOKS["few"].most(begin_local) <= LIMIT


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "10", True, 10**10])
def test_a_limit_that_cannot_be_is_named_with_its_place(wrong: Any) -> None:
    t = Topology("wrong")
    t.bolt("work", work).shuffle(t.spout("few", items([Line("")]), pending=wrong))
    with pytest.raises(TopologyError) as caught:
        t.build()
    [finding] = caught.value.findings
    assert "spout 'few' (" in finding.where
    assert finding.got == repr(wrong)
    assert "from 1 to 1,000,000,000" in str(finding)


def test_a_window_that_never_fills_is_refused_by_the_limits_of_its_spouts() -> None:
    @window_bolt(count=LIMIT + 1, extend_timeout=True)
    def gathers(lines: Window[Line]) -> None: ...

    t = Topology("windows")
    windows = t.bolt("gathers", gathers).shuffle(t.spout("few", items([Line("")]), pending=LIMIT))
    with pytest.raises(TopologyError, match=f"at most {LIMIT} messages may be open"):
        refuse_stuck(t.build(), Options(), None)
    windows.shuffle(t.spout("more", items([Line("")]), pending=1))
    refuse_stuck(t.build(), Options(), None)


def test_what_waits_for_its_sink_only_is_not_counted_locally(tmp_path: Path) -> None:
    """Or files would have ten rows."""
    t = Topology("files")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("few", Delivering("few"), pending=LIMIT))
    assert begin(t, tmp_path / "state").wait(HANG_S).acked == COUNT
    lines = [len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("*.jsonl")]
    assert sum(lines) == COUNT
    assert max(lines) > LIMIT
