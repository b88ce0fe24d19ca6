"""A signal that goes to all processes of a service or terminal ends a run on Spark as a stop, not as a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]

from tests.cli.conftest import WriteTarget
from tests.ordinary.conftest import InProcess, begin_in_process
from tests.ordinary.test_exit_codes import TARGET
from tests.ordinary.test_slow_work import Done, Job
from tests.until import until
from tupletree import ConnectorError, Topology, bolt
from tupletree.runtimes.spark.settle.shutdown import is_session_lost
from tupletree.sinks import jsonl
from tupletree.sinks.reader import read_rows
from tupletree.sources import items
from tupletree.testing import in_process as spark_in_process


@bolt
def work(job: Job) -> Done:
    return Done(job.number)


def topology_of(out: Path) -> Topology:
    t = Topology("signals")
    t.sink("out", jsonl(out)).shuffle(t.bolt("work", work).shuffle(t.spout("jobs", items([Job(n) for n in range(40)]))))
    return t


def test_a_session_that_ends_during_a_stop_leaves_messages_open_and_is_no_failure(
    tmp_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = spark_in_process.InProcessPlanRunner.run
    handles: list[Any] = []

    def run(self: Any, slices: Sequence[Any], control: Any) -> Any:
        if control.epoch < 0:  # the warm-up
            return ran(self, slices, control)
        until(lambda: handles)
        if handles[0]._stop_at_s is None:
            threading.Thread(target=handles[0].stop).start()
        until(lambda: handles[0]._stop_at_s is not None)
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(spark_in_process.InProcessPlanRunner, "run", run)
    handles.append(begin_in_process(topology_of(tmp_path / "out"), tmp_path / "state", epoch_max_messages=10))
    summary = handles[0].wait(60.0)
    assert (summary.acked, summary.dead, summary.open) == (0, 0, 40)
    assert "the Spark session ended while the run was stopping" in caplog.text
    monkeypatch.undo()
    assert in_process(topology_of(tmp_path / "out"), tmp_path / "state").acked == 40
    assert sorted(row["number"] for row in read_rows(tmp_path / "out")) == list(range(40))


def test_a_service_that_refuses_a_connection_and_a_job_that_fails_are_no_ends_of_the_session() -> None:
    refused = ConnectorError("the database is away")
    refused.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert not is_session_lost(refused)
    failed = Py4JJavaError.__new__(Py4JJavaError)  # what it is made of lives in a JVM
    assert not is_session_lost(failed)
    assert is_session_lost(Py4JNetworkError("Answer from Java side is empty"))
    through_py4j = {"__name__": "py4j.clientserver"}
    exec("def send(): raise ConnectionResetError(104, 'reset')", through_py4j)
    with pytest.raises(ConnectionResetError) as reset:
        through_py4j["send"]()  # type: ignore[operator]
    assert is_session_lost(reset.value)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_group_drains_on_spark(tmp_path: Path, write_target: WriteTarget, number: int) -> None:
    line = [
        sys.executable, "-m", "tupletree", "run", str(write_target(TARGET)), "--summary", "json",
        "--set", f"out={tmp_path / 'out'}", "--set", "what=slow", "--set", "count=1000", "--state-dir",
        str(tmp_path / "state"), "--option", "epoch_max_messages=10",
    ]  # fmt: skip
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: [*(tmp_path / "out").glob("[!_]*")])
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    summary = json.loads(out.splitlines()[-1])
    assert (process.returncode, summary["dead"]) == (130, 0), err
    assert summary["acked"] == len([*read_rows(tmp_path / "out")])
    assert "Traceback" not in err
