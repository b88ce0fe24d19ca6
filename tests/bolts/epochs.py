"""A run in epochs around one holder, as the Spark runtime does it: what is committed, what waits, and what runs again.

No Spark, no files: the driver's rules (EPOCHS.md 8 to 10) in their smallest form. Messages are events, each its own
message; a failure is scripted by what it hits and how often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.bolts.bench import Bench, Event, Other
from tupletree.bolts.effects import Worked
from tupletree.bolts.held import HeldFrame
from tupletree.data.frames import Frame, roots_of, segments_of

Row = Any


@dataclass
class Message:
    """One message of the source."""

    value: Event | Other
    attempt: int = 1
    first_s: float = -1.0


@dataclass
class Script:
    """What fails, and how often each.

    Attributes:
        before: event number → attempts that fail before they reach the holder.
        inside: what a row would be → calls that raise; the bolt asks `raises`.
        behind: row → times that it fails behind the holder.
        kills: epochs that run a second time, because the driver died before they were committed.
    """

    before: dict[int, int] = field(default_factory=dict)
    inside: dict[Row, int] = field(default_factory=dict)
    behind: dict[Row, int] = field(default_factory=dict)
    kills: set[int] = field(default_factory=set)


class Epochs:
    """The run. `give` an epoch's input, then `finish`.

    Args:
        bench: the bolt under test, and its component.
        script: what fails. `inside` is counted down by the bolt itself.
        delay: (message, attempt) → for how many epochs it waits until its next attempt.
        max_attempts: then it dies.

    Attributes:
        published: rows that a reader sees.
        dead: messages without an attempt left.
    """

    def __init__(
        self,
        bench: Bench,
        script: Script,
        delay: Callable[[int, int], int] = lambda number, attempt: 1 + number % 2,
        max_attempts: int = 30,
    ) -> None:
        self.bench = bench
        self.script = script
        self.published: Counter[Row] = Counter()
        self.dead: set[int] = set()
        self.late: set[int] = set()
        self.epoch = 0
        self.runs = 0
        self._delay = delay
        self._max_attempts = max_attempts
        self._messages: dict[int, Message] = {}  # by root
        self._due: dict[int, list[Message]] = {}  # epoch → fresh attempts
        self._frames: list[HeldFrame] = []
        self._memory = msgspec.msgpack.encode(None)
        self._parked: dict[int, int] = {}  # root → epoch from which on it takes part
        self._gone: set[int] = set()
        self._rows: list[tuple[Row, tuple[int, ...]]] = []
        self._next_root = 1

    @property
    def is_busy(self) -> bool:
        return bool(self._due or self._parked or self._gone)

    def give(self, values: Sequence[Event | Other] = (), *, drain: bool = False) -> None:
        """One epoch with these new messages, and the attempts that are due."""
        self.epoch += 1
        now_s = 1000.0 + self.epoch
        fresh = [Message(value, first_s=now_s) for value in values] + self._due.pop(self.epoch, [])
        roots = {}
        for message in fresh:
            roots[self._next_root] = message
            self._next_root += 1
        self._messages.update(roots)
        waiting = {root for root, until in self._parked.items() if until > self.epoch}
        self._prepare(now_s, fresh, waiting)
        left_out: set[int] = set()
        lost_before = set()
        for root, message in roots.items():
            if self.script.before.get(message.value.number, 0):
                self.script.before[message.value.number] -= 1
                lost_before.add(root)
        killed = self.epoch in self.script.kills
        left_out |= lost_before
        while True:
            self.runs += 1
            task, worked = self._run(roots, waiting | left_out, left_out, drain=drain)
            failed = {root for one in worked for root in one.failures}
            late = {r for one in worked for r, f in one.failures.items() if "too late" in f.error}
            self.late |= {self._messages[root].value.number for root in late}
            rows = [row for one in worked for row in _rows(one)]
            for row, anchors in rows:
                assert not (waiting | left_out).intersection(anchors), "what waits takes part in nothing"
                if self.script.behind.get(row.what, 0) and not failed.intersection(anchors):
                    self.script.behind[row.what] -= 1
                    failed.update(anchors)
            if killed:
                killed = False
                continue
            if failed <= left_out:
                break
            left_out |= failed
        done = {root for one in worked for _, named in one.done for entry in named for root in roots_of(entry)}
        assert not done & (waiting | left_out), "what waits is not settled"
        held = task.held()
        in_holder = {one for frame in held for root in frame.frame.roots for one in roots_of(root)}
        self._frames, self._memory = held, msgspec.msgpack.encode(task.memory())
        self._rows += rows
        self._gone = set()
        self._parked = {root: until for root, until in self._parked.items() if until > self.epoch}
        for root in left_out:
            self._fail(root, in_place=root not in roots)
        self._publish(in_holder)

    def finish(self) -> None:
        """Epochs without input until nothing is open."""
        for _ in range(200):
            drain = not self.is_busy
            self.give(drain=drain)
            if drain and not self._frames and not self.is_busy:
                assert not self._rows
                return
        raise AssertionError("it does not end")

    def _prepare(self, now_s: float, fresh: Iterable[Message], waiting: set[int]) -> None:
        place = self.bench.place
        place.epoch_time_s = now_s
        later = [message for messages in self._due.values() for message in messages]
        retrying = [message.first_s for message in (*later, *fresh) if message.attempt > 1]
        place.retrying_since_s = min(retrying, default=None)
        place.retries_run = any(message.attempt > 1 for message in fresh)
        place.kept_retrying = {root: self._messages[root].first_s for root in self._parked}
        place.message_timeout_s = 30.0

    def _run(
        self, roots: dict[int, Message], waiting: set[int], left_out: set[int], *, drain: bool
    ) -> tuple[Any, list[Worked]]:
        task = self.bench.made()
        held = [
            HeldFrame(_copied(one.frame), one.since_s)
            for one in self._frames
            if not {r for root in one.frame.roots for r in roots_of(root)} <= self._gone
        ]
        task.restore(held, msgspec.msgpack.decode(self._memory, strict=True), waiting)
        task.forget(self._gone)
        worked: list[Worked] = []
        for cls, component in self.bench.sources.items():
            for root, message in roots.items():
                if type(message.value) is cls and root not in left_out:
                    frame = Frame(5, component, cls.__name__, [message.value], [root], [1], 1_000_000 + root)
                    worked.append(task.work(frame))
        worked.append(task.advance())
        if drain:
            worked.append(task.flush())
        task.forget({root for one in worked for root in one.failures})
        return task, worked

    def _fail(self, root: int, *, in_place: bool) -> None:
        message = self._messages[root]
        number = message.value.number
        if number in self.late or message.attempt >= self._max_attempts:
            self.dead.add(number)
            if in_place:
                self._gone.add(root)
            self._messages.pop(root)
            self._parked.pop(root, None)
            return
        until = self.epoch + self._delay(number, message.attempt)
        message.attempt += 1
        if in_place:
            self._parked[root] = until
        else:
            self._messages.pop(root)
            self._due.setdefault(until, []).append(message)

    def _publish(self, in_holder: set[int]) -> None:
        waiting: list[tuple[Row, tuple[int, ...]]] = []
        for row, anchors in self._rows:
            living = [root for root in anchors if root in self._messages]
            if any(root in in_holder for root in living):
                waiting.append((row, anchors))
            elif living:
                self.published[row] += 1
        self._rows = waiting


def _rows(worked: Worked) -> list[tuple[Row, tuple[int, ...]]]:
    return [
        (row, roots_of(root))
        for output in worked.outputs
        for root, values in segments_of(output.values, output.roots, output.ends)
        for row in values
    ]


def _copied(frame: Frame) -> Frame:
    return Frame(frame.task, frame.component, frame.stream, [*frame.values], [*frame.roots], [*frame.ends], frame.id)
