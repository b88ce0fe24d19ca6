"""What may still come to inputs that are grouped by `fields(…, ordered=True)`, in the order of emission.

Owns one answer per such input and spout task: which is the earliest message that has not come yet? It has come when no
frame of it is under way to the input, and no attempt of it failed before that. From then on its keys are known there,
and it holds up only what comes later for these (`tasks.in_order`). A message that failed before it came has no key yet,
so that everything later of its spout task waits for it. Where two such inputs follow each other, what has come to the
first is still to come to the second, until it was worked at the first and what comes of it was sent.

An input waits only for what is further up and for what was emitted before, and there is no cycle of inputs: so no two
wait for each other.

Messages are known by their numbers in the order of first emission (`Pending.number`). One lock guards all counts,
because a sender's count must rise before the receiver's falls.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext

from tupletree.data.frames import Frame, Root, roots_of
from tupletree.routing.plan import Plan
from tupletree.topology.ordering import ordered_inputs


class _Coming:
    """Messages of one spout task, by number, of which something may still come to one input; the least is known."""

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self._counts

    def add(self, number: int) -> None:
        known = self._counts.get(number, 0)
        self._counts[number] = known + 1
        if not known:
            heapq.heappush(self._heap, number)

    def remove(self, number: int) -> bool:
        """Take one away; whether it was the last."""
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
            return False
        del self._counts[number]
        heap = self._heap
        while heap and heap[0] not in self._counts:
            heapq.heappop(heap)
        return True

    @property
    def least(self) -> int | None:
        return self._heap[0] if self._heap else None


class _Input:
    """An ordered input: the component that has it, and what is known of the messages of each spout task."""

    def __init__(self, component: str, feeds: frozenset[tuple[str, str]], above: AbstractSet[str]) -> None:
        self.component = component
        self.feeds = feeds
        self.above = above
        self.coming: dict[int, _Coming] = {}
        self.known: dict[int, set[int]] = {}  # have come at least once
        self.missing: dict[int, set[int]] = {}  # failed before they came: counted once in `coming`

    def reset(self, spout_task: int) -> None:
        self.coming[spout_task] = _Coming()  # what is under way still counts in the one before
        self.known[spout_task] = set()
        self.missing[spout_task] = set()

    def miss(self, spout_task: int, number: int) -> None:
        if number not in self.known[spout_task] and number not in self.missing[spout_task]:
            self.missing[spout_task].add(number)
            self.coming[spout_task].add(number)

    def find(self, spout_task: int, number: int) -> None:
        if number in self.missing[spout_task]:
            self.missing[spout_task].discard(number)
            self.coming[spout_task].remove(number)


_Counted = tuple[_Input, _Coming, int, int]
"""(where it is counted, in which bag, spout task, number)"""


class _Entry:
    """What is counted of one frame, by root."""

    __slots__ = ("further", "is_lost", "own", "parts", "task", "to_come")

    def __init__(self, task: int) -> None:
        self.task = task
        self.own: dict[int, _Counted] = {}  # for the input that it is addressed to, until it has come there
        self.further: dict[int, list[_Counted]] = {}  # for those further down, until what comes of it was sent
        self.parts = self.to_come = 1
        self.is_lost = False


class OrderedInputs:
    """See the module docstring. Any thread may call.

    Args:
        inputs: component with such inputs → (component, stream) of these → components that something of them may come
            from.
        component_of: task → component.
        lock: what only one thread may hold at a time; None where there is one thread.

    Attributes:
        tasks: those that have such inputs. They are told (`DropRoots`) of each attempt that failed.
    """

    def __init__(
        self,
        inputs: Mapping[str, tuple[frozenset[tuple[str, str]], AbstractSet[str]]],
        component_of: Sequence[str],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._lock = lock or nullcontext()
        self._component_of = component_of
        self._inputs = {name: _Input(name, feeds, above) for name, (feeds, above) in inputs.items()}
        self._through: dict[str, list[_Input]] = {}
        for one in self._inputs.values():
            for name in one.above:
                self._through.setdefault(name, []).append(one)
        self._number_of: dict[int, Callable[[int], int | None]] = {}
        self._open: dict[int, set[int]] = {}
        self._given_up: dict[int, set[int]] = {}
        self._latest: dict[int, dict[int, int]] = {}  # number → root of the attempt that is out, or was last
        self._frames: dict[int, _Entry] = {}
        self.tasks = tuple(task for task, name in enumerate(component_of) if name in self._inputs)

    @classmethod
    def of(cls, plan: Plan, lock: AbstractContextManager[object] | None = None) -> OrderedInputs | None:
        """Those of a topology; None if it has none."""
        inputs: dict[str, tuple[frozenset[tuple[str, str]], AbstractSet[str]]] = {}
        for name, component in plan.spec.components.items():
            feeds = ordered_inputs(component)
            if feeds:
                producers = {producer for producer, _ in feeds}
                above = producers.union(*(plan.upstream_of(producer) for producer in producers))
                inputs[name] = feeds, above
        return cls(inputs, [task.component for task in plan.tasks], lock) if inputs else None

    # --- what spout tasks tell --------------------------------------------------------------------------------

    def register(self, spout_task: int, number_of: Callable[[int], int | None], waiting: Iterable[int]) -> None:
        """A spout task starts, maybe again. What was known of its messages is forgotten.

        Args:
            spout_task: which.
            number_of: root → the number of its message; None for an attempt that is over. Any thread may call it.
            waiting: numbers of messages that are to be tried again.
        """
        with self._lock:
            self._number_of[spout_task] = number_of
            self._open[spout_task] = set(waiting)
            self._given_up[spout_task] = set()
            self._latest[spout_task] = {}
            for one in self._inputs.values():
                one.reset(spout_task)
                for number in self._open[spout_task]:
                    one.miss(spout_task, number)

    def launched(self, spout_task: int, numbers: Sequence[int], roots: Sequence[int]) -> None:
        """Attempts of messages go out, one root per number; their frames are `sent` already."""
        with self._lock:
            self._open[spout_task].update(numbers)
            self._latest[spout_task].update(zip(numbers, roots, strict=True))
            for one in self._inputs.values():
                if one.missing[spout_task]:
                    for number in numbers:
                        one.find(spout_task, number)

    def failed_for_now(self, spout_task: int, number: int) -> None:
        """An attempt of a message failed, and another is to come."""
        with self._lock:
            for one in self._inputs.values():
                one.miss(spout_task, number)

    def ended(self, spout_task: int, numbers: Iterable[int]) -> None:
        """Messages are acked or dead."""
        with self._lock:
            self._open[spout_task].difference_update(numbers)
            self._given_up[spout_task].difference_update(numbers)
            for number in numbers:
                self._latest[spout_task].pop(number, None)
            for one in self._inputs.values():
                for number in numbers:
                    one.find(spout_task, number)
                    one.known[spout_task].discard(number)

    def give_up(self, spout_task: int, numbers: Iterable[int]) -> None:
        """Nothing waits any longer for these: their source cannot emit them again before others are done."""
        with self._lock:
            self._given_up[spout_task].update(numbers)
            for one in self._inputs.values():
                for number in numbers:
                    one.find(spout_task, number)

    # --- what all tasks tell of frames ------------------------------------------------------------------------

    def sent(self, frames: Sequence[Frame]) -> None:
        """Frames go out; of messages that are over nothing is counted."""
        with self._lock:
            for frame in frames:
                target = self._component_of[frame.task]
                further = self._through.get(target, [])
                own = self._inputs.get(target)
                if own is not None and (frame.component, frame.stream) not in own.feeds:
                    own = None
                if not further and own is None:
                    continue
                entry = _Entry(frame.task)
                for root in _distinct(frame.roots):
                    position = self.position(root)
                    if position is not None:
                        self._count(entry, root, own, further, *position)
                if entry.own or entry.further:
                    self._frames[frame.id] = entry

    def _count(
        self, entry: _Entry, root: int, own: _Input | None, further: Sequence[_Input], spout_task: int, number: int
    ) -> None:
        if own is not None and number not in own.known[spout_task]:
            entry.own[root] = own, own.coming[spout_task], spout_task, number
            own.coming[spout_task].add(number)
        counted: list[_Counted] = [
            (one, one.coming[spout_task], spout_task, number) for one in further if number not in one.known[spout_task]
        ]
        if counted:
            entry.further[root] = counted
            for _, coming, _, _ in counted:
                coming.add(number)

    def cut(self, head: Frame, rest: Frame) -> None:
        """A frame is worked in two parts, which may have the same id."""
        with self._lock:
            entry = self._frames.get(head.id)
            if entry is None:
                return
            if head.id == rest.id:
                entry.parts += 1
                entry.to_come += 1
                return
            other = self._frames[rest.id] = _Entry(entry.task)
            for root in _distinct(rest.roots):
                if root in entry.own:
                    other.own[root] = entry.own[root]
                if root in entry.further:
                    other.further[root] = entry.further[root]
            for _, coming, _, number in (
                *other.own.values(),
                *(one for them in other.further.values() for one in them),
            ):
                coming.add(number)

    def came(self, frame: Frame) -> None:
        """A frame, or a part of it, has come to such an input. Those further down still wait for what comes of it."""
        if frame.id not in self._frames:
            return
        with self._lock:
            entry = self._frames.get(frame.id)
            if entry is not None:
                for root in _distinct(frame.roots):
                    if root in entry.own:
                        self._release(root, entry.own.pop(root), is_lost=False)
                self._note_came(entry)

    def _note_came(self, entry: _Entry) -> None:
        entry.to_come -= 1
        if not entry.to_come:  # what is left of it was over before it came
            for root, counted in entry.own.items():
                self._release(root, counted, is_lost=entry.is_lost)
            entry.own.clear()

    def passed(self, frame_id: int, roots: Iterable[int]) -> None:
        """What comes of these messages' tuples in a frame has been sent, or they are over."""
        if frame_id not in self._frames:
            return
        with self._lock:
            entry = self._frames.get(frame_id)
            if entry is not None and entry.further:
                for root in roots:
                    for counted in entry.further.pop(root, ()):
                        self._release(root, counted, is_lost=False)

    def taken(self, frame_id: int) -> None:
        """What comes of a frame, or of a part of it, has been sent."""
        if frame_id in self._frames:
            with self._lock:
                self._take_away(frame_id)

    def skipped(self, frame_id: int) -> None:
        """A frame, or a part of it, was not worked: it is lost, or its messages are over."""
        with self._lock:
            entry = self._frames.get(frame_id)
            if entry is not None:
                entry.is_lost = True
                self._note_came(entry)
                self._take_away(frame_id)

    def _take_away(self, frame_id: int) -> None:
        entry = self._frames.get(frame_id)
        if entry is None:
            return
        entry.parts -= 1
        if not entry.parts:
            del self._frames[frame_id]
            for root, own in entry.own.items():
                self._release(root, own, is_lost=entry.is_lost)
            for root, them in entry.further.items():
                for counted in them:
                    self._release(root, counted, is_lost=entry.is_lost)

    def _release(self, root: int, counted: _Counted, *, is_lost: bool) -> None:
        """Count something of an attempt no longer. If it will not come, the next attempt is waited for."""
        one, coming, spout_task, number = counted
        is_open = number in self._open[spout_task]
        if is_open and self._latest[spout_task].get(number) == root and (is_lost or self.position(root) is None):
            one.miss(spout_task, number)
        if coming.remove(number) and coming is one.coming[spout_task] and is_open:
            one.known[spout_task].add(number)

    def failed(self, roots: Iterable[int]) -> None:
        """A task failed these attempts. Where they have not come yet, what is later waits for them."""
        with self._lock:
            for root in roots:
                position = self.position(root)
                if position is not None:
                    for one in self._inputs.values():
                        one.miss(*position)

    def lost(self, task: int) -> None:
        """A task was lost with all that it had and was to get: of its messages other attempts will come."""
        with self._lock:
            own = self._inputs.get(self._component_of[task])
            if own is not None:  # it had their keys
                for spout_task, known in own.known.items():
                    gone, known_before = [*known], known
                    known_before.clear()
                    for number in gone:
                        own.miss(spout_task, number)
            for frame_id in [frame_id for frame_id, entry in self._frames.items() if entry.task == task]:
                self._frames[frame_id].is_lost = True
                self._frames[frame_id].parts = 1
                self._take_away(frame_id)

    # --- questions --------------------------------------------------------------------------------------------

    def has_parts(self, frame_id: int) -> bool:
        """Whether a frame is worked in parts, of which more than one is under way."""
        entry = self._frames.get(frame_id)
        return entry is not None and entry.parts > 1

    def counts(self, frame_id: int) -> bool:
        """Whether a frame is under way to such an input."""
        return frame_id in self._frames

    def position(self, root: int) -> tuple[int, int] | None:
        """(spout task, number) of the message of an attempt; None for one that is over."""
        for spout_task, number_of in self._number_of.items():
            number = number_of(root)
            if number is not None:
                return spout_task, number
        return None

    def earliest(self, component: str, spout_task: int) -> int | None:
        """The earliest message that may still come to a component and has not; None: there is none."""
        return self._inputs[component].coming[spout_task].least

    def holds_up(self, spout_task: int, number: int) -> bool:
        """Whether what is later still waits for a message whose attempt failed."""
        return number in self._open[spout_task] and number not in self._given_up[spout_task]


def _distinct(roots: Iterable[Root]) -> set[int]:
    return {one for root in roots for one in roots_of(root)}
