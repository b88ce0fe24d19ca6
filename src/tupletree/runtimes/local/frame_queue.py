"""The frames that wait for the tasks of one executor, and which of them is worked next.

Owns two orders. Frames of one task are worked in the order in which they came, cut into slices where its calls are slow
(`Pace`). Frames of quick tasks go before those of slow ones, which take turns, one slice each: a quick task waits for
one slow call, never for all that wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

from tupletree.data.frames import Frame
from tupletree.tasks.machine import Machine
from tupletree.tasks.outbox import Outbox


class FrameQueue:
    """See the module docstring. Not thread-safe.

    Args:
        machines: by task id; it may change.

    Attributes:
        ready: frames as they came. Call `is_ready` for each that is taken from here.
    """

    def __init__(self, machines: Mapping[int, Machine]) -> None:
        self.ready: deque[Frame] = deque()
        self._machines = machines
        self._aside: OrderedDict[int, deque[Frame]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self.ready or self._aside)

    @property
    def has_slow(self) -> bool:
        """Whether frames of slow tasks wait."""
        return bool(self._aside)

    def frames(self) -> list[Frame]:
        """All that wait."""
        return [*self.ready, *(frame for waiting in self._aside.values() for frame in waiting)]

    def is_ready(self, frame: Frame) -> bool:
        """Whether a frame that was taken from `ready` is to be worked now; if not, it waits with those of slow ones."""
        pace = self._machines[frame.task].pace
        if pace is None or (len(frame.values) < pace.whole and frame.task not in self._aside):
            return True
        self._aside.setdefault(frame.task, deque()).append(frame)
        return False

    def next_slow(self, out: Outbox, still_wanted: Callable[[Frame], Frame] | None) -> tuple[Frame, int] | None:
        """The next slice of a slow task's frames, and how many tuples left the queue; None if there is none.

        Args:
            out: records edges, where a cut makes new ones.
            still_wanted: removes tuples of messages that are settled already from a frame.
        """
        if not self._aside:
            return None
        task, waiting = next(iter(self._aside.items()))
        machine = self._machines[task]
        frame = waiting.popleft()
        tuples = len(frame.values)
        if still_wanted is not None:
            frame = still_wanted(frame)
        limit = machine.pace.limit if machine.pace is not None else tuples
        if len(frame.values) > limit:
            before = len(frame.values)
            frame, rest = machine.cut(frame, limit, out)
            waiting.appendleft(rest)
            tuples -= before - limit
        if waiting:
            self._aside.move_to_end(task)  # last in the queue now
        else:
            del self._aside[task]
        return frame, tuples
