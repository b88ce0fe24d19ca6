"""Whatever a sink of a user's raises refuses a row, on both runtimes, and stops neither others nor the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tests.tasks.streams import Line
from tupletree import Topology
from tupletree.queues import open_queue
from tupletree.runtimes.deadletters import read
from tupletree.sinks import foreach, queue_sink
from tupletree.sources import items

ENDS_PROGRAMS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, MemoryError, RecursionError]
NUMBERS = [*map(str, range(6))]


def of(sink: Any) -> Topology:
    t = Topology("t", options={"max_attempts": 2, "backoff_initial_ms": 1})
    t.sink("out", sink).shuffle(t.spout("lines", items([*map(Line, NUMBERS)])))
    return t


@pytest.mark.parametrize("error", ENDS_PROGRAMS)
@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_row_whose_call_raises_it_is_refused_alone(
    tmp_path: Path, in_process: InProcess, runtime: str, error: type[BaseException]
) -> None:
    rows: list[str] = []

    def write(batch: Any) -> None:
        if any(one.text == "3" for one in batch.rows):
            raise error
        rows.extend(one.text for one in batch.rows)

    run: Callable[[Topology, Path], Any] = run_locally if runtime == "local" else in_process
    summary = run(of(foreach(write)), tmp_path / "state")
    assert (summary.acked, summary.dead, summary.open) == (5, 1, 0)
    assert sorted(rows) == [one for one in NUMBERS if one != "3"]
    [letter] = read(tmp_path / "state")
    assert letter.failure.error_type.endswith(error.__name__)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_row_whose_body_raises_it_is_published_by_no_queue_sink(
    tmp_path: Path, in_process: InProcess, runtime: str, error: type[BaseException]
) -> None:
    def body(line: Line) -> bytes:
        if line.text == "3":
            raise error
        return line.text.encode()

    url = f"sqlite:///{tmp_path}/out.db?queue=out"
    run: Callable[[Topology, Path], Any] = run_locally if runtime == "local" else in_process
    summary = run(of(queue_sink(url, body=body)), tmp_path / "state")
    assert (summary.acked, summary.dead, summary.open) == (5, 1, 0)
    with open_queue(url) as queue:
        assert queue.depth().open == 5
