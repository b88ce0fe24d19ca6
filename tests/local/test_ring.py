from __future__ import annotations

import threading

import pytest

from tupletree.data.frames import Frame
from tupletree.runtimes.local.ring import Ring, capacity_for


def frame(number: int, tuples: int = 1) -> Frame:
    return Frame(1, "a", "A", [number] * tuples, [0], [tuples], number)


@pytest.mark.parametrize(("size", "tasks", "capacity"), [(256, 1, 256), (256, 3, 1024), (1, 1, 1), (3, 1, 4)])
def test_the_capacity_is_a_power_of_two(size: int, tasks: int, capacity: int) -> None:
    assert capacity_for(size, tasks) == capacity


def test_frames_come_out_in_order_in_batches() -> None:
    ring = Ring(4)
    ring.publish([frame(1), frame(2)])
    ring.publish([frame(3)])
    assert [one.id for one in ring.take_frames(2)] == [1, 2]
    assert [one.id for one in ring.take_frames(9)] == [3]
    assert ring.is_empty


def test_a_full_ring_takes_more_and_says_so_until_the_consumer_has_caught_up() -> None:
    ring = Ring(4)
    full = []
    ring.publish([frame(1, tuples=3)])
    full.append(ring.is_full)
    ring.publish([frame(2, tuples=5)])
    full.append(ring.is_full)
    ring.take_frames(9)
    full.append(ring.is_full)
    ring.consumed(8)
    full.append(ring.is_full)
    assert full == [False, True, True, False]
    assert ring.depth == 0


def test_the_control_lane_is_read_separately() -> None:
    ring = Ring(1)
    ring.publish([frame(1, tuples=99)])
    ring.send((7, "stop"))
    assert ring.take_control() == [(7, "stop")]
    assert not ring.is_empty


def test_a_wait_on_a_filled_ring_ends_at_once() -> None:
    ring = Ring(1)
    ring.send((1, "a"))
    ring.wait(60.0)
    assert ring.take_control()


def test_a_wait_ends_by_itself() -> None:
    Ring(1).wait(0.001)


@pytest.mark.parametrize("producers", [1, 4])
def test_nothing_is_lost_between_many_producers_and_a_consumer_that_sleeps(producers: int) -> None:
    ring = Ring(64)
    each = 2_000

    def produce(lane: int) -> None:
        for number in range(each):
            if number % 2:
                ring.publish([frame(lane * each + number)])
            else:
                ring.send((lane, number))

    threads = [threading.Thread(target=produce, args=(lane,)) for lane in range(producers)]
    for thread in threads:
        thread.start()
    frames: list[int] = []
    controls: list[object] = []
    while len(frames) + len(controls) < producers * each:
        taken = ring.take_frames(8)
        frames += [one.id for one in taken]
        ring.consumed(len(taken))
        controls += ring.take_control()
        if not taken and ring.is_empty:
            ring.wait(5.0)
    for thread in threads:
        thread.join()
    assert len(set(frames)) == len(frames) == producers * each // 2
    for lane in range(producers):
        mine = [one for one in frames if one // each == lane]
        assert mine == sorted(mine)
    assert ring.depth == 0
