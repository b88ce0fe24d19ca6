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
from tupletree import Bolt, Collector, Topology, bolt
from tupletree.runtimes.spark.format.program import EpochControl
from tupletree.runtimes.spark.format.slices import EpochSlice
from tupletree.runtimes.spark.settle.plan_runner import Report, SparkPlanRunner
from tupletree.runtimes.spark.settle.spark_job import LARGE_FUNCTION_BYTES
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import Line, text_lines

pytestmark = pytest.mark.spark

CALLS = 8
"""Of a job of one stage: its name, the function, the RDD, the job, and two for each part of the results' address."""
MORE_CALLS = 7
"""Of each further stage: five for the exchange."""


@pytest.fixture
def calls_of_jobs(spark: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Of each job: whether it may start behind the first stage, and how many calls of the JVM it made in its thread."""
    counted: list[list[int]] = []
    threads: set[int] = set()
    client = spark.sparkContext._gateway._gateway_client
    send_command, run = client.send_command, SparkPlanRunner.run

    def count(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() in threads:
            counted[-1][1] += 1
        return send_command(*arguments, **named)

    def run_counted(self: SparkPlanRunner, slices: Sequence[EpochSlice], control: EpochControl) -> list[Report]:
        counted.append([control.resumes, 0])
        threads.add(threading.get_ident())
        try:
            return run(self, slices, control)
        finally:
            threads.clear()

    monkeypatch.setattr(client, "send_command", count)
    monkeypatch.setattr(SparkPlanRunner, "run", run_counted)
    return counted


def test_a_job_takes_as_many_calls_of_the_jvm_whatever_is_in_its_epoch(
    tmp_path: Path, run_topology: RunTopology, calls_of_jobs: list[list[int]]
) -> None:
    write_text(tmp_path, 60)
    run_topology(topology(tmp_path), tmp_path / "state", epoch_max_messages=7)
    _warm_up, *others = calls_of_jobs
    first_runs = [calls for resumes, calls in others if not resumes]
    assert len(first_runs) > 10
    stages = 3
    assert set(first_runs) == {max(first_runs)}
    assert max(first_runs) <= CALLS + MORE_CALLS * (stages - 1)
    assert all(calls <= max(first_runs) for _, calls in others)


class Found(msgspec.Struct, frozen=True):
    """How many of what a bolt found in its worker."""

    number: int


class Large(Bolt[Line]):
    """A bolt that has much."""

    def __init__(self, kept: bytes) -> None:
        self.kept = kept

    def process(self, _line: Line, collector: Collector[Found]) -> None:
        collector.emit(Found(len(self.kept)))


@bolt
def look(_line: Line) -> Found:
    """How many objects the collector leaves out."""
    return Found(gc.get_freeze_count())


def found(folder: Path, run_topology: RunTopology, body: Any) -> list[int]:
    """What a bolt gives for each of twenty lines, in epochs of two."""
    (folder / "text.txt").write_text("a line\n" * 20)
    t = Topology("found")
    given = t.bolt("look", body).shuffle(t.spout("lines", text_lines([folder / "text.txt"])))
    t.sink("out", jsonl(folder / "out")).shuffle(given)
    run_topology(t, folder / "state", epoch_max_messages=2)
    return [row["number"] for row in read_rows(folder / "out")]


def test_what_workers_have_imported_is_not_looked_through_after_each_task(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    frozen = found(tmp_path, run_topology, look)
    assert min(frozen) > 10_000, frozen


def test_a_program_that_is_too_large_to_be_a_part_of_each_task_goes_through_a_broadcast(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    kept = bytes(2 * LARGE_FUNCTION_BYTES)

    def make() -> Large:
        return Large(kept)

    assert found(tmp_path, run_topology, make) == [2 * LARGE_FUNCTION_BYTES] * 20
