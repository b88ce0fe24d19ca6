"""An output folder that is moved away, deleted or unmounted while a run goes on: it waits, and writes nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import begin
from tests.ordinary.conftest import begin_in_process
from tests.ordinary.test_slow_work import Done, Job, Jobs
from tests.until import until
from tupletree import Topology, bolt
from tupletree.sinks import jsonl, parquet
from tupletree.sinks.reader import read_rows

BEGIN: dict[str, Any] = {"local": begin, "spark": begin_in_process}
COUNT = 300


def topology_of(sink: Any, away: Path) -> Topology:
    done = away.with_name("done")

    @bolt
    def work(job: Job) -> Done:
        if job.number == 100 and not done.exists():  # once, however often the epoch runs
            done.touch()
            sink.directory.rename(away)
        return Done(job.number)

    t = Topology("folders")
    t.sink("out", sink).shuffle(t.bolt("work", work).shuffle(t.spout("jobs", Jobs([0.0] * COUNT))))
    return t


@pytest.mark.parametrize("runtime", ["local", "spark"])
@pytest.mark.parametrize("kind", [jsonl, parquet])
@pytest.mark.parametrize("is_empty", [False, True], ids=["nothing in its place", "an empty folder in its place"])
def test_the_run_waits_until_it_is_back(tmp_path: Path, runtime: str, kind: Any, is_empty: bool) -> None:
    sink, away = kind(tmp_path / "out"), tmp_path / "away"
    options = {"max_attempts": 1, "epoch_max_messages": 50}
    handle = BEGIN[runtime](topology_of(sink, away), tmp_path / "state", **options)
    until(away.exists)
    if is_empty:
        sink.directory.mkdir()
    until(lambda: handle.progress().outages)
    outage = handle.progress().outages[0]
    assert outage.component == "out"
    assert "folder is not there any more" in outage.error
    assert [path.name for path in sink.directory.glob("*")] == []
    if is_empty:
        sink.directory.rmdir()
    away.rename(sink.directory)
    summary = handle.wait(30.0)
    assert (summary.acked, summary.failed, summary.dead, summary.open) == (COUNT, 0, 0, 0)
    assert sorted(row["number"] for row in read_rows(sink.directory)) == list(range(COUNT))


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_folder_that_was_emptied_for_good_is_begun_anew_by_the_next_start(tmp_path: Path, runtime: str) -> None:
    sink, away = jsonl(tmp_path / "out"), tmp_path / "away"
    handle = BEGIN[runtime](topology_of(sink, away), tmp_path / "state", epoch_max_messages=50, outage_limit_s=0.5)
    with pytest.raises(Exception, match="folder is not there any more"):
        handle.wait(30.0)
    shutil.rmtree(away)
    t = Topology("folders")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("jobs", Jobs([0.0])))
    assert BEGIN[runtime](t, tmp_path / "other").wait(30.0).acked == 1
