"""Drives one task of a window or join bolt by hand: frames and times in, what came of them out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tupletree import Topology
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.factory import holder_of
from tupletree.bolts.held import Holder
from tupletree.data.frames import Frame, roots_of
from tupletree.sources import items
from tupletree.state.keys import key_functions
from tupletree.topology.decorators import FunctionBolt
from tupletree.tracking.outcomes import Failure


class Event(msgspec.Struct, frozen=True):
    """Something that happened; `number` tells it from the others, and is its root."""

    key: str
    at: float
    number: int


class Other(msgspec.Struct, frozen=True):
    """The other side of a join."""

    key: str
    at: float
    number: int


class Bench:
    """A task, its clock, and everything that it emitted, acked and failed so far.

    Args:
        bolt: the bolt under test; it reads events, and others if it takes them.
        by: the fields that its inputs are grouped by; none is a shuffle.

    Attributes:
        emitted: (value, roots) in order.
        acked: roots that are done, in order.
        failed: root → error text.
    """

    def __init__(self, bolt: FunctionBolt[..., Any], *by: str) -> None:
        t = Topology("bench", options={"message_timeout_s": None})
        under_test = t.bolt("bolt", bolt)
        self.sources: dict[type, str] = {}
        for cls in (Event, Other):
            if cls in bolt.spec.input_types:
                name = cls.__name__.lower()
                source = t.spout(name, items([], message_type=cls))
                if by:
                    under_test.fields(source, *by)
                else:
                    under_test.shuffle(source)
                self.sources[cls] = name
        for schema in bolt.describe().outputs:
            under_test.stream(schema.cls, unconsumed=True)
        self.spec = t.build()
        self.component = self.spec.components["bolt"]
        self.place = TaskPlace("bench", "bolt", 5, 0, 1)
        self.emitted: list[tuple[Any, tuple[int, ...]]] = []
        self.acked: list[int] = []
        self.failed: dict[int, str] = {}
        self.strays = 0
        self.dropped: list[Failure] = []
        self.frames = 0
        self.task = self.made()

    def made(self) -> Holder:
        """A new task."""
        keys = key_functions(self.spec, self.component) if self.component.body.is_keyed else None
        task = holder_of(self.component, self.place, keys)
        assert task is not None
        task.open()
        return task

    def restart(self) -> None:
        """Go on with a new task, which gets what the old one left, as it travels."""
        held, memory = self.task.held(), self.task.memory()
        self.task.close()
        self.task = self.made()
        self.task.restore(held, msgspec.msgpack.decode(msgspec.msgpack.encode(memory), strict=True))

    def take(self, values: Iterable[Event | Other], *, now_s: float | None = None) -> Worked:
        """One frame per class, in order of the classes; then what is due."""
        if now_s is not None:
            self.place.epoch_time_s = now_s
        values = list(values)
        for cls, component in self.sources.items():
            chosen = [value for value in values if type(value) is cls]
            if chosen:
                self.frames += 1
                roots: list[Any] = [value.number for value in chosen]
                ends = [*range(1, len(chosen) + 1)]
                self.note(self.task.work(Frame(5, component, cls.__name__, chosen, roots, ends, self.frames)))
        return self.note(self.task.advance())

    def pass_to(self, now_s: float) -> Worked:
        """Time passes."""
        self.place.epoch_time_s = now_s
        return self.note(self.task.advance())

    def flush(self) -> Worked:
        """Nothing more will come."""
        return self.note(self.task.flush())

    def note(self, worked: Worked) -> Worked:
        for output in worked.outputs:
            start = 0
            for root, end in zip(output.roots, output.ends, strict=True):
                self.emitted += [(value, roots_of(root)) for value in output.values[start:end]]
                start = end
        for _, roots in worked.done:
            self.acked += [one for root in roots for one in roots_of(root)]
        self.failed.update((root, failure.error) for root, failure in worked.failures.items())
        self.strays += worked.stray_count
        self.dropped += worked.dropped
        return worked
