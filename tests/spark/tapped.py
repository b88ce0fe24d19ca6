"""A source that gives what the test lets it give, and a topology behind it: to hold a run at a known place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.counting import count, split
from tupletree import Spout, Topology
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.runtimes.api import Progress, RunHandle
from tupletree.sinks import jsonl, read_rows
from tupletree.sources.text import Line
from tupletree.topology.components import Emit
from tupletree.tracking.outcomes import Failure

HANG_S = 120.0


@dataclass
class Tank:
    """What a tap gives, and what it heard. `allowed` may grow at any time; the source ends after the last text."""

    texts: list[str]
    allowed: int = 0
    rests: int = 0
    acked: Counter[MessageId] = field(default_factory=Counter)
    dead: Counter[MessageId] = field(default_factory=Counter)

    def open_all(self) -> None:
        self.allowed = len(self.texts)

    def rows(self, *, until: int | None = None) -> Counter[tuple[str, int]]:
        """The running counts that these texts (or the first of them) must give."""
        totals = Counter(word for text in self.texts[:until] for word in text.split())
        return Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))


TANKS: dict[str, Tank] = {}
"""By name: a spout task is a copy of the spout, so what it shares with the test is kept beside it."""


class Tap(Spout[Line]):
    """Gives the texts of a tank, a few at a time, with ids from 1 and a position."""

    def __init__(self, name: str, batch_size: int = 5) -> None:
        self.name = name
        self.batch_size = batch_size
        self.given = 0

    def next(self) -> list[Emit[Line]] | None:
        tank = TANKS[self.name]
        if self.given == len(tank.texts):
            raise EndOfInput
        begin, self.given = self.given, min(self.given + self.batch_size, max(self.given, tank.allowed))
        texts = tank.texts[begin : self.given]
        return [Emit(Line(text, self.name, number), number) for number, text in enumerate(texts, begin + 1)] or None

    def deactivate(self) -> None:
        TANKS[self.name].rests += 1

    def snapshot(self) -> int:
        return self.given

    def restore(self, position: int) -> None:
        self.given = position

    def ack(self, message_id: MessageId) -> None:
        TANKS[self.name].acked[message_id] += 1

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        TANKS[self.name].dead[message_id] += 1


def tapped(name: str, out: Path) -> Topology:
    """Count the words of a tank."""
    t = Topology("tapped")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("tap", Tap(name)))
    t.sink("out", jsonl(out)).shuffle(t.bolt("count", count, parallelism=2).fields(words, "word"))
    return t


def rows_of(out: Path) -> Counter[tuple[str, int]]:
    return Counter((row["word"], row["count"]) for row in read_rows(out))


def wait_until(handle: RunHandle, true: Callable[[Progress], Any]) -> Progress:
    """Wait for a state of a run that goes on. Raises what made it fail, or TimeoutError."""
    for _ in range(int(HANG_S / 0.02)):
        progress = handle.progress()
        if true(progress):
            return progress
        try:
            summary = handle.wait(0.02)
        except TimeoutError:
            continue
        raise AssertionError(f"it ended: {summary}")
    raise TimeoutError(f"it did not come to that: {handle.progress()}")
