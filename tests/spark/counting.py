"""A word count with every kind of trouble, and what must come of it."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tupletree import KeyedState, Spout, TaskContext, Topology, bolt
from tupletree.config import Options, resolve_options
from tupletree.errors import EndOfInput
from tupletree.ids import MessageId
from tupletree.runtimes import run
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.crash_points import VARIABLE
from tupletree.sinks import jsonl, parquet, read_rows
from tupletree.sources.parquet_rows import ParquetRows
from tupletree.sources.text import Line, TextLines
from tupletree.testing.in_process import start_in_process
from tupletree.topology.changes.upgrades import Words
from tupletree.topology.components import Emit, Reject
from tupletree.topology.model import TargetRef
from tupletree.topology.splits import Lease, LeaseSpout, Split, SplitSpout
from tupletree.tracking.outcomes import Failure

ROOT = Path(__file__).resolve().parents[2]

QUICK = {
    "backoff_initial_ms": 1.0,
    "backoff_max_ms": 5.0,
    "service_backoff_max_ms": 5.0,
    "spout_idle_wait_ms": 5.0,
    "max_restarts": 0,
}
"""Retries at once, and no restarts: these tests are about what is retried and how a run ends, not about waiting."""

SINKS = ("lines", "columns")


class Word(msgspec.Struct, frozen=True, gc=False):
    word: str


class Count(msgspec.Struct, frozen=True, gc=False):
    word: str
    count: int


class SplitLines(TextLines[Line]):
    """Lines of a file, read by executors. It hears of the dead only, and writes them down, one JSON list a line."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        super().__init__([folder / "text"], message_type=Line)
        self.folder = folder
        self.batch_size = batch_size

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        return super().plan(min(max_rows, self.batch_size), max_bytes)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        _note(self.folder, "dead", message_id)


