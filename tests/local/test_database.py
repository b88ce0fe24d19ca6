"""The SQL sink on the local runtime: rows of messages that are complete, and what the database refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.databases import query
from tests.local.running import run
from tupletree import Topology, bolt
from tupletree.runtimes import deadletters
from tupletree.sinks import sql
from tupletree.sources import Line, items
from tupletree.tracking.outcomes import FailureKind


class Word(msgspec.Struct, frozen=True):
    word: str
    line: int


@bolt
def split(line: Line) -> Iterator[Word]:
    return (Word(word, line.number) for word in line.text.split())


def test_rows_are_there_once_and_what_the_database_refuses_is_dead_with_its_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/words.db"
    query(url, "CREATE TABLE words (word VARCHAR(9) CHECK (length(word) < 10), line INTEGER)")
    texts = [f"a{number} b" for number in range(100)]
    texts[40] = "much-too-long b"
    t = Topology("words")
    lines = t.spout("lines", items([Line(text, "", number) for number, text in enumerate(texts)]))
    words = t.bolt("split", split, parallelism=2).shuffle(lines)
    t.sink("words", sql(url, "words"), parallelism=2).fields(words, "line")
    summary = run(t, tmp_path / "state", max_attempts=2, backoff_initial_ms=1.0)
    assert (summary.acked, summary.dead) == (99, 1)
    [letter] = deadletters.read(tmp_path / "state")
    assert (letter.message_id, letter.attempts, letter.failure.kind) == (40, 2, FailureKind.PUBLISH)
    assert "constraint" in letter.failure.error
    expected = Counter((word, number) for number, text in enumerate(texts) if number != 40 for word in text.split())
    assert Counter(query(url, "SELECT word, line FROM words")) == expected
