"""A delivery that a source gave before it was told of the message's end is no new message, wherever it waited."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.spark.counting import QUICK
from tupletree import Emit, EndOfInput, Spout, TaskContext, Topology, bolt
from tupletree.config import resolve_options
from tupletree.errors import ProcessingError
from tupletree.ids import MessageId
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import jsonl, read_rows
from tupletree.testing.in_process import start_in_process
from tupletree.tracking.outcomes import Failure


class Number(msgspec.Struct, frozen=True):
    number: int


TOLD: list[tuple[str, MessageId]] = []


class Broker(Spout[Number]):
    """Without a position: it gives each message twice at once, as after a reconnection and a failure."""

    def open(self, context: TaskContext) -> None:
        self.batches = [[1, 1, 2, 1], [3, 2, 3]]

    def next(self) -> list[Emit[Number]]:
        if not self.batches:
            raise EndOfInput
        over = {message_id for _, message_id in TOLD}  # what is settled is not delivered again
        return [Emit(Number(number), number) for number in self.batches.pop(0) if number not in over]

    def ack(self, message_id: MessageId) -> None:
        TOLD.append(("acked", message_id))

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        TOLD.append(("dead", message_id))


@bolt
def refuse_two(number: Number) -> Number:
    if number.number == 2:
        raise ProcessingError("two")
    return number


@pytest.mark.parametrize("pending", [1, 2, 100])
def test_a_copy_that_waits_while_its_message_is_settled_is_told_and_not_worked(tmp_path: Path, pending: int) -> None:
    TOLD.clear()
    t = Topology("copies")
    numbers = t.spout("numbers", Broker(), pending=pending)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("refuse_two", refuse_two).shuffle(numbers))
    settings = resolve_options(code={**QUICK, **t.build().options, "max_attempts": 1})
    request = RunRequest(t, settings, None, tmp_path / "state", append=False, master="", redact=None)
    ended = start_in_process(request, 2).wait(30.0)
    assert (ended.acked, ended.dead, ended.open) == (2, 1, 0)
    assert Counter(row["number"] for row in read_rows(tmp_path / "out")) == {1: 1, 3: 1}
    assert {("acked", 1), ("dead", 2), ("acked", 3)} == {*TOLD}