class RowLines(ParquetRows[Line]):
    """The same lines as rows of a Parquet file of small row groups; it hears of the dead, as `SplitLines` does."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        rows = folder / "rows" / "a.parquet"
        if not rows.exists():
            rows.parent.mkdir(exist_ok=True)
            texts = (folder / "text").read_text().splitlines()
            numbers = [*range(1, len(texts) + 1)]
            table = pa.table({"number": numbers, "text": texts, "path": [str(folder / "text")] * len(texts)})
            pq.write_table(table, rows, row_group_size=7)
        super().__init__([folder / "rows"], message_type=Line)
        self.folder = folder
        self.batch_size = batch_size

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        return super().plan(min(max_rows, self.batch_size), max_bytes)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        _note(self.folder, "dead", message_id)


class HeardLines(Spout[Line]):
    """The same lines, from a position, pulled by the driver; what it is told is written down, too."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.folder = folder
        self.batch_size = batch_size
        self._lines = SplitLines(folder, batch_size)

    def open(self, context: TaskContext) -> None:
        self._lines.open(context)

    def next(self) -> Sequence[Emit[Line] | Reject]:
        return SplitSpout.next(self._lines) or []

    def snapshot(self) -> Any:
        return self._lines.snapshot()

    def restore(self, position: Any) -> None:
        self._lines.restore(position)

    def close(self) -> None:
        self._lines.close()

    def ack(self, message_id: MessageId) -> None:
        _note(self.folder, "acked", message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        _note(self.folder, "dead", message_id)


class EndlessLines(HeardLines):
    """The same, for a run that goes on until it is stopped."""

    def next(self) -> Sequence[Emit[Line] | Reject]:
        try:
            return super().next()
        except EndOfInput:
            return []


class Broker(Spout[Line]):
    """The same lines from a source without a position or an end: it delivers again what it was told nothing about.

    As with a broker's delivery tags, a verdict about a message that this connection has not delivered goes unheard.
    What an earlier connection delivered comes again once the file `redeliver` is there, as when a lease runs out.
    """

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.folder = folder
        self.batch_size = batch_size

    def open(self, context: TaskContext) -> None:
        settled = {number for _, number in heard(self.folder)}
        delivered = delivered_by_broker(self.folder)
        path = self.folder / "text"
        lines = [Line(text, str(path), number) for number, text in enumerate(path.read_text().splitlines(), 1)]
        self._queue = [line for line in lines if line.number not in delivered]
        self._leased = [line for line in lines if line.number in delivered - settled]
        self._delivered: set[int] = set()

    def next(self) -> list[Emit[Line]]:
        if (self.folder / "redeliver").exists():
            self._queue, self._leased = self._leased + self._queue, []
        batch, self._queue = self._queue[: self.batch_size], self._queue[self.batch_size :]
        with (self.folder / "delivered").open("ab") as file:
            file.writelines(b"%d\n" % line.number for line in batch)
        self._delivered.update(line.number for line in batch)
        return [Emit(line, (line.path, line.number)) for line in batch]

    def ack(self, message_id: MessageId) -> None:
        self._settle("acked", message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self._settle("dead", message_id)

    def _settle(self, what: str, message_id: MessageId) -> None:
        assert isinstance(message_id, tuple)
        if message_id[1] in self._delivered:
            _note(self.folder, what, message_id)


class LeasedLines(LeaseSpout[Line]):
    """The same lines from a broker that executors lease from: its leases are files, and end with the process.

    The broker delivers again what nobody told it anything about, to the next process: it sees that the last one died.
    """

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.folder = folder
        self.batch_size = batch_size

    def open(self, context: TaskContext) -> None:
        self._out: set[int] = set()
        self._not_told: set[MessageId] = set()

    def plan(self, max_messages: int) -> int:
        settled = {number for _, number in heard(self.folder)}
        if len(settled) == self._count():
            raise EndOfInput
        return min(max_messages, self.batch_size, len(self._ready()))

    def take(self, max_messages: int, max_bytes: int) -> list[tuple[Lease, bytes]]:
        lines = (self.folder / "text").read_text().splitlines()
        taken = self._ready()[:max_messages]
        with (self.folder / "leased").open("ab") as file:
            file.writelines(b"%d %d\n" % (os.getpid(), number) for number in taken)
        return [(Lease(str(number), f"{os.getpid()}"), f"{number} {lines[number - 1]}".encode()) for number in taken]

    def accept(self, leases: Sequence[Lease]) -> list[int]:
        new = [at for at, lease in enumerate(leases) if int(lease.message_id) not in self._out]
        self._out.update(int(lease.message_id) for lease in leases)
        return new

    def not_told(self) -> set[MessageId]:
        return self._not_told

    def read(self, taken: bytes) -> Line:
        number, _, text = taken.decode().partition(" ")
        return Line(text, str(self.folder / "text"), int(number))

    def ack(self, message_id: MessageId) -> None:
        self._settle("acked", message_id)

    def fail(self, message_id: MessageId, failure: Failure) -> None:
        self._settle("dead", message_id)

    def _settle(self, what: str, message_id: MessageId) -> None:
        if int(str(message_id)) in self._out:
            _note(self.folder, what, ("", int(str(message_id))))
            self._not_told.discard(message_id)
        else:
            self._not_told.add(message_id)

    def _count(self) -> int:
        return len((self.folder / "text").read_text().splitlines())

    def _ready(self) -> list[int]:
        path = self.folder / "leased"
        leases = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        out = {int(number) for process, number in leases if int(process) == os.getpid()}
        settled = {number for _, number in heard(self.folder)}
        return [number for number in range(1, self._count() + 1) if number not in out | settled]


def delivered_by_broker(folder: Path) -> set[int]:
    """The lines that connections of the broker have delivered so far."""
    path = folder / "delivered"
    return set(map(int, path.read_bytes().split())) if path.exists() else set()


def _note(folder: Path, what: str, message_id: MessageId) -> None:
    with (folder / "heard").open("ab") as file:
        file.write(json.dumps([what, line_of(message_id)]).encode() + b"\n")


def line_of(message_id: Any) -> int:
    """The number of a line, from 1; rows of Parquet are counted from 0."""
    name, number = message_id
    return int(number) + str(name).endswith(".parquet")


SOURCES: dict[str, Callable[[Path, int], Spout[Line]]] = {
    "file": HeardLines,
    "splits": SplitLines,
    "parquet": RowLines,
    "endless": EndlessLines,
    "broker": Broker,
    "leased": LeasedLines,
}


@bolt
def split(line: Line, context: TaskContext) -> Iterator[Word]:
    """Poisoned lines fail until the file `mended` is beside the text; flaky ones on their first attempt."""
    if "poison" in line.text and not Path(line.path).with_name("mended").exists():
        raise ValueError(f"line {line.number} is poison")
    if "flaky" in line.text and context.attempt == 1:
        raise ConnectionError(f"line {line.number} is flaky")
    return map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


@bolt
def stumble(counted: Count, context: TaskContext) -> Count:
    """Behind the count: words that stumble fail on their line's first attempt, after they touched state."""
    if counted.word.startswith("stumble") and context.attempt == 1:
        raise ConnectionError(f"{counted.word} was not accepted")
    return counted


def topology(
    folder: Path, batch_size: int = 10, source: str = "file", split_tasks: int = 3, count_tasks: int = 2
) -> Topology:
    """Count the words of `text` in the folder."""
    t = Topology("crash-count")
    lines = t.spout("source", SOURCES[source](folder, batch_size))
    words = t.bolt("split", split, parallelism=split_tasks).shuffle(lines)
    counts = t.bolt("count", count, parallelism=count_tasks).fields(words, "word")
    passed = t.bolt("stumble", stumble).shuffle(counts)
    t.sink("lines", jsonl(folder / "lines")).shuffle(passed)
    t.sink("columns", parquet(folder / "columns")).shuffle(passed)
    return t


def write_text(folder: Path, lines: int) -> None:
    """Lines of few words that come often, with some poison, some flaky lines and some that fail behind the count."""
    trouble = {3: "poison", 7: "flaky", 11: "stumble"}
    texts = [f"{trouble.get(number % 17, 'plain')} w{number % 7} w{number % 3} w1" for number in range(lines)]
    (folder / "text").write_text("\n".join(texts) + "\n")


def target() -> TargetRef:
    """Workers import the classes of these tests from the root of the repository."""
    return TargetRef("tests.spark.counting", "topology", str(ROOT))


def rows_of(folder: Path, sink: str) -> Counter[tuple[str, int]]:
    """How often a plain reader sees each row of a sink; empty before the sink's folder exists."""
    if not (folder / sink).exists():
        return Counter()
    return Counter((row["word"], row["count"]) for row in read_rows(folder / sink))


def heard(folder: Path) -> Counter[tuple[str, int]]:
    """How often the spout was told what about which line. A process that was killed may have left half a line."""
    path = folder / "heard"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return Counter((what, number) for what, number in map(json.loads, lines))


def expected_rows(texts: Sequence[str]) -> Counter[tuple[str, int]]:
    """Every running count of every word of these lines, once."""
    totals = Counter(word for text in texts for word in text.split())
    return Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))


