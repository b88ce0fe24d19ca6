"""A bolt, or another cell of a notebook, calls os.chdir while a local run with relative paths goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S, begin
from tests.until import until
from tupletree import Topology, bolt
from tupletree.sinks import jsonl, parquet, queue_sink, read_rows, sql
from tupletree.sources import Line, items, text_lines

COUNT = 300


@bolt
def goes_elsewhere(line: Line) -> Line:
    if line.number == 100:
        os.chdir(elsewhere())
    return line


def elsewhere() -> Path:
    return Path(os.environ["ELSEWHERE"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ELSEWHERE", str(tmp_path / "elsewhere"))
    return tmp_path / "here"


SINKS: dict[str, Callable[[], Any]] = {
    "jsonl": lambda: jsonl("out"),
    "parquet": lambda: parquet("out"),
    "sql": lambda: sql("sqlite:///out.db", "lines"),
    "queue": lambda: queue_sink("sqlite:///queue.db?queue=out"),
}


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_goes_on_where_it_began(here: Path, kind: str) -> None:
    t = Topology("moving")
    lines = t.spout("lines", items([Line(str(number), "", number) for number in range(COUNT)]))
    t.sink("out", SINKS[kind]()).shuffle(t.bolt("goes", goes_elsewhere).shuffle(lines))
    summary = begin(t, here / "state", max_spout_pending=20, outage_limit_s=10.0).wait(HANG_S)
    assert (summary.acked, summary.dead) == (COUNT, 0)
    assert Path.cwd() == elsewhere()
    assert [*elsewhere().iterdir()] == []
    if kind in {"jsonl", "parquet"}:
        assert sorted(row["number"] for row in read_rows(here / "out")) == [*range(COUNT)]


def test_a_pattern_is_not_looked_for_in_another_folder(here: Path) -> None:
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(COUNT)))
    (elsewhere() / "b.txt").write_text("of others\n")
    t = Topology("moving")
    lines = t.spout("lines", text_lines("*.txt", follow=True, poll_interval_s=0.01))
    t.sink("out", jsonl("out")).shuffle(t.bolt("goes", goes_elsewhere).shuffle(lines))
    handle = begin(t, here / "state")
    until(lambda: handle.progress().outages)
    assert "has changed its folder" in handle.progress().outages[0].error
    (here / "c.txt").write_text("ours\n")
    os.chdir(here)
    until(lambda: handle.progress().acked == COUNT + 1)
    handle.stop()
    handle.wait(HANG_S)
    rows: list[Any] = [*read_rows(here / "out")]
    assert {row["path"] for row in rows} == {"a.txt", "c.txt"}
