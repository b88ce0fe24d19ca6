"""The job of an epoch: how few calls of the JVM it takes, and what workers do between two of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import RunTopology
from tests.spark.counting import topology, write_text
from tupletree import Topology, bolt
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.settle.plan_runner import Report, SparkPlanRunner
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import Line, text_lines

pytestmark = pytest.mark.spark

CALLS = 8
"""Of a job of one stage: its name, the function, the RDD, the job, and two for each part of the results' address."""
MORE_CALLS = 7
"""Of each further stage: five for the exchange."""


@pytest.fixture
def calls_of_jobs(spark: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls of the JVM each job made in its thread."""
    counted: list[int] = []
    threads: set[int] = set()
    client = spark.sparkContext._gateway._gateway_client
    send_command, run = client.send_command, SparkPlanRunner.run

    def count(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() in threads:
            counted[-1] += 1
        return send_command(*arguments, **named)

    def run_counted(self: SparkPlanRunner, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        counted.append(0)
        threads.add(threading.get_ident())
        try:
            return run(self, slices, control)
        finally:
            threads.clear()

    monkeypatch.setattr(client, "send_command", count)
    monkeypatch.setattr(SparkPlanRunner, "run", run_counted)
    return counted


def test_a_job_takes_as_many_calls_of_the_jvm_whatever_is_in_its_epoch(
    tmp_path: Path, run_topology: RunTopology, calls_of_jobs: list[int]
) -> None:
    write_text(tmp_path, 60)
    run_topology(topology(tmp_path), tmp_path / "state", epoch_max_messages=7)
    _warm_up, *others = calls_of_jobs
    assert len(others) > 10
    stages = 3
    assert set(others) == {max(others)}
    assert max(others) <= CALLS + MORE_CALLS * (stages - 1)


class Frozen(msgspec.Struct, frozen=True):
    """How many objects a worker's collector leaves out."""

    objects: int


@bolt
def look(_line: Line) -> Frozen:
    return Frozen(gc.get_freeze_count())


def test_what_workers_have_imported_is_not_looked_through_after_each_task(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line\n" * 20)
    t = Topology("frozen")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("look", look).shuffle(t.spout("lines", text_lines([text]))))
    run_topology(t, tmp_path / "state", epoch_max_messages=2)
    found = [row["objects"] for row in read_rows(tmp_path / "out")]
    assert min(found) > 10_000, found
