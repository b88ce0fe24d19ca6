"""How much work the order of an input is, counted in comparisons and not in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tupletree.bolts.effects import Worked
from tupletree.bolts.failures import BEHIND
from tupletree.data.frames import Frame
from tupletree.tasks import in_order
from tupletree.tasks.in_order import OrderedInput

MESSAGES = 512


class Upstream:
    """All that was emitted has come; the number of a message is its root."""

    def came(self, frame: Frame) -> None: ...

    def position(self, root: int) -> tuple[int, int] | None:
        return 0, root

    def earliest(self, component: str, spout_task: int) -> int | None:
        return None

    def holds_up(self, spout_task: int, number: int) -> bool:
        return True


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often two places in a line were compared so far."""
    count = 0
    before = in_order._Part.__lt__

    def compare(part: Any, other: Any) -> bool:
        nonlocal count
        count += 1
        return before(part, other)

    monkeypatch.setattr(in_order._Part, "__lt__", compare)
    return lambda: count


def an_input(*, one_by_one: bool) -> OrderedInput:
    return OrderedInput("bolt", Upstream(), {("s", "d"): list}, one_by_one=one_by_one)  # type: ignore[arg-type]  # a stub


def frame(roots: list[int], edge: int, key: str = "key") -> Frame:
    return Frame(1, "s", "d", [key] * len(roots), [*roots], [*range(1, len(roots) + 1)], edge)


def worked(of: Frame) -> Worked:
    return Worked(done=[(of.id, of.roots)])


@pytest.mark.parametrize("size", [1, 8, MESSAGES])
def test_calls_of_one_key_that_go_on_side_by_side_are_not_looked_at_again_for_each_that_ends(
    compared: Callable[[], int], size: int
) -> None:
    waiting = an_input(one_by_one=True)
    for start in range(1, MESSAGES + 1, size):
        waiting.add(frame([*range(start, start + size)], start))
    came: list[Any] = []
    while (of := waiting.next_frame(0)) is not None:
        assert waiting.next_frame(0) is None
        came += of.roots
        waiting.settle(worked(of))
    assert came == [*range(1, MESSAGES + 1)]
    assert not waiting.is_holding
    assert compared() < 40 * MESSAGES


def test_what_is_behind_a_tuple_that_failed_is_found_in_one_look(compared: Callable[[], int]) -> None:
    waiting = an_input(one_by_one=False)
    waiting.add(frame([*range(1, MESSAGES + 1)], 7))
    of = waiting.next_frame(MESSAGES)
    assert of is not None
    assert len(of.roots) == MESSAGES
    assert waiting.behind([3]) == {*range(4, MESSAGES + 1)}
    assert compared() < 40 * MESSAGES


def test_who_waits_in_several_lines_comes_when_each_lets_it(compared: Callable[[], int]) -> None:
    for seed in range(200):
        random.seed(seed)
        waiting = OrderedInput("bolt", Upstream(), {("s", "d"): list}, one_by_one=True)  # type: ignore[arg-type]  # a stub
        keys = {root: random.sample("abc", random.randint(1, 3)) for root in range(1, 30)}
        for root in random.sample([*keys], len(keys)) if seed % 2 else keys:
            waiting.add(Frame(1, "s", "d", keys[root], [root], [len(keys[root])], root))
        running: list[Frame] = []
        done: list[int] = []
        while True:
            while (of := waiting.next_frame(0)) is not None:
                mine = {key for root in of.roots for key in keys[root]}  # type: ignore[index]  # ints
                assert not any(mine.intersection(keys[root]) for one in running for root in one.roots)  # type: ignore[index]  # ints
                running.append(of)
            if not running:
                break
            over = running.pop(random.randrange(len(running)))
            if random.random() < 0.2 and not any(root in done for root in over.roots):
                waiting.take_back(Worked(failures=dict.fromkeys(over.roots, BEHIND)))  # type: ignore[arg-type]  # ints
                continue
            done += over.roots  # type: ignore[arg-type]  # ints
            waiting.settle(worked(over))
        assert sorted(done) == sorted(keys)
        for key in "abc":
            line = [root for root in done if key in keys[root]]
            assert line == sorted(line) or seed % 2
        assert not waiting.is_holding
