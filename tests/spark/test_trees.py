"""Trees across epochs, end to end on Spark: what is held, what waits for it, what fails when a part is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.helpers_semantics import HEARD, Feed, finish
from tests.spark.tapped import HANG_S, TANKS, Tank, Tap, wait_until
from tests.statedirs import open_state_dir
from tupletree import KeyedState, PermanentError, TaskContext, Topology, batch_bolt, bolt
from tupletree.clock import ManualClock, SystemClock
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.runtimes.run import why
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker
from tupletree.runtimes.spark.driver.history import all_facts
from tupletree.runtimes.spark.driver.recovery import recover
from tupletree.runtimes.spark.driver.rescale import Rescaler
from tupletree.runtimes.spark.format.program import codecs_of
from tupletree.runtimes.spark.format.spool import lasting_fingerprint
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.sinks import foreach, jsonl, read_rows
from tupletree.sources.text import Line
from tupletree.testing.conformance.messages import Item, numbered
from tupletree.tracking.outcomes import FailureKind
from tupletree.tracking.pending import Pending
from tupletree.tracking.retry import RetryPolicy


class Pair(msgspec.Struct, frozen=True):
    """Several items, as one tuple."""

    numbers: list[int]
    attempt: int = 0


class Part(msgspec.Struct, frozen=True):
    """A part of an item that takes a way of its own."""

    number: int


ONE_BY_ONE = {"epoch_max_messages": 1, "max_spout_pending": 50}


def rows_of(out: Path, field: str = "numbers") -> list[Any]:
    """What a plain reader sees; nothing before the folder is there."""
    return [row[field] for row in read_rows(out)] if out.exists() else []


@bolt
def item_of(line: Line) -> Item:
    return Item(int(line.text))


@bolt(outputs=(Item, Part))
def in_two(item: Item) -> Iterator[Item | Part]:
    yield item
    yield Part(item.number)


@batch_bolt(size=3, max_age_s=600.0)
def by_three(items: list[Item]) -> Pair:
    return Pair([item.number for item in items])


@batch_bolt(size=2, max_age_s=600.0)
def by_two(items: list[Item]) -> Pair:
    return Pair([item.number for item in items])


def tank(name: str, count: int, allowed: int) -> Tank:
    TANKS[name] = Tank([str(number) for number in range(count)], allowed)
    return TANKS[name]


def test_a_batch_fills_over_epochs_and_what_is_left_goes_out_at_the_end(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("thirds")
    source = t.spout("source", Feed("thirds", Item, numbered([*map(Item, range(20))]), batch=2))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("by_three", by_three).global_(source))
    result = finish(run_topology, t, tmp_path, epoch_max_messages=2)
    batches = [row["numbers"] for row in result.rows("out")]
    assert sorted(number for numbers in batches for number in numbers) == [*range(20)]
    assert Counter(map(len, batches)) == {3: 6, 2: 1}
    assert Counter(HEARD["thirds"].acked) == Counter(range(20))
    assert not [*(tmp_path / "state" / "kept").iterdir()]


def test_outputs_wait_for_the_trees_they_are_anchored_to_and_so_do_acks(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    source = tank("waiting", 3, allowed=2)
    t = Topology("waiting")
    parts = t.bolt("in_two", in_two).shuffle(t.bolt("items", item_of).shuffle(t.spout("tap", Tap("waiting"))))
    t.sink("direct", jsonl(tmp_path / "direct")).shuffle(parts.stream(Part))
    t.sink("held", jsonl(tmp_path / "held")).shuffle(t.bolt("by_three", by_three).global_(parts.stream(Item)))
    handle = start_topology(t, tmp_path / "state")
    wait_until(handle, lambda progress: progress.epoch >= 0 and progress.open == 2)
    assert rows_of(tmp_path / "direct", "number") == []
    assert not source.acked
    source.open_all()
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.open) == (3, 0)
    assert Counter(rows_of(tmp_path / "direct", "number")) == Counter(range(3))
    assert [sorted(numbers) for numbers in rows_of(tmp_path / "held")] == [[0, 1, 2]]
    assert summary.outputs == {"direct": 3, "held": 1}
    told = {
        event.message_id: [one.what for one in why(tmp_path / "state", str(event.message_id))]
        for event in all_facts(tmp_path / "state")
    }
    assert told == {1: ["open", "acked"], 2: ["open", "acked"], 3: ["acked"]}


@bolt(outputs=(Item, Part))
def ones_in_two(item: Item) -> Iterator[Item | Part]:
    yield item
    if item.number == 1:
        yield Part(item.number)


@batch_bolt(size=3, max_age_s=600.0)
def together(parts: list[Part]) -> list[Part]:
    return parts


def test_a_message_that_is_complete_is_not_acked_while_an_output_of_it_waits_for_another_message(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    source = tank("withheld", 3, allowed=2)
    t = Topology("withheld")
    parts = t.bolt("parts", ones_in_two).shuffle(t.bolt("items", item_of).shuffle(t.spout("tap", Tap("withheld"))))
    t.sink("pairs", jsonl(tmp_path / "pairs")).shuffle(t.bolt("by_two", by_two).global_(parts.stream(Item)))
    t.sink("ones", jsonl(tmp_path / "ones")).shuffle(t.bolt("together", together).global_(parts.stream(Part)))
    handle = start_topology(t, tmp_path / "state", **ONE_BY_ONE)
    # The first one has nothing but its place in the pair, which was made in epoch 1; a part of the other is held.
    progress = wait_until(handle, lambda progress: progress.epoch >= 1)
    assert (progress.acked, progress.open) == (0, 2)
    assert rows_of(tmp_path / "pairs") == []
    source.open_all()
    assert handle.wait(HANG_S).acked == 3
    assert sorted(map(sorted, rows_of(tmp_path / "pairs"))) == [[0, 1], [2]]
    assert source.acked == Counter(range(1, 4))


def test_a_stop_leaves_what_is_held_to_the_next_start(
    tmp_path: Path, start_topology: StartTopology, run_topology: RunTopology
) -> None:
    source = tank("stopped-held", 4, allowed=2)

    def build() -> Topology:
        t = Topology("stopped-held")
        parts = t.bolt("in_two", in_two).shuffle(t.bolt("items", item_of).shuffle(t.spout("tap", Tap("stopped-held"))))
        t.sink("direct", jsonl(tmp_path / "direct")).shuffle(parts.stream(Part))
        t.sink("held", jsonl(tmp_path / "held")).shuffle(t.bolt("by_three", by_three).global_(parts.stream(Item)))
        return t

    first = start_topology(build(), tmp_path / "state", message_timeout_s=300.0)
    wait_until(first, lambda progress: progress.epoch >= 0 and progress.open == 2)
    first.stop()
    assert (first.wait(HANG_S).acked, first.wait(HANG_S).open) == (0, 2)
    assert 200.0 < _time_left_s(build(), tmp_path, seconds_later=1e8) <= 300.0
    source.open_all()
    summary = run_topology(build(), tmp_path / "state", message_timeout_s=300.0)
    assert (summary.emitted, summary.acked, summary.open) == (4, 4, 0)
    assert Counter(rows_of(tmp_path / "direct", "number")) == Counter(range(4))
    assert sorted(map(sorted, rows_of(tmp_path / "held"))) == [[0, 1, 2], [3]]
    assert source.acked == Counter(range(1, 5))


def _time_left_s(topology: Topology, folder: Path, seconds_later: float) -> float:
    """How long a start that comes much later lets held messages live."""
    plan = Plan.of(topology.build(), Options(), partitions=2)
    (task,) = plan.tasks_of("tap")
    pending = Pending(RetryPolicy(), lambda bits: 1 << (bits - 1), lambda: 0.5, record_changes=True)
    pending.register(task.task_id, "tap")
    accounts = Accounts(plan.spec, pending, {task.task_id: "tap"})
    directory = open_state_dir(folder / "state", plan.spec.name, lasting_fingerprint(plan.spec))
    clock = ManualClock(monotonic=5.0, wall=SystemClock().wall() + seconds_later)
    sinks = {name: str(folder / name) for name in ("direct", "held")}
    codecs = codecs_of(plan)
    rescaler = Rescaler(directory, plan, EpochFrameMaker(plan, []), [], codecs)
    recover(directory, accounts, codecs, sinks, clock, rescaler)
    directory.close()
    assert len(accounts.trees) == 2
    assert len(accounts.waiting) == 1
    return accounts.trees.next_s() - accounts.ran_s(clock.monotonic())


@bolt(state=int)
def see(item: Item, times: KeyedState[int]) -> Item:
    times.value += 1
    return item if times.value == 1 else Item(-item.number)


@bolt
def refuse_once(pair: Pair, context: TaskContext) -> Pair:
    """Fails pairs with a 3 on their first two attempts, and pairs with a 5 for good."""
    if 3 in pair.numbers and context.attempt < 3:
        raise ConnectionError("not yet")
    if 5 in pair.numbers:
        raise PermanentError("no fives")
    return Pair(pair.numbers, context.attempt)


def test_what_fails_behind_a_batch_is_tried_again_from_there_and_not_from_its_source(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("in-place")
    source = t.spout("source", Feed("in-place", Item, numbered([*map(Item, range(8))]), batch=1))
    seen = t.bolt("see", see).fields(source, "number")
    pairs = t.bolt("by_two", by_two).global_(seen)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("refuse", refuse_once).shuffle(pairs))
    result = finish(run_topology, t, tmp_path, **ONE_BY_ONE, max_attempts=4)
    rows = result.rows("out")
    # Were a message emitted anew, its state would have seen it before, and its number be negative.
    assert all(number >= 0 for row in rows for number in row["numbers"])
    dead = set(result.dead)
    assert 5 in dead
    assert sorted(number for row in rows for number in row["numbers"]) == sorted(set(range(8)) - dead)
    assert [row["attempt"] for row in rows if 3 in row["numbers"]] in ([3], [])
    # A pair takes two epochs here: what the earlier one did is committed, the later one may be taken out of the state.
    assert all("stay" in letter.note or "does not hold" in letter.note for letter in result.letters)
    assert any("stay" in letter.note for letter in result.letters)


@batch_bolt(size=3, max_age_s=600.0)
def close_two(parts: list[Part]) -> list[Part]:
    """Fails part 1 for good, in an epoch of its own."""
    if any(part.number == 1 for part in parts):
        raise PermanentError("no ones")
    return parts


def test_a_dead_message_holds_back_no_output_that_it_shares_with_a_live_one(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("shared")
    source = t.spout("source", Feed("shared", Item, numbered([*map(Item, range(3))]), batch=1))
    parts = t.bolt("in_two", in_two).shuffle(source)
    # 0 and 1 are one row in epoch 1, and wait: their other parts are held until the third message has come.
    t.sink("pairs", jsonl(tmp_path / "pairs")).shuffle(t.bolt("by_two", by_two).global_(parts.stream(Item)))
    t.sink("parts", jsonl(tmp_path / "parts")).shuffle(t.bolt("close", close_two).global_(parts.stream(Part)))
    result = finish(run_topology, t, tmp_path, **ONE_BY_ONE)
    assert set(result.dead) == {1}
    assert sorted(map(sorted, rows_of(tmp_path / "pairs"))) == [[0, 1], [2]]
    assert sorted(rows_of(tmp_path / "parts", "number")) == [0, 2]
    assert sorted(HEARD["shared"].acked) == [0, 2]


def test_what_is_held_for_longer_than_the_timeout_fails_and_is_in_no_batch_after_its_last_attempt(
    tmp_path: Path, start_topology: StartTopology
) -> None:
    source = tank("expiring", 4, allowed=1)
    t = Topology("expiring")
    items = t.bolt("items", item_of).shuffle(t.spout("tap", Tap("expiring")))
    t.sink("held", jsonl(tmp_path / "held")).shuffle(t.bolt("by_three", by_three).global_(items))
    handle = start_topology(t, tmp_path / "state", message_timeout_s=0.3, max_attempts=2)
    wait_until(handle, lambda progress: progress.dead == 1)
    source.open_all()
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.dead, summary.failed) == (3, 1, 2)
    assert [sorted(numbers) for numbers in rows_of(tmp_path / "held")] == [[1, 2, 3]]
    assert source.dead == Counter([1])


CALLED: list[tuple[str, Any]] = []


def take_pairs(batch: Any) -> None:
    CALLED.extend((batch.id, row.number) for row in batch.rows)


def test_rows_that_waited_and_new_ones_of_an_epoch_are_one_batch_for_a_sink_that_is_called(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    CALLED.clear()
    t = Topology("called")
    source = t.spout("source", Feed("called", Item, numbered([*map(Item, range(7))]), batch=1))
    parts = t.bolt("in_two", in_two).shuffle(source)
    t.sink("called", foreach(take_pairs)).global_(parts.stream(Part))
    t.sink("held", jsonl(tmp_path / "held")).shuffle(t.bolt("by_three", by_three).global_(parts.stream(Item)))
    result = finish(run_topology, t, tmp_path, **ONE_BY_ONE)
    assert result.summary.acked == 7
    assert Counter(number for _, number in CALLED) == Counter(range(7))
    by_batch: dict[str, set[int]] = {}
    for batch_id, number in CALLED:
        by_batch.setdefault(batch_id, set()).add(number)
    assert {0, 1, 2} in by_batch.values()


@bolt(auto_ack=False)
def forget(pair: Pair) -> Pair:
    return pair


def test_what_is_kept_by_hand_when_a_part_of_it_is_committed_times_out_and_is_tried_from_there(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    t = Topology("forgotten")
    source = t.spout("source", Feed("forgotten", Item, numbered([*map(Item, range(2))]), batch=1))
    held = t.bolt("by_two", by_two).global_(source)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("forget", forget).shuffle(held))
    result = finish(run_topology, t, tmp_path, message_timeout_s=0.3, max_attempts=2, **ONE_BY_ONE)
    assert set(result.dead) == {0, 1}
    assert {letter.failure.kind for letter in result.letters} == {FailureKind.TIMEOUT}
