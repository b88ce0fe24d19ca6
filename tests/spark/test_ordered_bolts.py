"""What is in front of a task with an ordered input, and what the driver makes of what it tells."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from tupletree import Topology, bolt
from tupletree.data.frames import Frame, roots_of
from tupletree.routing.hashing import stable_hash
from tupletree.routing.ordered_bolts import OrderedBolts
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, Messages
from tupletree.runtimes.spark.format.logged_messages import LoggedMessages
from tupletree.runtimes.spark.settle.epoch_order import Arrived, EpochOrder, Ordering
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.worker import lined_up
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.runtimes.spark.worker.ordered_input import OrderedInput
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.tracking.key_lines import ANY, Turn, Waiting
from tupletree.tracking.ledger import judge
from tupletree.tracking.outcomes import Failure, FailureKind


class Event(msgspec.Struct, frozen=True):
    key: str
    number: int


def places_of(roots: wire.U64) -> tuple[Any, Any]:
    """Message n of spout task 7 has root n."""
    return np.full(len(roots), 7, np.int64), roots.astype(np.int64)


def keys_of(values: list[Event]) -> list[str]:
    return [value.key for value in values]


def ordered_input(*, held: Any = (), left_out: Any = (), one_by_one: bool = False) -> OrderedInput:
    keys = {("left", "Event"): keys_of, ("right", "Event"): keys_of}
    return OrderedInput(keys, places_of, held, set(left_out), (1, 0, 0, -2, 5), one_by_one=one_by_one)


class Frames(list[Frame]):
    def at(self, index: int) -> Frame:
        return self[index]


def frame(edge: int, *tuples: tuple[int, str], component: str = "left") -> Frame:
    values = [Event(key, number) for number, key in tuples]
    return Frame(5, component, "Event", values, [number for number, _ in tuples], [*range(1, len(values) + 1)], edge)


def numbers(frames: Any) -> list[int]:
    return [value.number for one in frames for value in one.values]


def openings_of(frames: list[Frame]) -> Any:
    edges = Edges()
    for one in frames:
        edges.sent(one.id, wire.frame_roots(one))
    return edges.entries()


def test_frames_in_order_are_worked_as_they_are() -> None:
    frames = Frames([frame(11, (1, "a"), (2, "b")), frame(12, (2, "a"), (3, "b"), component="right")])
    edges = Edges()
    assert ordered_input().line_up(frames, set(), edges) is None
    assert edges.entries() is None


@pytest.mark.parametrize("seed", range(30))
def test_what_comes_in_any_order_is_worked_in_that_of_its_messages_and_every_edge_is_accounted_for(seed: int) -> None:
    """A message may be in several frames, and several times in one; some have failed by then, and some are left out."""
    random = Random(seed)
    left_out = {number for number in range(1, 13) if random.random() < 0.1}
    skip = left_out | {number for number in range(1, 13) if random.random() < 0.1}
    frames = Frames()
    for edge in range(100, 100 + random.randint(1, 5)):
        tuples = [(random.randint(1, 12), random.choice("abc")) for _ in range(random.randint(1, 9))]
        frames.append(frame(edge, *tuples, component=random.choice(("left", "right"))))
    openings = openings_of(frames)
    edges, one_by_one = Edges(), random.random() < 0.5
    lined_up = ordered_input(left_out=left_out, one_by_one=one_by_one).line_up(frames, skip, edges)
    worked = [*(frames if lined_up is None else lined_up)]
    each = [(root, value) for one in worked for root, part in one.segments() for value in part]
    for key in "abc":
        mine = [root for root, value in each if value.key == key and root not in skip]
        assert mine == sorted(mine)
    if lined_up is not None:
        assert not any(root in skip for root, _ in each)
        assert [*map(numbers, [lined_up])] == [numbers(lined_up)], "a second pass gives the same"
    if one_by_one:
        for one in worked:
            assert len({value.key for value in one.values}) == len(one.values)
    assert sorted(numbers(worked)) == sorted(
        number for number in numbers(frames) if lined_up is None or number not in skip
    )
    for one in worked:
        edges.ended(one.id, [root for root in one.roots if root not in skip])
    entries = edges.entries()
    keep = ~np.isin(openings[0], np.array([*left_out], dtype=np.uint64))
    judgement = judge(
        (openings[0][keep], openings[1][keep]),
        [] if entries is None else [entries],
        np.array([*(skip - left_out)], dtype=np.uint64),
    )
    assert len(judgement.open_) == 0
    assert not {*judgement.unknown.tolist()} & {root for root in range(1, 13) if root not in skip}


def test_frames_that_alternate_are_decoded_a_few_times_however_many_tuples_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is held of them is less than both; each is decoded once for so many tuples that are laid out."""
    monkeypatch.setattr(lined_up, "DECODED_TUPLES", 100)
    monkeypatch.setattr(lined_up, "FRAME_TUPLES", 10)
    odd = frame(11, *((number, "a") for number in range(1, 400, 2)))
    even = frame(12, *((number, "a") for number in range(2, 401, 2)))

    class Counted(Frames):
        asked = 0

        def at(self, index: int) -> Frame:
            self.asked += 1
            return super().at(index)

    frames, edges = Counted([odd, even]), Edges()
    openings = openings_of(frames)
    found = ordered_input().line_up(frames, set(), edges)
    assert found is not None
    worked = [*found]
    assert numbers(worked) == [*range(1, 401)]
    assert frames.asked < 50
    for one in worked:
        edges.ended(one.id, one.roots)
    entries = edges.entries()
    assert entries is not None
    assert len(judge(openings, [entries], np.array([], dtype=np.uint64)).open_) == 0


