"""Bolts that hold tuples by hand: what a release means, what fails, and what an instance that follows another gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from tupletree import ConnectorError, Held, HoldingBolt, Release, Retry, TaskContext, Topology, TopologyError, testing
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.factory import holder_of
from tupletree.bolts.held import Holder
from tupletree.data.frames import Frame, Root, join_segments
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item


class Total(msgspec.Struct, frozen=True):
    numbers: list[int]


class Pairs(HoldingBolt[Item]):
    """Releases two at a time. Asked for 13 it raises, for 14 it meets an outage as long as `away` says."""

    output_types = (Total,)
    away = 0

    def open(self, context: TaskContext) -> None:
        self.kept: list[Held[Item]] = []
        self.forgotten: list[int] = []

    def take(self, tuples: Sequence[Held[Item]]) -> Iterable[Release]:
        for one in tuples:
            if one.value.number == 13:
                raise ValueError("13")
            if one.value.number == 14 and Pairs.away:
                Pairs.away -= 1
                raise ConnectorError("away")
        self.kept += tuples
        released = []
        while len(self.kept) >= 2:
            released.append(Release(self.kept[:2], [Total([one.value.number for one in self.kept[:2]])]))
            del self.kept[:2]
        return released

    def due_s(self) -> float | None:
        return self.kept[0].since_s + 10.0 if self.kept else None

    def check(self, time_s: float) -> Iterable[Release]:
        if any(one.value.number == 15 for one in self.kept):
            raise ValueError("15")
        kept, self.kept = self.kept, []
        return [Release(kept, [Total([one.value.number for one in kept])])] if kept else []

    def forget(self, tuples: Sequence[Held[Item]]) -> None:
        self.kept = [one for one in self.kept if one not in tuples]
        self.forgotten += [one.value.number for one in tuples]


def a_task(made: list[Pairs] | None = None, retry: Retry | None = None) -> tuple[Holder, TaskPlace]:
    def make() -> Pairs:
        bolt = Pairs()
        if made is not None:
            made.append(bolt)
        return bolt

    t = Topology("held")
    t.bolt("pairs", make, retry=retry, unconsumed=Total).shuffle(t.spout("items", items([Item(0)])))
    place = TaskPlace("held", "pairs", 5, 0, 1, retry=retry)
    place.waits = True
    task = holder_of(t.build().components["pairs"], place)
    assert task is not None
    task.open()
    return task, place


def frame(number: int, *segments: tuple[Root, list[int]]) -> Frame:
    values, roots, ends = join_segments([(root, [*map(Item, numbers)]) for root, numbers in segments])
    return Frame(5, "items", "Item", values, roots, ends, number)


def outputs(worked: Any) -> list[tuple[Root, list[int]]]:
    return [(root, one.numbers) for output in worked.outputs for root, one in zip(output.roots, output.values)]


def test_values_are_anchored_to_all_tuples_of_their_release_which_are_done() -> None:
    task, place = a_task()
    worked = task.work(frame(8, (1, [10]), (2, [11]), (3, [12])))
    assert outputs(worked) == [((1, 2), [10, 11])]
    assert worked.done == [(8, [1, 2])]
    assert task.due_s == place.epoch_time_s + 10.0
    assert [one.frame.roots for one in task.held()] == [[3]]
    place.epoch_time_s += 10.0
    assert task.due_s == place.epoch_time_s
    worked = task.advance()
    assert (outputs(worked), worked.done, task.is_holding) == ([(3, [12])], [(8, [3])], False)


def test_one_that_raises_fails_alone() -> None:
    made: list[Pairs] = []
    task, _ = a_task(made)
    worked = task.work(frame(8, (1, [10]), (2, [13]), (3, [12])))
    assert worked.failures.keys() == {2}
    assert outputs(worked) == [((1, 3), [10, 12])]
    assert made[-1].forgotten == [13]


def test_what_a_check_raises_fails_all_that_is_kept_and_the_bolt_forgets_it() -> None:
    made: list[Pairs] = []
    task, _ = a_task(made)
    task.work(frame(8, (1, [15])))
    worked = task.advance()
    assert worked.failures.keys() == {1}
    assert not task.is_holding
    assert (made[-1].forgotten, made[-1].kept) == ([15], [])


def test_a_policy_says_which_exceptions_are_outages_and_how_failures_are_tried_again() -> None:
    task, _ = a_task(retry=Retry(on={ValueError: Retry.OUTAGE}))
    worked = task.work(frame(8, (1, [13])))
    assert (type(worked.outage), worked.failures) == (ValueError, {})
    task, _ = a_task(retry=Retry(attempts=8))
    rule = task.work(frame(8, (1, [13]))).failures[1].retry
    assert rule is not None
    assert rule.attempts == 8


def test_an_outage_lets_the_tuples_wait_and_the_call_is_made_again() -> None:
    task, _ = a_task()
    Pairs.away = 2
    worked = task.work(frame(8, (1, [10]), (2, [14])))
    assert worked.outage is not None
    assert [*task.waiting()] == [1, 2]
    assert task.resume().outage is not None
    worked = task.resume()
    assert (worked.outage, outputs(worked)) == (None, [((1, 2), [10, 14])])


def test_an_instance_that_follows_another_gets_what_was_held_and_nothing_of_what_waits() -> None:
    before, _ = a_task()
    before.work(frame(8, (1, [10])))
    made: list[Pairs] = []
    after, _ = a_task(made)
    after.restore(before.held(), before.memory())
    worked = after.work(frame(9, (2, [11])))
    assert (outputs(worked), sorted(worked.done)) == ([((1, 2), [10, 11])], [(8, [1]), (9, [2])])

    later, _ = a_task(made)
    later.restore(before.held(), before.memory(), waiting={1})
    worked = later.work(frame(9, (2, [11])))
    assert (outputs(worked), worked.done) == ([], [])
    assert [one.frame.roots for one in later.held()] == [[1], [2]]


def test_what_is_over_elsewhere_is_forgotten_by_the_bolt_too() -> None:
    made: list[Pairs] = []
    task, _ = a_task(made)
    task.work(frame(8, (1, [10])))
    task.forget({1})
    assert (made[-1].forgotten, task.is_holding) == ([10], False)
    assert outputs(task.flush()) == []


def test_it_runs_in_the_test_kit() -> None:
    t = Topology("held")
    t.bolt("pairs", Pairs, unconsumed=Total).shuffle(t.spout("items", items([Item(0)])))
    ended = testing.run(t, {"items": [Item(number) for number in (1, 2, 13, 3)]}, options={"max_attempts": 1})
    assert [one.acked for one in ended.messages["items"]] == [True, True, False, True]


def test_faults_are_named() -> None:
    class Idle(HoldingBolt[Item]): ...

    class Waiting(HoldingBolt[Item]):
        async def take(self, tuples: Sequence[Held[Item]]) -> Iterable[Release]:  # type: ignore[override]  # the fault
            return ()

    t = Topology("held")
    source = t.spout("items", items([Item(0)]))
    t.bolt("idle", Idle).shuffle(source)
    t.bolt("waiting", Waiting).shuffle(source)
    with pytest.raises(TopologyError) as caught:
        t.build()
    assert [one.what for one in caught.value.findings] == [
        "the bolt has no `take`",
        "`take` of a bolt that holds tuples is async",
    ]


def test_when_it_is_due_is_known_when_it_has_been_closed() -> None:
    task, place = a_task()
    task.work(frame(8, (1, [10])))
    task.close()
    assert task.due_s == place.epoch_time_s + 10.0
