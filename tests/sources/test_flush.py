"""A source is asked to make durable what it was told, on both runtimes, also after an outage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.queues.test_sources_and_sinks import RUNTIMES, Runner
from tupletree import AsyncSpout, ConnectorError, Emit, EndOfInput, PermanentError, Spout, Topology, bolt

ALL = set(range(100))


@dataclass(frozen=True)
class Number:
    n: int


@bolt
def refuse_some(number: Number) -> None:
    """Every tenth is refused."""
    if number.n % 10 == 0:
        raise PermanentError("refused")


class Table:
    """What is told, and what of it is durable; the first `flush` meets an outage."""

    def __init__(self) -> None:
        self.told: set[Any] = set()
        self.durable: set[Any] = set()
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        if self.told and self.told != self.durable and self.flushes == 1:
            raise ConnectorError("the source is away")
        self.durable = {*self.told}


class Plain(Spout[Number]):
    def __init__(self, table: Table) -> None:
        self.table = table
        self.given = False

    def next(self) -> list[Emit[Number]]:
        if self.given:
            raise EndOfInput
        self.given = True
        return [Emit(Number(number), number) for number in range(100)]

    def ack(self, message_id: object) -> None:
        self.table.told.add(message_id)

    def fail(self, message_id: object, failure: object) -> None:
        self.table.told.add(message_id)

    def flush(self) -> None:
        self.table.flush()


class Async(AsyncSpout[Number]):
    def __init__(self, table: Table) -> None:
        self.plain = Plain(table)

    async def next(self) -> list[Emit[Number]]:
        return self.plain.next()

    async def ack(self, message_id: object) -> None:
        self.plain.ack(message_id)

    async def fail(self, message_id: object, failure: object) -> None:
        self.plain.fail(message_id, failure)

    async def flush(self) -> None:
        self.plain.flush()


@RUNTIMES
@pytest.mark.parametrize("kind", [Plain, Async])
def test_all_that_a_source_was_told_is_durable_when_the_run_ends(
    tmp_path: Path, runtime: Runner, kind: type[Plain | Async]
) -> None:
    table = Table()
    t = Topology("flushing")
    t.bolt("refuse", refuse_some).shuffle(t.spout("numbers", kind(table)))
    ended = runtime(t, tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (90, 10, 0)
    assert table.durable == ALL