def test_each_key_of_each_message_is_told_once_also_of_what_has_failed_but_not_of_what_is_left_out() -> None:
    front = ordered_input(left_out={3})
    front.line_up(Frames([frame(11, (1, "a"), (1, "a"), (2, "b"), (3, "b"), (1, "b"))]), {2, 3}, Edges())
    arrived = front.arrivals()
    assert arrived is not None
    a, b = stable_hash("a"), stable_hash("b")
    assert {*zip(arrived[0].tolist(), arrived[1].tolist(), strict=True)} == {(1, a), (1, b), (2, b)}
    assert len(arrived[0]) == 3


def test_what_is_behind_something_that_waits_is_not_worked() -> None:
    a = stable_hash("a")
    front = ordered_input(held=[(7, a, 2), (8, stable_hash("b"), 1)])
    assert front.admit(frame(11, (1, "a"), (3, "a"), (4, "b"), (3, "c"), (5, "c"))) == {3, 5}
    front = ordered_input(held=[(7, ANY, 2)])
    assert front.admit(frame(11, (1, "a"), (3, "z"))) == {3}


def test_what_is_behind_a_failure_of_its_frame_is_not_worked() -> None:
    front = ordered_input()
    frames = Frames([frame(11, (1, "a"), (2, "a"), (2, "b"), (3, "b"), (4, "c")), frame(12, (5, "b"), (6, "c"))])
    front.line_up(frames, set(), Edges())
    assert front.admit(frames[0]) == set()
    assert front.behind([1]) == {2, 3}
    assert front.admit(frames[1]) == {5}


# --- the driver -------------------------------------------------------------------------------------------------------


@bolt
def passed(event: Event) -> Event:
    return event


def ordered_bolts() -> OrderedBolts:
    """source → above → one (ordered bolt) → between → two (ordered bolt) → end; above → beside."""
    t = Topology("bolts")
    above = t.bolt("above", passed).shuffle(t.spout("source", items([Event("a", 0)])))
    one = t.bolt("one", passed).fields(above, "key", ordered=True)
    two = t.bolt("two", passed).fields(t.bolt("between", passed).shuffle(one), "key", ordered=True)
    t.sink("out", jsonl("never")).shuffle(t.bolt("end", passed).shuffle(two))
    t.sink("others", jsonl("never, too")).shuffle(t.bolt("beside", passed).shuffle(above))
    found = OrderedBolts.of(t.build())
    assert found is not None
    return found


def order(count: int, table: Any = None, attempts: Any = None) -> EpochOrder:
    """Messages 1 to `count` of spout task 7, whose roots are 100 times that."""
    columns = Messages(
        tasks=array("I", [7] * count).tobytes(),
        ids=[*range(count)],
        roots=array("Q", range(100, 100 * count + 1, 100)).tobytes(),
        attempts=array("I", [1] * count).tobytes(),
        first_emitted_s=array("d", [0.0] * count).tobytes(),
        made=array("q", range(1, count + 1)).tobytes(),
    )
    header = EpochHeader(epoch=0, generation=1, time_s=0.0)
    record = EpochRecord(header, [LoggedMessages(columns, header)], attempts or {})
    ordering = Ordering(ordered_bolts(), frozenset({7}), lambda attempt, failure: failure.permanent or attempt >= 3)
    return EpochOrder(ordering, record, table or {})


def arrived(failed_at: dict[int, set[str]], **at: list[tuple[int, int]]) -> Arrived:
    found = Arrived()
    for name, pairs in at.items():
        columns = np.array(pairs, dtype=np.uint64).reshape(-1, 2)
        found.parts.append((name, (columns[:, 0], columns[:, 1])))
    found.failed_at.update(failed_at)
    return found


def failure(component: str, *, permanent: bool = False, kind: FailureKind = FailureKind.ERROR) -> Failure:
    return Failure(kind=kind, component=component, error="no", permanent=permanent)


def test_a_failure_at_an_ordered_bolt_holds_its_keys_there_and_everything_at_the_next_one() -> None:
    epoch = order(5)
    told = arrived({100: {"one"}}, one=[(100, 1), (200, 1), (300, 2), (400, 3)], two=[(300, 8), (500, 9)])
    assert epoch.behind(told, (), {}, {100: failure("one")}, ()) == {200, 300, 500}


