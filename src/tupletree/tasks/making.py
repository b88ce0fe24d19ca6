"""Order of making: numbers that say which of two values of a key was made later, independent of which completes first.

A value is made by the last component on its path that keeps something by key or holds tuples (keyed state, windows,
joins), or else by its spout. Its task numbers what it emits; a task that works on a tuple without making a new value
passes its number on. `topology.ordering` says which components do which, and which streams carry numbers. Numbers are
beside the tuples (`Frame.made`, `Output.made`); sinks that asked for them get them with the rows.

A component that passes numbers on works on frames whose roots carry them (`carried`): one segment per tuple, each with
a root of its own object, so that everything that a call emits has the number of what it is anchored to
(`MakingOrder.order`). What is anchored to several tuples is as new as the newest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tupletree.bolts.effects import ColumnOutput, Output, Worked
from tupletree.data.frames import Frame, Root, carrier, made_of, plain_root
from tupletree.routing.plan import Plan


class Numbers:
    """Gives increasing numbers, each once.

    Args:
        start: the first of them.
        guard: entered while numbers are taken; a lock where several threads take them.
    """

    def __init__(self, start: int = 1, guard: AbstractContextManager[object] | None = None) -> None:
        self._next = start
        self._guard = guard if guard is not None else nullcontext()

    def take(self, count: int) -> range:
        """So many numbers in a row."""
        with self._guard:
            first = self._next
            self._next = first + count
        return range(first, first + count)


class MakingOrder:
    """How one task treats numbers. Most tasks do nothing with them.

    Attributes:
        is_idle: none of its streams carries numbers.
        inherits: it passes numbers on.
        numbers_outputs: it makes values, and numbers them.

    Args:
        plan: the topology laid out.
        component: the task's.
        numbers: where new ones come from; tasks whose values may be in one table share it.
    """

    def __init__(self, plan: Plan, component: str, numbers: Numbers) -> None:
        streams = plan.spec.components[component].outputs
        self._streams = frozenset(stream for stream in streams if plan.carries_order(component, stream))
        self.is_idle = not self._streams
        self.inherits = plan.passes_order_on(component)
        self.numbers_outputs = plan.numbers_outputs(component)
        self.numbers = numbers

    def enter(self, frame: Frame) -> Frame:
        """The frame as the task is to work it."""
        return carried(frame) if self.inherits else frame

    def order(self, outputs: list[Output]) -> list[Output]:
        """What was emitted together, with numbers where the stream carries them."""
        if self.is_idle:
            return outputs
        if self.inherits:
            return [self._inherited(output) for output in outputs]
        ordered: list[Output] = []
        for output in outputs:
            if output.stream in self._streams:
                ordered.append(_with_values(output))
            else:
                output.made = None
        if not ordered:
            return outputs
        if all(output.made is not None for output in ordered):
            # They are positions in what was emitted together.
            base = self.numbers.take(1 + max(output.made[-1] for output in ordered if output.made)).start
            for output in ordered:
                output.made = [base + position for position in output.made or ()]
        else:
            for output in ordered:
                output.made = self.numbers.take(len(output.values))
        by_stream = {(output.stream, output.direct_task): output for output in ordered}
        return [by_stream.get((output.stream, output.direct_task), output) for output in outputs]

    def number_rows(self, worked: Worked, start: int) -> None:
        """What was read of a piece of a source: outputs say which rows they are, and get numbers from `start` on."""
        self.numbers = Numbers(start)
        if self.is_idle:
            for output in worked.outputs:
                output.made = None

    def settle(self, worked: Worked) -> None:
        """Replace roots that carry numbers by plain ones in what is reported about them."""
        if not self.inherits:
            return
        worked.done = [(frame_id, [plain_root(root) for root in roots]) for frame_id, roots in worked.done]
        worked.failures = {int(root): failure for root, failure in worked.failures.items()}
        worked.extended = [int(root) for root in worked.extended]

    def _inherited(self, output: Output) -> Output:
        output = _with_values(output)
        roots, ends, made = _unladen(output.roots, output.ends, self.numbers)
        if output.stream not in self._streams:
            return Output(output.stream, output.values, roots, ends, output.direct_task)
        return Output(output.stream, output.values, roots, ends, output.direct_task, made)


def carried(frame: Frame) -> Frame:
    """The frame with its numbers on its roots, one segment per tuple; unchanged if that was done before."""
    if frame.roots and made_of(frame.roots[0]) is not None:
        return frame
    made = frame.made if frame.made is not None else (0,) * len(frame.values)
    roots: list[Root] = []
    start = 0
    for root, end in zip(frame.roots, frame.ends, strict=True):
        roots += [carrier(root, number) for number in made[start:end]]
        start = end
    each = [*range(1, start + 1)]
    return Frame(frame.task, frame.component, frame.stream, frame.values, roots, each, frame.id, None, frame.source)


def released(frame: Frame) -> Frame:
    """Undo `carried`; a frame whose roots carry nothing is returned unchanged."""
    if not frame.roots or made_of(frame.roots[0]) is None:
        return frame
    roots, ends, made = _unladen(frame.roots, frame.ends, None)
    return Frame(frame.task, frame.component, frame.stream, frame.values, roots, ends, frame.id, made, frame.source)


def _with_values(output: Output) -> Output:
    """Turn columns into values: numbers are beside values only."""
    if isinstance(output, ColumnOutput):
        return Output(output.stream, output.values, output.roots, output.ends)
    return output


def _unladen(
    roots: Iterable[Root], ends: Iterable[int], numbers: Numbers | None
) -> tuple[list[Root], list[int], Sequence[int]]:
    """(plain roots, ends, the number of each tuple); what is anchored to nothing that has one gets a new one."""
    plain: list[Root] = []
    stops: list[int] = []
    made: list[int] = []
    start = 0
    for root, end in zip(roots, ends, strict=True):
        number = made_of(root)
        if number is not None:
            made += [number] * (end - start)
        else:
            made += numbers.take(end - start) if numbers is not None else [0] * (end - start)
        bare = plain_root(root)
        if plain and plain[-1] == bare:
            stops[-1] = end
        else:
            plain.append(bare)
            stops.append(end)
        start = end
    return plain, stops, made
