"""Frames of columns that are joined for one call: what is in them, and their edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.tapped import TANKS, Tank, Tap
from tupletree import Topology, bolt
from tupletree.bolts import count_by_key, explode, sum_by_key
from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame, Frame
from tupletree.runtimes.run import stored_state
from tupletree.runtimes.spark.format.entries import numbered
from tupletree.runtimes.spark.worker import joined_frames
from tupletree.runtimes.spark.worker.edges import Edges
from tupletree.runtimes.spark.worker.joined_frames import join_frames
from tupletree.sinks import parquet, read_rows
from tupletree.sources.text import Line
from tupletree.topology.streams import Schema


class Number(msgspec.Struct, frozen=True):
    number: int


class Word(msgspec.Struct, frozen=True):
    word: str


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int


class Weighed(msgspec.Struct, frozen=True):
    word: str
    weight: int


CODEC = ArrowCodec.of(Schema.of(Number))


def frame(edge: int, roots: Sequence[int], source: int = 1) -> ColumnFrame:
    """One row for each root: its number."""
    batch = CODEC.to_batch([Number(root) for root in roots])
    anchors = Anchors.of(list(roots), list(range(1, len(roots) + 1)))
    return ColumnFrame(7, "from", "Number", ArrowColumns(batch, CODEC, anchors), edge, source)


def given(*frames: Frame, skip: set[int] | None = None, edges: Edges | None = None) -> list[Frame]:
    codecs = {("from", "Number"): CODEC}
    return [*join_frames(frames, codecs, skip or set(), edges or Edges(), lambda number: 1000 + number)]


def rows(frame: Frame) -> list[int]:
    return [value.number for value in frame.values]


def test_frames_of_one_task_and_stream_become_one() -> None:
    joined = given(frame(1, [1, 2]), frame(2, [2, 3]), frame(3, [4], source=2))
    assert [(one.id, rows(one), one.roots, one.source) for one in joined] == [
        (1000, [1, 2, 2, 3], [1, 2, 2, 3], 1),
        (3, [4], [4], 2),
    ]


def test_tuples_become_columns_where_that_is_possible() -> None:
    numbers, others = ([Number(5), Number(6)], [Number(2**70)])
    plain = Frame(7, "from", "Number", numbers, [5, (5, 6)], [1, 2], 5, None, 1)
    (joined,) = given(frame(1, [1]), plain, frame(2, [2]))
    assert (rows(joined), joined.roots, joined.ends) == ([1, 5, 6, 2], [1, 5, (5, 6), 2], [1, 2, 3, 4])
    numbered_ = Frame(7, "from", "Number", numbers, [5, 6], [1, 2], 6, [1, 2], 1)
    misfit = Frame(7, "from", "Number", others, [9], [1], 8, None, 1)
    assert [one.id for one in given(plain, numbered_, plain, misfit, frame(2, [2]), frame(3, [3]))] == [
        5,
        6,
        5,
        8,
        1002,
    ]


def test_what_is_too_large_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_frames, "JOINED_ROWS", 3)
    assert [rows(one) for one in given(*(frame(edge, [edge, edge + 10]) for edge in range(1, 4)), frame(4, [4]))] == [
        [1, 11], [2, 12], [3, 13, 4],
    ]  # fmt: skip
    monkeypatch.setattr(joined_frames, "JOINED_BYTES", 1)
    assert [one.id for one in given(frame(1, [1]), frame(2, [2]))] == [1, 2]


def test_what_was_joined_and_worked_leaves_the_edges_of_the_frames_that_came() -> None:
    edges = Edges()
    (joined,) = given(frame(1, [1, 2]), frame(2, [2, 3]), skip={3}, edges=edges)
    edges.ended(joined.id, joined.roots)
    entries = edges.entries()
    assert entries is not None
    assert dict(zip(*(part.tolist() for part in entries), strict=True)) == {1: 1, 2: 1 ^ 2}


def test_a_root_that_failed_in_a_joined_frame_stays_open() -> None:
    edges = Edges()
    (joined,) = given(frame(1, [1, 2]), frame(2, [2, 3]), edges=edges)
    edges.ended(joined.id, [2, 3])
    entries = edges.entries()
    assert entries is not None
    assert dict(zip(*(part.tolist() for part in entries), strict=True)) == {1: 1 ^ 1000, 2: 1 ^ 2, 3: 2}


@bolt
def weigh(counted: Word) -> Weighed:
    return Weighed(counted.word[:1], 2**62 if counted.word == "heavy" else 1)


def test_columns_are_counted_exactly_with_one_row_for_each_key_in_an_epoch(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    texts = [f"all{' heavy' if number in {7_000, 9_000} else ''} w{number % 50}" for number in range(10_000)]
    TANKS["joined"] = Tank(texts, allowed=len(texts))
    t = Topology("joined")
    lines = t.spout("tap", Tap("joined", batch_size=5_000))
    words = t.bolt("split", explode(Line, "text", into=Word), parallelism=1).shuffle(lines)
    counts = t.bolt("count", count_by_key(Word, "word", into=Count), parallelism=2).fields(words, "word")
    t.sink("out", parquet(tmp_path / "out")).shuffle(counts)
    sums = t.bolt("sum", sum_by_key(Weighed, "word", field="weight", into=Weighed), parallelism=2).fields(
        t.bolt("weigh", weigh, parallelism=2).shuffle(words), "word"
    )
    t.sink("sums", parquet(tmp_path / "sums")).shuffle(sums)
    summary = run_topology(t, tmp_path / "state", max_attempts=1, epoch_max_messages=20_000)

    assert (summary.acked, summary.dead) == (len(texts) - 1, 1), "two heavy ones are more than a sum may be"
    found = [(row["word"], row["count"]) for row in read_rows(tmp_path / "out")]
    epochs = len(numbered(tmp_path / "state" / "settles", ".settle"))
    assert 52 <= len(found) <= 52 * epochs, "one row for each word in an epoch"
    assert (max(row for word, row in found if word == "all"), dict(found)["heavy"]) == (len(texts) - 1, 1)
    kept = {part.name: {one.key: one.value for one in part.entries()} for part in stored_state(tmp_path / "state")[1]}
    assert kept["count"] == {word: max(row for one, row in found if one == word) for word, _ in found}
    assert kept["sum"] == {"a": len(texts) - 1, "w": len(texts) - 1, "h": 2**62}
