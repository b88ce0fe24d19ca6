"""What is under way to windows and joins that go by event time: frames that may still bring an earlier tuple.

Owns one answer per window or join: when did the oldest message go out of which anything has yet to come to it? A frame
is under way from when it is sent until the task that got it has sent on what comes of it. A task that keeps tuples
beyond a call (async bolts, batches, collectors) keeps their frames under way until these tuples are settled. A message
that failed is under way until its spout task knows, and waits for the next attempt itself (`RetryStatus`). What a
window or join took is no longer under way: what comes of it follows its own watermark.

Frames are counted, each once, so nothing is done per tuple, except for those that a task keeps. One lock guards all
counts, because a sender's count must rise before the receiver's falls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext

from tupletree.data.frames import Frame, roots_of
from tupletree.routing.plan import Plan
from tupletree.tasks.live_roots import LiveRoots
from tupletree.tasks.upstream.in_order import OrderedInputs
from tupletree.topology.model import BoltSpec, TopologySpec


class _Oldest:
    """A bag of times, of which the least is known."""

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[float, int] = {}
        self._heap: list[float] = []

    def add(self, time_s: float, count: int = 1) -> None:
        known = self._counts.get(time_s, 0)
        self._counts[time_s] = known + count
        if not known:
            heapq.heappush(self._heap, time_s)

    def remove(self, time_s: float) -> None:
        left = self._counts[time_s] - 1
        if left:
            self._counts[time_s] = left
            return
        del self._counts[time_s]
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heapq.heappop(heap)

    @property
    def least(self) -> float | None:
        return self._heap[0] if self._heap else None


_Entry = tuple[_Oldest, float, int, int]
"""(where it is counted, since when, parts of it, the task that is to get it)"""


class UnderWay:
    """See the module docstring. Any thread may call.

    Args:
        above: window or join by event time → the components that something of it may come from.
        component_of: task → component.
        lock: what only one thread may hold at a time; None where there is one thread.
        ordered: inputs that are grouped by `fields(…, ordered=True)`, which are told the same; None: there are none.
    """

    def __init__(
        self,
        above: Mapping[str, AbstractSet[str]],
        component_of: Sequence[str],
        lock: AbstractContextManager[object] | None = None,
        ordered: OrderedInputs | None = None,
    ) -> None:
        self.ordered = ordered
        self._lock = lock or nullcontext()
        self._component_of = component_of
        self._to: dict[str, _Oldest] = {one: _Oldest() for name, them in above.items() for one in (name, *them)}
        self._read = {name: [self._to[one] for one in {name, *them}] for name, them in above.items()}
        self._frames: dict[int, _Entry] = {}
        self._failing: dict[int, float] = {}
        self._failed = _Oldest()

    @classmethod
    def of(cls, plan: Plan, make_lock: Callable[[], AbstractContextManager[object]] = nullcontext) -> UnderWay | None:
        """That of a topology; None where no window or join goes by event time, and no input is ordered."""
        above = {name: plan.upstream_of(name) for name in _by_event_time(plan.spec)}
        ordered = OrderedInputs.of(plan, make_lock())
        if not above and ordered is None:
            return None
        return cls(above, [task.component for task in plan.tasks], make_lock(), ordered)

    def sent(self, frames: Sequence[Frame], since_s: float) -> None:
        """Frames go out, of messages the oldest of which was first emitted then (monotonic)."""
        with self._lock:
            for frame in frames:
                oldest = self._to.get(self._component_of[frame.task])
                if oldest is not None:
                    oldest.add(since_s)
                    self._frames[frame.id] = oldest, since_s, 1, frame.task
        if self.ordered is not None:
            self.ordered.sent(frames)

    def cut(self, head: Frame, rest: Frame) -> None:
        """A frame is worked in two parts, which may have the same id."""
        if self.ordered is not None:
            self.ordered.cut(head, rest)
        with self._lock:
            entry = self._frames.get(head.id)
            if entry is None:
                return
            oldest, since_s, parts, task = entry
            oldest.add(since_s)
            if head.id == rest.id:
                self._frames[head.id] = oldest, since_s, parts + 1, task
            else:
                self._frames[rest.id] = oldest, since_s, 1, task

    def since_s(self, frame: Frame) -> float | None:
        """When the oldest message of a frame went out; None for a frame that is not under way."""
        entry = self._frames.get(frame.id)
        return None if entry is None else entry[1]

    def has_parts(self, frame_id: int) -> bool:
        """Whether a frame is worked in parts, of which more than one is under way."""
        entry = self._frames.get(frame_id)
        if entry is not None:
            return entry[2] > 1
        return self.ordered is not None and self.ordered.has_parts(frame_id)

    def taken(self, frame_id: int) -> None:
        """What comes of a frame, or of a part of it, has been sent."""
        if self.ordered is not None:
            self.ordered.taken(frame_id)
        self._take_away(frame_id)

    def skipped(self, frame_id: int) -> None:
        """A frame, or a part of it, is not worked: it was lost, or its messages are over."""
        if self.ordered is not None:
            self.ordered.skipped(frame_id)
        self._take_away(frame_id)

    def _take_away(self, frame_id: int) -> None:
        with self._lock:
            entry = self._frames.get(frame_id)
            if entry is None:
                return
            oldest, since_s, parts, task = entry
            oldest.remove(since_s)
            if parts > 1:
                self._frames[frame_id] = oldest, since_s, parts - 1, task
            else:
                del self._frames[frame_id]

    def lost(self, task: int) -> None:
        """A task was lost with all frames that it was to get."""
        if self.ordered is not None:
            self.ordered.lost(task)
        with self._lock:
            gone = [(frame_id, entry[2]) for frame_id, entry in self._frames.items() if entry[3] == task]
        for frame_id, parts in gone:
            for _ in range(parts):
                self._take_away(frame_id)

    def failed(self, roots: Collection[int], live: LiveRoots) -> None:
        """A task failed these attempts: they stay under way until their spout tasks know (`judged`)."""
        if self.ordered is not None:
            self.ordered.failed(roots)
        with self._lock:
            for root in roots:
                since_s = live.first_s(root)
                # One that is over was judged already: nobody would take it out again.
                if since_s is not None and root not in self._failing:
                    self._failing[root] = since_s
                    self._failed.add(since_s)

    def judged(self, roots: Iterable[int]) -> None:
        """Spout tasks know that these attempts are over, and have told what waits for another one."""
        with self._lock:  # also when none is failing yet: `failed` may have asked about one of these, and not noted it
            for root in roots:
                since_s = self._failing.pop(root, None)
                if since_s is not None:
                    self._failed.remove(since_s)

    def judge_over(self, live: LiveRoots) -> None:
        """A spout task was lost: those of its attempts that failed are over, and nobody will say so."""
        self.judged([root for root in [*self._failing] if live.first_s(root) is None])

    def oldest_s(self, component: str) -> float | None:
        """When the oldest message went out that may still bring a window or join something; None: nothing may.

        None as well for components that are no windows or joins by event time.
        """
        read = self._read.get(component)
        if read is None:
            return None
        with self._lock:
            times = [one.least for one in read]
            times.append(self._failed.least)
        return min((time_s for time_s in times if time_s is not None), default=None)


class KeptFrames:
    """The frames of one task that keeps tuples beyond a call."""

    def __init__(self, under_way: UnderWay) -> None:
        self._under_way = under_way
        self._kept: dict[int, tuple[set[int], float]] = {}  # frame → messages that are not settled, since when
        self._frames_of: dict[int, list[int]] = {}  # message → frames
        self._oldest = _Oldest()

    @property
    def since_s(self) -> float | None:
        """When the oldest message of them went out."""
        return self._oldest.least

    def keep(self, frame: Frame) -> None:
        """Tuples of a frame are kept, until their messages are settled."""
        since_s = self._under_way.since_s(frame)
        if since_s is None:
            ordered = self._under_way.ordered
            if ordered is None or not ordered.counts(frame.id):
                return
            since_s = math.inf  # no window waits for it
        roots = {one for root in frame.roots for one in roots_of(root)}
        if frame.id in self._kept:
            if self._under_way.has_parts(frame.id):  # the other part of one that was cut, not the same frame twice
                kept = self._kept[frame.id][0]
                self._note(frame.id, roots - kept)
                kept |= roots
                self._under_way.taken(frame.id)
        elif roots:
            self._kept[frame.id] = roots, since_s
            self._oldest.add(since_s)
            self._note(frame.id, roots)
        else:
            self._under_way.taken(frame.id)

    def _note(self, frame_id: int, roots: set[int]) -> None:
        for root in roots:
            self._frames_of.setdefault(root, []).append(frame_id)

    def settle(self, done: Iterable[tuple[int, Iterable[int]]], over: Collection[int]) -> None:
        """Tuples are settled: of some messages in a frame, and of some messages wherever they are."""
        for frame_id, roots in done:
            self._release(frame_id, roots)
        for root in over:
            for frame_id in [*self._frames_of.get(root, ())]:
                self._release(frame_id, (root,))

    def _release(self, frame_id: int, settled: Iterable[int]) -> None:
        left, since_s = self._kept.get(frame_id, (None, 0.0))
        if left is None:
            return
        settled = {*settled}
        for root in left & settled:
            left.remove(root)
            self._frames_of[root].remove(frame_id)
            if not self._frames_of[root]:
                del self._frames_of[root]
        if self._under_way.ordered is not None:  # also with nothing left: the frame may have another part
            self._under_way.ordered.passed(frame_id, settled)
        if not left:
            del self._kept[frame_id]
            self._oldest.remove(since_s)
            self._under_way.taken(frame_id)


def _by_event_time(spec: TopologySpec) -> list[str]:
    return [
        name
        for name, component in spec.components.items()
        if isinstance(component.body, BoltSpec)
        and component.body.holding is not None
        and component.body.holding.timestamp is not None
    ]
