"""Each epoch leaves a progress record; on Spark, jobs that the UI shows by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology, StartTopology
from tests.spark.counting import topology, write_text
from tupletree.runtimes.progress import ProgressRecord


@SPARK_NIGHTLY
def test_the_records_of_a_run_add_up_to_its_summary(tmp_path: Path, start_topology: StartTopology) -> None:
    write_text(tmp_path, 170)
    heard: list[ProgressRecord] = []
    file = tmp_path / "progress.jsonl"
    handle = start_topology(topology(tmp_path), tmp_path / "state", epoch_max_messages=50, progress_file=str(file))
    handle.on_progress(heard.append)
    summary = handle.wait(120.0)
    assert [msgspec.json.decode(line, type=ProgressRecord) for line in file.read_bytes().splitlines()] == heard
    assert heard == handle.recent_progress()
    assert [one.epoch for one in heard] == list(range(len(heard)))
    for name in ("emitted", "acked", "failed", "retried", "dead"):
        assert sum(getattr(one, name) for one in heard) == getattr(summary, name), name
    for sink, rows in summary.outputs.items():
        assert sum(one.outputs.get(sink, 0) for one in heard) == rows
    first, last = heard[0], heard[-1]
    assert set(first.step_ms) == {"intake", "log", "run", "settle", "publish", "callbacks"}
    assert first.step_ms["run"] > 1.0
    assert (first.topology, first.runtime, first.generation) == ("crash-count", "spark", 1)
    assert max(one.runs for one in heard) > 1, "some lines fail behind the count"
    assert first.state_rows_written > 0 < first.state_bytes_written
    assert sum(one.state_rows_read for one in heard) > 0 < sum(one.state_bytes_read for one in heard)
    assert first.pending > 0
    assert first.oldest_s is not None
    assert first.oldest_s > 0.0
    assert (last.pending, last.open_trees, last.oldest_s) == (0, 0, None)
    assert [*first.positions] == ["source[0]"]
    assert first.emitted_per_s > 0.0


@pytest.mark.spark
def test_jobs_in_the_ui_name_topology_epoch_and_run_and_their_plans_name_components(
    tmp_path: Path, spark: Any, run_topology: RunTopology
) -> None:
    write_text(tmp_path, 34)
    run_topology(topology(tmp_path), tmp_path / "state")
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = [store.jobsList(None).apply(number) for number in range(store.jobsList(None).size())]
    described = [job.description().get() for job in jobs if job.description().isDefined()]
    ours = [text for text in described if text.startswith("crash-count: ")]
    assert {"crash-count: warm-up", "crash-count: epoch 0, run 0"} <= set(ours)
    assert any(text.endswith(", run 1") for text in ours), "some lines fail behind the count"
    groups = {job.jobGroup().get() for job in jobs if job.description().isDefined() and job.jobGroup().isDefined()}
    assert any(re.fullmatch("tupletree-[0-9a-f]{8}-1", group) for group in groups), groups
    stages = [store.lastStageAttempt(int(one)) for job in jobs for one in re.findall(r"\d+", job.stageIds().toString())]
    details = [stage.details() for stage in stages]
    names = ("stage 0: split", "stage 1: count", "stage 2: stumble, lines, columns")
    assert any(all(name in text for name in names) for text in details), details[-1]
