"""A collector on threads of the bolt's own, while it is called: wherever another thread comes in, nothing is lost."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.bolts.frame_bench import Word, frame, task_of
from tupletree import Bolt, Collector
from tupletree.bolts import collector as under_test
from tupletree.bolts.effects import Worked
from tupletree.data.frames import roots_of

TUPLES = 400


class Interleaved(Bolt[Word]):
    """Holds all tuples. With the last one it emits for each and acks it; so does another thread, between any two lines.

    The other thread is a trace function: it is called before each line of the collector, as a switch may happen there.
    """

    auto_ack = False
    output_types = (Word,)

    def __init__(self) -> None:
        self.held: deque[Word] = deque()

    def process(self, value: Word, collector: Collector[Word]) -> None:
        self.held.append(value)
        if len(self.held) < TUPLES:
            return

        def settle_one() -> None:
            if self.held:
                word = self.held.popleft()
                collector.emit(Word(word.text), anchors=[word])
                collector.ack(word)

        def switch(at: FrameType, event: str, _: Any) -> Any:
            if at.f_code.co_filename != under_test.__file__:
                return None
            if event == "line":
                settle_one()
            return switch

        before = sys.gettrace()
        sys.settrace(switch)
        try:
            for _ in range(TUPLES):
                settle_one()
        finally:
            sys.settrace(before)


@pytest.mark.parametrize("leaves_early", [True, False])
@pytest.mark.parametrize("roots", [TUPLES, 7])
def test_emits_and_acks_of_another_thread_between_any_two_lines_are_carried_out_once(
    roots: int, leaves_early: bool
) -> None:
    task = task_of(Interleaved)
    came: list[Worked] = []

    def leave(settled: Callable[[], Worked]) -> None:
        came.append(settled())

    if leaves_early:
        task.leave_early(leave)
    segments = [(1 + number % roots, [Word(f"m{number}")]) for number in range(TUPLES)]
    came.append(task.work(frame(*segments)))

    emitted: Counter[str] = Counter()
    done: Counter[int] = Counter()
    waiting = Counter(1 + number % roots for number in range(TUPLES))
    for worked in came:
        for output in worked.outputs:
            emitted.update(word.text for word in output.values)
            for root, end, start in zip(output.roots, output.ends, [0, *output.ends], strict=False):
                waiting.subtract(dict.fromkeys(roots_of(root), end - start))
        for _, settled in worked.done:
            done.update(one for root in settled for one in roots_of(root))
            assert not any(waiting[root] for root in settled if isinstance(root, int)), "done before its tuples are out"
    assert emitted == Counter(f"m{number}" for number in range(TUPLES))
    assert done == Counter(range(1, roots + 1))