def _fall_asleep(_process: int, _signal: int) -> None:
    """In the place of dying at a crash point: what a driver does whose machine hangs. Once."""
    del os.environ[VARIABLE]
    # To this very thread, so that it is here that the process stops, and not a few steps further.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def main(plan: dict[str, Any]) -> None:
    """What a process of its own does (`crashing`): run as the plan says, until the end or a crash point."""
    from tupletree.runtimes.spark.settle import decision

    folder = Path(plan["folder"])
    if plan["asleep"]:
        patch(
            "tupletree.runtimes.crash_points.os",
            SimpleNamespace(environ=os.environ, getpid=os.getpid, kill=_fall_asleep),
        ).start()
    # No option shortens this; what happens at a base does not depend on when one is due.
    decision.BASE_EPOCHS = plan["base_epochs"]
    options = resolve_options(code={**QUICK, **plan["options"]})
    module = importlib.import_module(plan["topology"])
    counted = module.topology(folder, plan["batch_size"], plan["source"], *plan["tasks"])
    begin(counted, options, folder / "state", plan["master"]).wait()


def begin(counted: Topology, options: Options, state_dir: Path, master: str, drops: Collection[str] = ()) -> RunHandle:
    """Start a topology of these tests on a Spark master, or in this process: `in-process[2]`, in so many partitions."""
    partitions = re.fullmatch(r"in-process\[(\d+)\]", master)
    if partitions is None:
        return run.run(counted, options=options, target=target(), state_dir=state_dir, master=master, drops=drops)
    words = Words(drops=frozenset(drops))
    request = RunRequest(counted, options, target(), state_dir, append=False, master="", redact=None, words=words)
    return start_in_process(request, int(partitions[1]))
