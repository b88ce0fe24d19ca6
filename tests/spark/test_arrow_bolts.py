"""Arrow bolts on Spark and locally: the same rows as plain bolts give, whatever fails on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.helpers_semantics import HEARD, Feed
from tupletree import Anchored, KeyedBatch, KeyedState, PermanentError, Topology, arrow_bolt, bolt
from tupletree.runtimes import run
from tupletree.sinks import jsonl, parquet, read_rows
from tupletree.testing.conformance.messages import numbered

pytestmark = pytest.mark.spark


class Text(msgspec.Struct, frozen=True):
    text: str


class Word(msgspec.Struct, frozen=True):
    word: str
    price: Decimal | None
    tags: list[str]


class Tally(msgspec.Struct, frozen=True):
    word: str
    count: int


def word_of(word: str) -> Word:
    return Word(word, Decimal("1.10") if word > "m" else None, [word, "x"])


@arrow_bolt(inputs=Text, outputs=Word)
def split_columns(batch: pa.RecordBatch) -> Iterator[Anchored]:
    texts: list[Any] = batch["text"].to_pylist()
    if "boom" in " ".join(texts).split():
        raise PermanentError("boom")
    rows = [(row, word_of(word)) for row, text in enumerate(texts) for word in text.split()]
    for part in (rows[::2], rows[1::2]):
        words = [word for _, word in part]
        yield Anchored(
            pa.RecordBatch.from_pydict(
                {
                    "word": pa.array([word.word for word in words], pa.string()),
                    "price": pa.array([None if word.price is None else str(word.price) for word in words], pa.string()),
                    "tags": pa.array([msgspec.msgpack.encode(word.tags) for word in words], pa.binary()),
                }
            ),
            [row for row, _ in part],
        )


@arrow_bolt(outputs=Tally, state=int)
def count_columns(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> Anchored:
    totals.values = [total + int(n) for total, n in zip(totals.values, np.bincount(totals.codes))]
    if "late" in totals.keys:
        raise PermanentError("late")
    counted = pa.RecordBatch.from_arrays([batch["word"].take(totals.first), pa.array(totals.values)], ["word", "count"])
    return totals.anchored(counted)


@bolt
def split_tuples(line: Text) -> list[Word]:
    words = line.text.split()
    if "boom" in words:
        raise PermanentError("boom")
    return [word_of(word) for word in words]


@bolt(state=int)
def count_tuples(word: Word, total: KeyedState[int]) -> Tally:
    if word.word == "late":
        raise PermanentError("late")
    total.value += 1
    return Tally(word.word, total.value)


@arrow_bolt(inputs=Word, outputs=Word)
def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.scalar(True)) if batch.num_rows > 1 else batch


LINES = [f"{'abcz'[number % 4]} b {'abcdefgz'[number % 8]}" for number in range(400)]
for bad, extra in ((7, "boom"), (44, "late"), (200, "x boom y"), (311, "b late b")):
    LINES[bad] += f" {extra}"
BAD = {7, 44, 200, 311}


def topology(out: Path, mixtures: Mapping[str, tuple[Any, Any]]) -> Topology:
    """A word count for each of these (how to split, how to count), side by side: one run costs less than several."""
    t = Topology("arrow", options={"epoch_max_messages": 150 * len(mixtures)})
    for name, (split, count) in mixtures.items():
        lines = t.spout(name, Feed(name, Text, numbered([Text(line) for line in LINES])))
        words = t.bolt(f"{name}-split", split, parallelism=2).shuffle(lines)
        counts = t.bolt(f"{name}-count", count, parallelism=3).fields(words, "word")
        t.sink(f"{name}-parquet", parquet(out / name / "parquet")).shuffle(counts)
        t.sink(f"{name}-jsonl", jsonl(out / name / "jsonl")).shuffle(counts)
        passed = t.bolt(f"{name}-same", same).shuffle(words)
        t.sink(f"{name}-words", parquet(out / name / "words")).shuffle(passed)
    return t


def last(out: Path, sink: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in read_rows(out / sink):
        found[row["word"]] = max(found[row["word"]], row["count"])
    return found


EXPECTED = Counter(word for number, line in enumerate(LINES) if number not in BAD for word in line.split())


def check(name: str, out: Path) -> None:
    """Every message has its verdict, and every count is that of the messages that were acked."""
    heard = HEARD[name]
    assert sorted(heard.acked) == [number for number in range(len(LINES)) if number not in BAD]
    assert {message_id for message_id, _ in heard.failed} == BAD
    assert {failure.component for _, failure in heard.failed} == {f"{name}-split", f"{name}-count"}
    assert {failure.error for _, failure in heard.failed} == {"boom", "late"}
    assert Counter(row["word"] for row in read_rows(out / "words")) == EXPECTED
    assert {row["price"] for row in read_rows(out / "words")} == {None, "1.10"}
    assert last(out, "parquet") == last(out, "jsonl") == EXPECTED


def test_on_spark_columns_and_tuples_mix_and_bad_rows_fail_alone(run_topology: RunTopology, tmp_path: Path) -> None:
    mixtures = {
        "columns": (split_columns, count_columns),
        "tuples-first": (split_tuples, count_columns),
        "tuples-last": (split_columns, count_tuples),
    }
    summary = run_topology(topology(tmp_path, mixtures), tmp_path / "state")
    assert (summary.acked, summary.dead, summary.open) == (3 * (len(LINES) - len(BAD)), 3 * len(BAD), 0)
    for name in mixtures:
        check(name, tmp_path / name)


def test_locally_columns_and_tuples_mix_and_bad_rows_fail_alone(tmp_path: Path) -> None:
    name = "local"
    # What a message counted before it failed stays counted here, so counts are not compared with EXPECTED.
    lines = topology(tmp_path, {name: (split_columns, count_columns)})
    summary = run.run(lines, runtime="local", state_dir=tmp_path / "state").wait(60.0)
    assert (summary.acked, summary.dead, summary.open) == (len(LINES) - len(BAD), len(BAD), 0)
    heard = HEARD[name]
    assert {message_id for message_id, _ in heard.failed} == BAD
    assert Counter(row["word"] for row in read_rows(tmp_path / name / "words")) == EXPECTED
    assert last(tmp_path / name, "parquet") == last(tmp_path / name, "jsonl")
