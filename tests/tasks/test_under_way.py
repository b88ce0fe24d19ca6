"""What is under way to windows by event time, against a plain list of what was sent and not taken."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tupletree.data.frames import Frame
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.upstream.in_order import OrderedInputs
from tupletree.tasks.upstream.under_way import KeptFrames, UnderWay

TASKS = ["spout", "slow", "window", "sink"]


def frame(frame_id: int, task: int, roots: list[int]) -> Frame:
    return Frame(task, "spout", "At", [*roots], [*roots], [*range(1, len(roots) + 1)], frame_id)


def fresh() -> UnderWay:
    return UnderWay({"window": {"spout", "slow"}}, TASKS)


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_is_that_of_a_plain_list(seed: int) -> None:
    random, under_way = Random(seed), fresh()
    open_frames: list[tuple[int, int, float]] = []
    for number in range(1, 400):
        if random.random() < 0.52 or not open_frames:
            task, since_s = random.randrange(4), float(random.randrange(number))
            under_way.sent([frame(number, task, [number])], since_s)
            open_frames.append((number, task, since_s))
        else:
            frame_id, _, _ = open_frames.pop(random.randrange(len(open_frames)))
            under_way.taken(frame_id)
        expected = min((since_s for _, task, since_s in open_frames if task != 3), default=None)
        assert under_way.oldest_s("window") == expected
        assert under_way.oldest_s("sink") is None


def test_a_kept_frame_is_under_way_until_its_last_message_is_settled() -> None:
    under_way = fresh()
    kept = KeptFrames(under_way)
    one = frame(7, 1, [1, 2, 3])
    under_way.sent([one], 5.0)
    kept.keep(one)
    kept.settle([(7, [1])], ())
    kept.settle([], [3])
    assert under_way.oldest_s("window") == kept.since_s == 5.0
    kept.settle([(7, [2])], ())
    assert under_way.oldest_s("window") is kept.since_s is None


def test_the_parts_of_a_frame_that_is_cut_are_each_under_way() -> None:
    for rest_id in (7, 8):
        under_way = fresh()
        head, rest = frame(7, 1, [1]), frame(rest_id, 1, [2])
        under_way.sent([head], 5.0)
        under_way.cut(head, rest)
        under_way.taken(head.id)
        assert under_way.oldest_s("window") == 5.0
        under_way.taken(rest.id)
        assert under_way.oldest_s("window") is None


def test_a_kept_frame_that_comes_twice_is_under_way_until_its_messages_are_settled() -> None:
    under_way = fresh()
    kept = KeptFrames(under_way)
    one = frame(7, 1, [1, 2])
    under_way.sent([one], 5.0)
    kept.keep(one)
    kept.settle([(7, [1])], ())
    kept.keep(one)
    assert under_way.oldest_s("window") == 5.0
    kept.settle([(7, [2])], ())
    assert under_way.oldest_s("window") is kept.since_s is None, "what was settled is not kept again"


def test_what_was_settled_of_the_first_part_of_a_frame_holds_up_no_ordered_input_while_the_second_waits() -> None:
    above = frozenset({"spout", "slow"})
    ordered = OrderedInputs({"window": (frozenset({("slow", "At")}), above)}, TASKS)
    ordered.register(0, lambda root: root, [])
    under_way = UnderWay({}, TASKS, None, ordered)
    kept = KeptFrames(under_way)
    head, rest = frame(7, 1, [1]), frame(7, 1, [2])
    under_way.sent([frame(7, 1, [1, 2])], 5.0)
    ordered.launched(0, [1, 2], [1, 2])
    under_way.cut(head, rest)
    kept.keep(head)
    assert ordered.earliest("window", 0) == 1
    kept.settle([(7, [1])], ())
    kept.keep(rest)
    assert ordered.earliest("window", 0) == 2
    kept.settle([(7, [2])], ())
    assert ordered.earliest("window", 0) is None


def test_a_failed_attempt_is_under_way_until_its_spout_task_knows() -> None:
    under_way, live = fresh(), LiveRoots(None)
    in_flight = {1: 3.0}
    live.register(0, in_flight, first_s=in_flight.get)
    under_way.failed([1, 2], live)
    assert under_way.oldest_s("window") == 3.0, "2 is over, and nobody would take it out again"
    under_way.failed([1], live)
    del in_flight[1]
    under_way.judged([1, 2])
    assert under_way.oldest_s("window") is None


def test_what_failed_of_a_spout_task_that_was_lost_is_not_under_way_any_more() -> None:
    under_way, live = fresh(), LiveRoots(None)
    in_flight, others = {1: 3.0}, {2: 4.0}
    live.register(0, in_flight, first_s=in_flight.get)
    live.register(1, others, first_s=others.get)
    under_way.failed([1, 2], live)
    afresh = {3: 5.0}
    live.register(0, afresh, first_s=afresh.get)
    under_way.judge_over(live)
    assert under_way.oldest_s("window") == 4.0, "the other one's task is there"


class Time(float):
    """Counts how often times are compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Time.compared += 1
        return float(self) < other


class Over(list[int]):
    """Counts how often something is compared with these."""

    looked_at = 0

    def __iter__(self) -> Iterator[int]:
        Over.looked_at += 1
        return super().__iter__()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_task_keeps_is_not_looked_through_for_each_message_that_is_settled(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(Time, "compared", 0)
    monkeypatch.setattr(Over, "looked_at", 0)
    under_way, many = fresh(), 1000
    kept = KeptFrames(under_way)
    for number in range(1, many + 1):
        one = frame(number, 1, [number])
        under_way.sent([one], Time(number))
        kept.keep(one)
    for number in range(1, many + 1):
        assert kept.since_s == number
        kept.settle(() if fails else [(number, [number])], Over([number] if fails else ()))
    assert kept.since_s is None
    assert Time.compared < 50 * many
    assert Over.looked_at < 50 * many
