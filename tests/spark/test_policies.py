"""What a topology says about failures, rates and dead letters of its bolts, in Spark's own workers: one run for all."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tests.tasks.streams import Line
from tupletree import Retry, RetryAfter, Sink, SinkBatch, TaskContext, Topology, bolt
from tupletree.ids import MessageId
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items

pytestmark = pytest.mark.spark

COUNT = 12
RATE = 20.0


class Named(msgspec.Struct, frozen=True):
    text: str
    name: str
    attempt: int
    source: str
    at_s: float


class NoServiceError(Exception):
    """What a client library raises."""


@bolt
def named(line: Line, context: TaskContext) -> Named:
    kind = line.text.partition(" ")[0]
    if kind == "never":
        raise UnicodeError("the policy names its base class")
    if kind == "later" and context.attempt == 1:
        raise RetryAfter(0.2)
    if kind == "away" and context.attempt == 1:
        raise NoServiceError(line.text)
    source = f"{context.source_component}/{context.source_stream}"
    return Named(line.text, str(context.message_id), context.attempt, source, time.monotonic())


class Told(Sink[Named]):
    names_messages = True
    given: ClassVar[dict[str, tuple[MessageId, ...]]] = {}

    def write(self, batch: SinkBatch[Named]) -> None:
        assert batch.message_ids is not None
        self.given.update(zip((row.text for row in batch.rows), batch.message_ids, strict=True))


def test_workers_know_messages_policies_and_rates(tmp_path: Path, run_topology: RunTopology) -> None:
    Told.given.clear()
    texts = ["never 0", "later 1", "away 2", *(f"good {number}" for number in range(3, COUNT))]
    on: dict[type[BaseException], Retry] = {ValueError: Retry.NEVER, NoServiceError: Retry(attempts=2, backoff_s=0.01)}
    t = Topology("policies").dead_letters(jsonl(tmp_path / "dead"))
    lines = t.spout("lines", items([Line(text) for text in texts], ids=texts))
    work = t.bolt("named", named, retry=Retry(attempts=4, on=on), max_rate=RATE).shuffle(lines)
    t.sink("out", jsonl(tmp_path / "out")).shuffle(work)
    t.sink("told", Told()).shuffle(work)
    summary = run_topology(t, tmp_path / "state")
    assert (summary.acked, summary.dead, summary.failed) == (COUNT - 1, 1, 3)
    rows = [*read_rows(tmp_path / "out")]
    assert {row["text"]: row["name"] for row in rows} == {text: text for text in texts[1:]}
    assert Counter(row["attempt"] for row in rows) == {1: COUNT - 3, 2: 2}
    assert {row["source"] for row in rows} == {"lines/Line"}
    times = sorted(row["at_s"] for row in rows)
    assert times[-1] - times[0] >= (COUNT - 4) / RATE
    assert Told.given == {text: (text,) for text in texts[1:]}
    told = [json.loads(line) for file in (tmp_path / "dead").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [letter["message_id"] for letter in told] == ["never 0"]
    assert told[0]["attempts"] == 1
    assert told[0]["failure"]["retry"]["attempts"] == 1
