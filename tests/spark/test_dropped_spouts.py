"""A spout that was dropped, and a later one of its name: what is stored of the first is not that of the second."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.spark.upgrading import Feed, complete, planned
from tupletree import PermanentError, Topology, bolt
from tupletree.runtimes.deadletters import read, request_replay
from tupletree.sinks import jsonl

BAD: set[int] = set()


class Line(msgspec.Struct, frozen=True):
    number: int


@bolt
def look(line: Line) -> Line:
    if line.number in BAD:
        raise PermanentError("bad")
    return line


def topology(place: Path, end: int, *, has_more: bool = True) -> Topology:
    t = Topology("spouts")
    t.sink("out", jsonl(place / "out")).shuffle(t.bolt("look", look).shuffle(t.spout("lines", Feed(Line, end))))
    if has_more:
        more = t.spout("more", Feed(lambda number: Line(100 + number), end))
        t.sink("others", jsonl(place / "others")).shuffle(t.bolt("look2", look).shuffle(more))
    return t


def test_dead_letters_of_a_dropped_spout_are_not_those_of_one_that_has_its_name_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("more", "look2", "others")
    BAD.update({2, 103})
    try:
        complete(topology(tmp_path, 4), tmp_path)
    finally:
        BAD.clear()
    complete(topology(tmp_path, 4, has_more=False), tmp_path, drops=words)
    assert {letter.spout for letter in read(tmp_path / "state")} == {"lines", "more"}
    stored = {one.component: one.stored for one in planned(topology(tmp_path, 4), tmp_path).steps}
    assert "1 dead letter" in stored["lines"]
    assert stored["more"] == "nothing"
    request_replay(tmp_path / "state", None)
    ended = complete(topology(tmp_path, 4), tmp_path)
    assert (ended.open, ended.acked) == (0, 4 + 3 + 4)
    assert [letter.spout for letter in read(tmp_path / "state")] == ["more"]
    assert "its spout 'more' was dropped" in caplog.text
