"""Rows that executors read and that are acked in their epoch are never read by the driver; what fails is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ordinary.conftest import begin_in_process
from tupletree import TaskContext, Topology, bolt
from tupletree.runtimes.spark.format import split_messages
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines
from tupletree.topology.splits import read_split

HANG_S = 30.0


@bolt
def refuses(line: Line, context: TaskContext) -> Line:
    if line.text == "again" and context.attempt == 1:
        raise ValueError("not yet")
    return line


@pytest.mark.parametrize(("text", "reads"), [("fine", False), ("again", True)])
def test_the_driver_reads_a_row_only_if_it_is_not_acked_in_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, reads: bool
) -> None:
    read: list[Any] = []

    def noted(*what: Any) -> Any:
        read.append(what)
        return read_split(*what)

    monkeypatch.setattr(split_messages, "read_split", noted)
    (tmp_path / "in.txt").write_text(f"a\n{text}\nb\n")
    t = Topology("rows")
    done = t.bolt("refuses", refuses).shuffle(t.spout("lines", text_lines(tmp_path / "in.txt")))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(done)
    assert begin_in_process(t, tmp_path / "state").wait(HANG_S).acked == 3
    assert bool(read) is reads
