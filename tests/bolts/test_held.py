"""What a holder keeps: it settles once per root and frame, and outlives the instance that held it."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tupletree import Topology, batch_bolt
from tupletree.bolts.batch import BatchTask
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.held import Holdings, together
from tupletree.data.frames import Frame, Root, join_segments, roots_of
from tupletree.sources import items
from tupletree.testing.conformance.messages import Item
from tupletree.tracking.outcomes import Failure, FailureKind


class Total(msgspec.Struct, frozen=True):
    numbers: list[int]


@batch_bolt(size=3, max_age_s=5.0)
def total(rows: list[Item]) -> Total:
    return Total([row.number for row in rows])


def a_task() -> tuple[BatchTask, TaskPlace]:
    t = Topology("held")
    t.bolt("total", total, unconsumed=Total).shuffle(t.spout("items", items([Item(0)])))
    place = TaskPlace("held", "total", 5, 0, 1)
    return BatchTask(t.build().components["total"], place), place


def frame(number: int, *segments: tuple[Root, list[int]]) -> Frame:
    values, roots, ends = join_segments([(root, [*map(Item, numbers)]) for root, numbers in segments])
    return Frame(5, "items", "Item", values, roots, ends, number)


def numbers_in(holdings: Holdings) -> list[tuple[int, list[Root], list[int]]]:
    return [(one.frame.id, one.frame.roots, [value.number for value in one.frame.values]) for one in holdings.held()]


def failure() -> Failure:
    return Failure(kind=FailureKind.ERROR)


def test_a_root_is_done_when_its_last_tuple_of_the_frame_is_settled() -> None:
    holdings = Holdings()
    first, second, third = holdings.take(frame(8, (1, [10, 11]), (2, [12])), 0.0)
    worked = Worked()
    holdings.settle([first, third], worked)
    assert worked.done == [(8, [2])]
    assert numbers_in(holdings) == [(8, [1], [11])]
    holdings.settle([second, second], worked)
    assert worked.done == [(8, [2]), (8, [1])]
    assert not holdings.held()
    assert len(holdings) == 0


def test_a_root_that_failed_is_not_done() -> None:
    holdings = Holdings()
    members = holdings.take(frame(8, (1, [10]), ((1, 2), [11])), 0.0)
    worked = Worked(failures={1: failure()})
    holdings.settle(members, worked)
    assert worked.done == [(8, [2])]


def test_what_is_held_comes_back_as_it_was() -> None:
    before, after = Holdings(), Holdings()
    before.take(frame(8, (1, [10, 11]), ((1, 2), [12]), (0, [13])), 3.0)
    before.take(frame(9, (3, [14])), 4.0)
    after.restore(before.held())
    assert numbers_in(after) == numbers_in(before)
    assert [one.since_s for one in after.held()] == [3.0, 4.0]


def test_what_failed_elsewhere_is_forgotten_and_what_others_share_with_it_stays_theirs() -> None:
    holdings = Holdings()
    own, shared, other, untracked = holdings.take(frame(8, (1, [10]), ((1, 2), [11]), (2, [12]), (0, [13])), 0.0)
    assert holdings.forget({1, 99}) == [own]
    assert not own.open
    assert together([shared, other, untracked]) == 2
    worked = Worked()
    holdings.settle([own, shared, other, untracked], worked)
    assert worked.done == [(8, [2])]
    assert len(holdings) == 0


def test_a_forgotten_message_is_in_no_batch() -> None:
    task, place = a_task()
    task.work(frame(8, (1, [10]), (2, [11])))
    task.forget({1})
    worked = task.work(frame(9, (3, [12])))
    assert not worked.outputs
    place.epoch_time_s = 5.0
    assert task.due_s == 5.0
    (output,) = task.advance().outputs
    assert output.values == [Total([11, 12])]
    assert output.roots == [(2, 3)]
    assert not task.is_holding


def test_a_batch_that_is_full_after_a_restore_is_due_at_once() -> None:
    task, _ = a_task()
    holdings = Holdings()
    holdings.take(frame(8, (1, [10]), (2, [11]), (3, [12])), 7.0)
    task.restore(holdings.held(), None)
    assert task.due_s == 7.0


roots = st.one_of(
    st.integers(0, 4), st.sets(st.integers(1, 4), min_size=2, max_size=3).map(lambda ids: (*sorted(ids),))
)
segments = st.lists(st.tuples(roots, st.lists(st.integers(0, 99), min_size=1, max_size=3)), min_size=1, max_size=4)


@given(st.lists(st.tuples(segments, st.booleans()), max_size=12))
def test_a_task_that_starts_anew_at_any_time_does_what_one_that_lives_on_does(
    frames: list[tuple[list[tuple[Root, list[int]]], bool]],
) -> None:
    living, living_place = a_task()
    reborn, reborn_place = a_task()
    for number, (parts, anew) in enumerate(frames, start=1):
        if anew:
            held, memory = reborn.held(), reborn.memory()
            reborn, reborn_place = a_task()
            reborn.restore(held, memory)
        living_place.epoch_time_s = reborn_place.epoch_time_s = float(number)
        for step in ("work", "advance"):
            one, other = [
                task.work(frame(number, *parts)) if step == "work" else task.advance() for task in (living, reborn)
            ]
            assert [(out.values, out.roots) for out in one.outputs] == [
                (out.values, out.roots) for out in other.outputs
            ]
            assert _done(one) == _done(other)
        assert living.due_s == reborn.due_s


def _done(worked: Worked) -> set[tuple[int, int]]:
    return {(frame_id, one) for frame_id, done in worked.done for root in done for one in roots_of(root)}