def test_a_failure_above_the_ordered_bolts_holds_all_that_comes_later_and_so_does_one_beside_them() -> None:
    for where in ("above", "beside", "source"):
        told = arrived({200: {where}}, one=[(100, 1), (300, 2), (400, 3)], two=[])
        assert order(5).behind(told, (), {}, {200: failure(where)}, ()) == {300, 400}


def test_a_failure_behind_the_ordered_bolts_holds_its_keys_at_each() -> None:
    told = arrived({100: {"end"}}, one=[(100, 1), (200, 1), (300, 2)], two=[(100, 8), (300, 8), (400, 9)])
    assert order(5).behind(told, (), {}, {100: failure("end")}, ()) == {200, 300}


def test_a_message_that_crashed_its_worker_may_have_any_key_and_is_to_blame_itself() -> None:
    told = arrived({100: {"one"}, 200: {"one"}}, one=[(100, 1), (200, 1), (300, 2)], two=[])
    poison = failure("one", kind=FailureKind.POISON)
    assert order(5).behind(told, (), {}, {100: failure("one"), 200: poison}, ()) == {300}


def test_what_failed_for_good_holds_nothing_up() -> None:
    told = arrived({100: {"above"}}, one=[(200, 1)])
    assert order(5).behind(told, (), {}, {100: failure("above", permanent=True)}, ()) == set()
    assert order(5, attempts={100: 3}).behind(told, (), {}, {100: failure("above")}, ()) == set()


def test_what_an_outage_put_off_holds_its_keys() -> None:
    told = arrived({100: {"one"}}, one=[(100, 1), (200, 1), (300, 2)])
    assert order(5).behind(told, (), {}, {}, [100]) == {200}


def test_what_fell_out_in_an_earlier_run_holds_the_keys_that_it_had_there() -> None:
    epoch = order(5)
    told = arrived({100: {"end"}}, one=[(100, 1)], two=[(100, 8)])
    assert epoch.behind(told, (), {}, {100: failure("end")}, ()) == set()
    epoch.leave_out([100], {100: failure("end")})
    told = arrived({}, one=[(200, 1), (300, 2)], two=[(300, 8), (400, 9)])
    assert epoch.behind(told, [100], {100: failure("end")}, {}, ()) == {200, 300}
    assert sorted(epoch.held({100: failure("end")})["two"]) == [(7, 8, 1)]


def test_what_waits_elsewhere_holds_its_keys_and_what_is_in_the_epoch_again_does_not() -> None:
    any_key = {"one": frozenset({ANY}), "two": frozenset({ANY})}
    table = {
        (7, 1): Waiting(any_key, 5.0),
        (7, 0): Waiting({"one": frozenset({2})}, 9.0),
        (8, 0): Waiting(any_key, 1.0),
    }
    epoch = order(5, table, attempts={100: 2})
    told = arrived({}, one=[(100, 1), (200, 1), (300, 2)])
    assert epoch.behind(told, (), {}, {}, ()) == {300}
    epoch.leave_out([300], {})
    after, turns = epoch.after({300: -1.0}, [300])
    assert turns == {300: Turn(9.0, 0, "one")}
    assert epoch.ahead(300, turns[300]) == ((7, 0), None), "the epoch does not have it"
    assert after == {
        (7, 0): Waiting({"one": frozenset({2})}, 9.0),
        (8, 0): Waiting(any_key, 1.0),
        (7, 3): Waiting({"one": frozenset({2})}, 9.0),
    }


def test_what_an_ordered_bolt_did_not_work_is_put_back_although_what_it_waited_for_is_dead() -> None:
    told = arrived({100: {"one"}, 200: {"one"}}, one=[(100, 1), (200, 1), (300, 2)], two=[(300, 4)])
    told.behind.add(200)
    epoch = order(5)
    dead = failure("one", permanent=True)
    assert epoch.behind(told, (), {}, {100: dead}, ()) == {200, 300}, "the second ordered bolt has not seen all of it"


def test_roots_in_several_places_are_known_by_all_of_them() -> None:
    assert roots_of((1, 2)) == (1, 2)
    front = ordered_input()
    two = Frame(5, "left", "Event", [Event("a", 1), Event("a", 2)], [(1, 4), 2], [1, 2], 11)
    lined_up = front.line_up(Frames([two]), set(), Edges())
    assert lined_up is not None
    assert numbers(lined_up) == [2, 1], "what belongs to several comes with the latest"


def test_after_a_restart_what_waits_may_have_any_key() -> None:
    ordering = Ordering(ordered_bolts(), frozenset({7}), lambda _attempt, _failure: False)
    table = ordering.restored({7: [(1, 5.0)], 8: [(2, 6.0)]}.__getitem__)
    assert table == {(7, 1): Waiting({"one": frozenset({ANY}), "two": frozenset({ANY})}, 5.0)}
    told = arrived({}, one=[(200, 1)], two=[(300, 8)])
    assert order(5, table).behind(told, (), {}, {}, ()) == {200, 300}
