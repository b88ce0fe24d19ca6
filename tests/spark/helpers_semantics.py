"""A spout that remembers what it is told, and everything that came out of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tupletree import Topology
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Summary
from tupletree.sinks import read_rows
from tupletree.topology.components import Emit, Reject, Spout, TaskContext
from tupletree.tracking.outcomes import DeadLetter, Failure

T = TypeVar("T")


@dataclass
class Heard:
    """What the spouts of one run were told, over all their tasks."""

    acked: list[MessageId] = field(default_factory=list)
    failed: list[tuple[MessageId, Failure]] = field(default_factory=list)


HEARD: dict[str, Heard] = {}
"""By name of the feed: a spout task is a copy of the spout, so what it hears is kept beside it."""


class Feed(Spout[T], Generic[T]):
    """Emits the given messages, a few at a time, and remembers what it hears. Several tasks share the messages."""

    def __init__(
        self, name: str, message_type: type[T], messages: Sequence[Emit[T] | Reject], batch: int = 100
    ) -> None:
        self.name = name
        self.message_type = message_type
        self.messages = tuple(messages)
        self.batch = batch
        HEARD[name] = Heard()

    def open(self, context: TaskContext) -> None:
        self.mine = self.messages[context.task_index :: context.parallelism]
        self.taken = 0

    def next(self) -> list[Emit[T] | Reject]:
        if self.taken >= len(self.mine):
            raise EndOfInput
        given = self.mine[self.taken : self.taken + self.batch]
        self.taken += len(given)
        return list(given)

    def snapshot(self) -> int:
        return self.taken

    def restore(self, position: int) -> None:
        self.taken = position

    def ack(self, message_id: MessageId) -> None:
        HEARD[self.name].acked.append(message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        HEARD[self.name].failed.append((message_id, failure))


@dataclass
class Result:
    """What came of a run whose sinks write to folders of `out`."""

    summary: Summary
    letters: list[DeadLetter]
    out: Path

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """The published rows of a sink, as a plain reader sees them."""
        return list(read_rows(self.out / sink))

    def tally(self, sink: str, *names: str) -> Counter[Any]:
        """How often each value (or combination of values) of these fields was published."""
        if len(names) == 1:
            return Counter(row[names[0]] for row in self.rows(sink))
        return Counter(tuple(row[name] for name in names) for row in self.rows(sink))

    @property
    def dead(self) -> dict[Any, DeadLetter]:
        """Dead letters by message id, in its plain form; lists become tuples."""
        return {hashable(letter.message_id): letter for letter in self.letters}


def hashable(plain: Any) -> Any:
    return tuple(map(hashable, plain)) if isinstance(plain, list) else plain


def finish(run_topology: Callable[..., Summary], topology: Topology, out: Path, **options: Any) -> Result:
    """Run until everything is settled: every message is acked or dead, none is open, none is dead twice."""
    summary = run_topology(topology, out / "state", **options)
    assert summary.emitted == summary.acked + summary.dead
    assert summary.open == 0
    result = Result(summary, deadletters.read(out / "state"), out)
    assert len(result.dead) == len(result.letters) == summary.dead
    return result
