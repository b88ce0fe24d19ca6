"""An output folder that is moved away, deleted or unmounted while a run goes on: it waits, and writes nowhere else."""

from __future__ import annotations

import shutil
import threading
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
from tupletree.sources import Line, text_lines

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


GATE = threading.Event()


@bolt
def gated(line: Line) -> Line:
    if line.number > COUNT // 2:
        GATE.wait(30.0)  # so that the run is not over before its folder goes away
    return line


@pytest.mark.parametrize("is_empty", [False, True], ids=["nothing in its place", "an empty folder in its place"])
def test_a_state_directory_on_spark_that_goes_away_is_waited_for(tmp_path: Path, is_empty: bool) -> None:
    state, away = tmp_path / "state", tmp_path / "away"
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(COUNT)))
    t = Topology("folders")
    lines = t.spout("lines", text_lines(tmp_path / "in.txt"))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("gated", gated).shuffle(lines))
    options = {"max_attempts": 1, "max_restarts": 0, "epoch_max_messages": 10, "spout_idle_wait_ms": 1}
    GATE.clear()
    handle = begin_in_process(t, state, **options)
    until(lambda: handle.progress().acked > 0)
    state.rename(away)
    if is_empty:
        state.mkdir(mode=0o700)
    GATE.set()
    until(lambda: any(one.for_s > 1.0 for one in handle.progress().outages))
    (outage,) = handle.progress().outages
    assert outage.component == "state directory"
    assert "it is not there any more" in outage.error
    if state.exists():
        shutil.rmtree(state)  # the status is written into it
    away.rename(state)
    summary = handle.wait(30.0)
    assert (summary.acked, summary.failed, summary.dead, summary.open) == (COUNT, 0, 0, 0)
    assert sorted(int(row["text"]) for row in read_rows(tmp_path / "out")) == list(range(COUNT))
    assert handle.progress().outage_counts == {"state directory": 1}
