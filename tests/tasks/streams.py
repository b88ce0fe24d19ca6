"""Message classes, spouts and bolts that the tests of the flow share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tupletree import Emit, Spout
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import Reject, Sink, SinkBatch
from tupletree.tracking.outcomes import Failure


class Line(msgspec.Struct, frozen=True, gc=False):
    text: str


class Word(msgspec.Struct, frozen=True, gc=False):
    word: str


class Count(msgspec.Struct, frozen=True, gc=False):
    word: str
    count: int


class Script(Spout[Line]):
    """Gives what it is told to, one step per `next`, and remembers what it hears."""

    def __init__(self, steps: Iterable[Any], *, ends: bool = True) -> None:
        self.steps = deque(steps)
        self.ends = ends
        self.asked = 0
        self.acked: list[MessageId] = []
        self.failed: list[tuple[MessageId, Failure]] = []
        self.life: list[str] = []

    def open(self, context: object) -> None:
        self.life.append("open")

    def activate(self) -> None:
        self.life.append("activate")

    def deactivate(self) -> None:
        self.life.append("deactivate")

    def close(self) -> None:
        self.life.append("close")

    def next(self) -> Emit[Line] | Reject | Sequence[Emit[Line] | Reject] | None:
        self.asked += 1
        if self.steps:
            step: Emit[Line] | Reject | Sequence[Emit[Line] | Reject] | None = self.steps.popleft()
            return step
        if self.ends:
            raise EndOfInput
        return None

    def ack(self, message_id: MessageId) -> None:
        self.acked.append(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.failed.append((message_id, failure))


def lines(*texts: str) -> list[Emit[Line]]:
    """One message per text, under ids from 0."""
    return [Emit(Line(text), number) for number, text in enumerate(texts)]


class Gathering(Sink[Any]):
    """Keeps the batches that it is given."""

    def __init__(self) -> None:
        self.batches: list[SinkBatch[Any]] = []
        self.refuse: Any = None

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch.rows]

    def write(self, batch: SinkBatch[Any]) -> None:
        if self.refuse is not None:
            self.refuse(batch)
        self.batches.append(batch)
