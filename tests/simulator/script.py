"""What lies outside of a simulated run of the Spark protocol, and its sources, which ask for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from tests.simulator.leasing import Leasing
from tupletree import Spout, TaskContext
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import Emit, Reject
from tupletree.topology.splits import Lease, LeaseSpout, Split, SplitSpout
from tupletree.tracking.outcomes import Failure, FailureKind


class Note(msgspec.Struct, frozen=True, gc=False):
    script: str
    number: int


@dataclass
class Script:
    """The messages of a source and what it was told, and the rows that a called sink has: it outlives all crashes.

    Attributes:
        count: messages are the numbers below it.
        failing: where → how often a call there fails.
        poison: messages that always fail.
        heard: (what, number) → how often the source was told.
        unreadable: messages that executors can make no value of.
        refused: messages whose rows a called sink refused.
        taken: batch id → rows that the called sink has.
        fragile: how often a call of the sink fails.
        partition_by: what names the folders of the sink of columns, if it has any.
    """

    name: str
    kind: str
    chance: Random
    count: int = 0
    failing: dict[str, float] = field(default_factory=dict)
    poison: set[int] = field(default_factory=set)
    heard: Counter[tuple[str, int]] = field(default_factory=Counter)
    asked: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    taken: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    fragile: float = 0.0
    delivered: int = 0
    is_over: Callable[[], bool] = lambda: False
    unreadable: set[int] = field(default_factory=set)
    partition_by: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.leasing = Leasing(self.chance, self.count)

    def fails(self, where: str, number: int) -> bool:
        """Whether a call fails: for good, or now and then."""
        return (number in self.poison and where == "split") or self.chance.random() < self.failing.get(where, 0.0)

    def tell(self, what: str, message_id: MessageId, failure: Failure | None = None) -> None:
        assert isinstance(message_id, int)
        if self.is_over():
            return  # a process that has crashed tells nobody anything
        self.heard[what, message_id] += 1
        if failure is not None and failure.kind is FailureKind.PUBLISH:
            self.refused.add(message_id)

    def acked(self) -> set[int]:
        return {number for what, number in self.heard if what == "acked"}

    def dead(self) -> set[int]:
        return {number for what, number in self.heard if what == "dead"}


SCRIPTS: dict[str, Script] = {}
"""By name: tasks are copies, so what they share with the test is kept beside them."""


class Positioned(Spout[Note]):
    """Gives the messages in order, from a position."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.at = 0

    def next(self) -> list[Emit[Note]]:
        script = SCRIPTS[self.script]
        if self.at >= script.count:
            raise EndOfInput
        begin, self.at = self.at, min(self.at + script.chance.randint(1, 6), script.count)
        return [Emit(Note(self.script, number), number) for number in range(begin, self.at)]

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position

    def ack(self, message_id: MessageId) -> None:
        SCRIPTS[self.script].tell("acked", message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        SCRIPTS[self.script].tell("dead", message_id, failure)


class Broker(Spout[Note]):
    """Without a position: it delivers again what it was told nothing about, on each new connection."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.queue: list[int] = []

    def open(self, context: TaskContext) -> None:
        script = SCRIPTS[self.script]
        settled = script.acked() | script.dead()
        self.queue = [number for number in range(script.count) if number not in settled]
        self.mine: set[int] = set()

    def next(self) -> list[Emit[Note]]:
        script = SCRIPTS[self.script]
        if not self.queue:
            raise EndOfInput
        taken = script.chance.randint(1, 6)
        batch, self.queue = self.queue[:taken], self.queue[taken:]
        self.mine.update(batch)
        return [Emit(Note(self.script, number), number) for number in batch]

    def ack(self, message_id: MessageId) -> None:
        if message_id in self.mine:  # a handle of an earlier connection means nothing to a broker
            SCRIPTS[self.script].tell("acked", message_id)
            self._forget(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        assert isinstance(message_id, int)
        if message_id not in self.mine:
            return
        if failure.permanent:
            SCRIPTS[self.script].tell("dead", message_id, failure)
            self._forget(message_id)
        else:
            self.queue.append(message_id)

    def _forget(self, message_id: MessageId) -> None:
        """What is settled is not delivered again, also if it was asked for before."""
        self.queue = [number for number in self.queue if number != message_id]


class Pieces(SplitSpout[Note]):
    """Pieces of a row range, which executors read."""

    def __init__(self, script: str) -> None:
        self.script = script
        self.at = 0

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        script = SCRIPTS[self.script]
        if self.at >= script.count:
            raise EndOfInput
        begin, self.at = self.at, min(self.at + min(max_rows, script.chance.randint(1, 6)), script.count)
        return [Split(self.at - begin, begin, self.script)]

    def read(self, split: Split) -> Iterator[Note]:
        yield from (Note(self.script, number) for number in range(split.first, split.first + split.rows))

    def snapshot(self) -> Any:
        return self.at

    def restore(self, position: Any) -> None:
        self.at = position

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        assert isinstance(message_id, tuple)
        SCRIPTS[self.script].tell("dead", message_id[1], failure)


class Leased(LeaseSpout[Note]):
    """Messages that executors lease from a broker; what a verdict comes too late for, the broker delivers again."""

    def __init__(self, script: str) -> None:
        self.script = script

    def open(self, context: TaskContext) -> None:
        self.out: dict[int, str] = {}
        self.late: dict[int, Failure | None] = {}

    def plan(self, max_messages: int) -> int:
        script = SCRIPTS[self.script]
        if script.leasing.is_empty:
            raise EndOfInput
        if script.chance.random() < 0.7 and not script.is_over():
            script.leasing.extend(self.out.values())
        return len(script.leasing.ready)

    def take(self, max_messages: int, max_bytes: int) -> list[tuple[Lease, bytes]]:
        return [
            (Lease(str(number), handle, SCRIPTS[self.script].leasing.deliveries[number]), b"%d" % number)
            for number, handle in SCRIPTS[self.script].leasing.lease(max_messages)
        ]

    def read(self, taken: bytes) -> Note | Reject:
        number = int(taken)
        if number in SCRIPTS[self.script].unreadable:
            return Reject(taken, str(number), "not a note")
        return Note(self.script, number)

    def accept(self, leases: Sequence[Lease]) -> list[int]:
        new = []
        for at, lease in enumerate(leases):
            number = int(lease.message_id)
            is_out, self.out[number] = number in self.out, lease.handle
            if number in self.late:
                self._settle(number, self.late.pop(number))
            elif not is_out:
                new.append(at)
        return new

    def not_told(self) -> list[MessageId]:
        return [str(number) for number in self.late]

    def ack(self, message_id: MessageId) -> None:
        self._settle(int(str(message_id)), None)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        number = int(str(message_id))
        if failure.permanent:
            self._settle(number, failure)
        elif number in self.out and not SCRIPTS[self.script].is_over():
            SCRIPTS[self.script].leasing.give_back(self.out.pop(number))

    def _settle(self, number: int, failure: Failure | None) -> None:
        script = SCRIPTS[self.script]
        handle = self.out.pop(number, "")
        if script.is_over():
            return
        if handle and script.leasing.settle(handle):
            script.tell("dead" if failure else "acked", number, failure)
        elif number not in script.leasing.settled:
            self.late[number] = failure
