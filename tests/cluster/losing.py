"""A count by key whose source does something to the cluster in the middle of its input."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.clusters import parent_of
from tests.spark.helpers_semantics import Feed
from tupletree import Emit, KeyedState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.topology.components import Reject

KEYS = 7
BATCH = 50


class Number(msgspec.Struct, frozen=True):
    number: int
    key: int
    kills_executor_unless: str = ""


class Count(msgspec.Struct, frozen=True):
    number: int
    key: int
    count: int


DEEDS: dict[str, dict[int, Callable[[], None]]] = {}
"""By name of the feed: what to do after how many messages. Beside the feed, for it is copied."""


class Disturbing(Feed[Number]):
    """Does a deed when it has given so many messages, while epochs of them run."""

    def next(self) -> list[Emit[Number] | Reject]:
        deed = DEEDS[self.name].pop(self.taken, None)
        if deed is not None:
            deed()
        return super().next()


@bolt
def spread(number: Number) -> Number:
    """A number with a file's name kills the executor that it is worked on, once: one death proves nothing."""
    if number.kills_executor_unless:
        try:
            Path(number.kills_executor_unless).touch(exist_ok=False)
        except FileExistsError:
            return number
        os.kill(parent_of(os.getppid()), signal.SIGKILL)  # executor → Python daemon → this worker
    return number


@bolt(state=int)
def count(number: Number, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(number.number, number.key, total.value)


def losing(
    name: str, folder: Path, messages: int, deeds: dict[int, Callable[[], None]], killer: int | None = None
) -> Topology:
    """Count `messages` numbers by key, with deeds after some of them; one of them may kill its executor once."""
    DEEDS[name] = deeds
    t = Topology(name)
    killed = str(folder / "killed")
    numbers = [
        Emit(Number(number, number % KEYS, killed if number == killer else ""), number) for number in range(messages)
    ]
    source = t.spout("source", Disturbing(name, Number, numbers, BATCH))
    spreads = t.bolt("spread", spread, parallelism=2).shuffle(source)
    counts = t.bolt("count", count, parallelism=2).fields(spreads, "key")
    t.sink("out", jsonl(folder / "out")).shuffle(counts)
    return t
