"""A queue that gives a failed message again after others, and windows that wait for it."""

from __future__ import annotations

import msgspec

from tupletree import Emit, Spout, TaskContext, Topology, Window, bolt, window_bolt
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.topology.components import Sink
from tupletree.tracking.outcomes import Failure


class At(msgspec.Struct, frozen=True):
    second: float


class Members(msgspec.Struct, frozen=True):
    seconds: list[float]


@bolt
def first_fails(at: At, context: TaskContext) -> At:
    if at.second == 0 and context.attempt == 1:
        raise ValueError("try again")
    return At(at.second)


@window_bolt(length_s=2.0, timestamp="second", late="fail", extend_timeout=True)
def members(window: Window[At]) -> Members:
    return Members([at.second for at in window])


class Queue(Spout[At]):
    """Messages of one second each, from 0 on; what failed comes again after `others` of them."""

    def __init__(self, count: int, others: int) -> None:
        self.waiting = [*range(count)]
        self.others = others
        self.given: set[MessageId] = set()
        self.most = 0

    def next(self) -> Emit[At]:
        if not self.waiting:
            raise EndOfInput
        second = self.waiting.pop(0)
        self.given.add(second)
        self.most = max(self.most, len(self.given))
        return Emit(At(second), second)

    def ack(self, message_id: MessageId) -> None:
        self.given.remove(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self.given.remove(message_id)
        self.waiting.insert(self.others, int(str(message_id)))


def seconds(source: Queue, out: Sink[Members], limit: int) -> Topology:
    t = Topology("seconds", options={"max_spout_pending": limit})
    numbers = t.bolt("first_fails", first_fails).shuffle(t.spout("numbers", source, replay="source"))
    t.sink("out", out).global_(t.bolt("members", members).global_(numbers))
    return t


def pairs_from(first: int, last: int) -> list[Members]:
    """The windows of these seconds, all of them whole."""
    return [Members([second, second + 1]) for second in range(first, last, 2)]
