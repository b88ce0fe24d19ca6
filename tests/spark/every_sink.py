"""One count into every kind of sink at once, some of which refuse rows; and what each must hold in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

from tests.databases import query
from tests.spark.counting import SOURCES, Count, count, expected_rows, heard, rows_of, split, stumble
from tests.spark.crashing import texts_of
from tupletree import Topology
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Summary
from tupletree.sinks import delta, foreach, jsonl, parquet, sql
from tupletree.topology.components import SinkBatch
from tupletree.tracking.outcomes import FailureKind

CALL_POINTS = {
    "publish.before_call": 3,
    "publish.after_call": 3,
    "publish.before_amendment": 1,
    "publish.after_amendment": 1,
}
"""Crash points that only a sink that is called comes to → at which pass."""


class AppendingCalls:
    """A function that appends its batches to a file, and refuses words that begin with `refused`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "calls"

    def __call__(self, batch: SinkBatch[Count]) -> None:
        if any(row.word.startswith("refused") for row in batch.rows):
            raise ValueError("a word was refused")
        with self.path.open("ab") as file:
            line = [batch.id, [[row.word, row.count] for row in batch.rows]]
            file.write(json.dumps(line).encode() + b"\n")


def topology(folder: Path, batch_size: int = 10, source: str = "file") -> Topology:
    """Count the words of `text` in the folder, into every sink."""
    t = Topology("every-sink")
    lines = t.spout("source", SOURCES[source](folder, batch_size))
    words = t.bolt("split", split, parallelism=2).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    passed = t.bolt("stumble", stumble).shuffle(counts)
    t.sink("lines", jsonl(folder / "lines"), parallelism=1).shuffle(passed)
    t.sink("columns", parquet(folder / "columns"), parallelism=1).shuffle(passed)
    t.sink("folders", parquet(folder / "folders", partition_by="word"), parallelism=1).shuffle(passed)
    t.sink("table", sql(database(folder), "counts"), parallelism=1).shuffle(passed)
    t.sink("lake", delta(folder / "lake"), parallelism=1).shuffle(passed)
    t.sink("function", foreach(AppendingCalls(folder)), parallelism=2).shuffle(passed)
    return t


def database(folder: Path) -> str:
    """The database of a folder: the one that it names, else a file."""
    named = folder / "database"
    return named.read_text() if named.exists() else f"sqlite:///{folder}/table.db"


def write_text(folder: Path, lines: int) -> None:
    """Lines of few words that come often, some trouble, and lines with words of their own that sinks refuse.

    The function refuses words that begin with `refused`, the database those that begin with `long`.
    """
    trouble = {3: "poison", 7: "flaky", 11: "stumble"}
    texts = [f"{trouble.get(number % 17, 'plain')} w{number % 7} w1" for number in range(lines)]
    for number in range(5, lines, 13):
        texts[number] = f"refused{number} only{number}"
        texts[number - 3] = f"long{number} only{number - 3}"
    query(database(folder), "CREATE TABLE counts (word TEXT CHECK (word NOT LIKE 'long%'), count INTEGER)")
    (folder / "text").write_text("\n".join(texts) + "\n")


def check_every_sink(folder: Path, summary: Summary) -> None:
    """What docs/semantics.md promises for each sink, after whatever happened."""
    texts = texts_of(folder)
    poisoned = {number for number, text in enumerate(texts, 1) if "poison" in text}
    by_function = {number for number, text in enumerate(texts, 1) if "refused" in text}
    by_database = {number for number, text in enumerate(texts, 1) if "long" in text}
    refused = by_function | by_database
    good = [text for number, text in enumerate(texts, 1) if number not in poisoned | refused]
    committed = [text for number, text in enumerate(texts, 1) if number not in poisoned]
    assert (summary.acked, summary.dead, summary.open) == (len(good), len(poisoned | refused), 0)
    # Files: exactly once. A sink that refuses a row has no say in what another one holds.
    for sink in ("lines", "columns", "folders"):
        assert rows_of(folder, sink) == expected_rows(committed)
    lake = DeltaTable(folder / "lake").to_pyarrow_table().to_pylist()
    assert Counter((row["word"], row["count"]) for row in lake) == expected_rows(committed)
    # The database refuses rows itself: exactly once, and nothing of a message that it refused.
    accepted = [text for number, text in enumerate(texts, 1) if number not in poisoned | by_database]
    assert Counter(query(database(folder), "SELECT word, count FROM counts")) == expected_rows(accepted)
    check_calls(folder, good)
    letters = deadletters.read(folder / "state")
    assert Counter(letter.message_id[1] for letter in letters) == Counter([*poisoned, *refused])
    by_sink = {letter.message_id[1] for letter in letters if letter.failure.kind is FailureKind.PUBLISH}
    assert by_sink == refused
    told = heard(folder)
    assert {number for what, number in told if what == "dead"} == poisoned | refused
    assert {number for what, number in told if what == "acked"} == set(range(1, len(texts) + 1)) - poisoned - refused
    left = [*(folder / "state" / "spools").glob("*/*")]
    assert left == []


def check_calls(folder: Path, good: Sequence[str]) -> None:
    """A function: at least once, and exactly once for one that remembers ids; never a row that it refused."""
    batches: dict[str, list[tuple[str, int]]] = {}
    for line in (folder / "calls").read_text().splitlines():
        batch_id, rows = json.loads(line)
        came = [(word, number) for word, number in rows]
        assert batches.setdefault(batch_id, came) == came, "a batch came again with other rows"
    once = Counter(row for rows in batches.values() for row in rows)
    alone = {row: times for row, times in once.items() if row[0].startswith(("only", "long"))}
    assert all(times == 1 for times in alone.values())
    assert once == expected_rows(good) + Counter(alone)
