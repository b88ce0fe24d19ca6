"""A module that workers cannot import ends the start at once, and the error says which and what ships it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import InProcess
from tupletree import Topology, bolt
from tupletree.errors import ConfigError, TopologyError
from tupletree.runtimes.spark.settle.shutdown import BEYOND_RESTARTS, is_final, reason
from tupletree.sinks import foreach
from tupletree.sources import items


class Number(msgspec.Struct, frozen=True):
    n: int


def import_orders() -> object:
    raise ModuleNotFoundError("No module named 'orders_lib'", name="orders_lib")


class FromOrders:
    """What a worker gets by importing a module that it does not have."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_orders, ()

    def look(self) -> None:
        """Be used, so that the bolt needs it."""


def of(lacking: FromOrders) -> Topology:

    @bolt
    def work(number: Number) -> Number:
        lacking.look()
        return number

    t = Topology("numbers")
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("work", work).shuffle(t.spout("n", items([Number(1)]))))
    return t


def test_the_start_ends_without_a_restart_and_names_the_module(
    tmp_path: Path, in_process: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TopologyError) as caught:
        in_process(of(FromOrders()), tmp_path / "state")
    assert caught.value.exit_code == 2
    assert "a worker cannot import orders_lib" in str(caught.value)
    assert "--py-files" in str(caught.value)
    assert "restart" not in caplog.text


def test_it_is_known_in_what_spark_says_of_a_worker(tmp_path: Path, in_process: InProcess) -> None:
    with pytest.raises(TopologyError) as caught:
        in_process(of(FromOrders()), tmp_path / "state")
    said = RuntimeError(
        "Job aborted due to stage failure: Traceback (most recent call last):\n"
        f'  File "worker.py", line 1, in main\ntupletree.errors.TopologyError: {caught.value}\n\n\tat org.apache.spark'
    )
    assert is_final(said)
    fault = reason(said, tmp_path)
    assert isinstance(fault, BEYOND_RESTARTS)
    assert fault.exit_code == 2
    assert "orders_lib" in str(fault)
    assert "--py-files" in str(fault)


STARTS_NOT = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 8 times:
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 189, in _run_module_as_main
    File "/usr/lib/python3.11/tempfile.py", line 45, in <module>
      from random import Random as _Random
  {error}
PYTHONPATH was:
  /usr/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's stdout.
\tat org.apache.spark.errors.SparkCoreErrors$.eofExceptionWhileReadPortNumberError(SparkCoreErrors.scala:55)
"""
"""What Spark says where a worker's Python ends before it is one."""


def fail_to_start() -> object:
    where = Path("random.py").absolute()
    error = f"ImportError: cannot import name 'Random' from 'random' ({where})"
    raise RuntimeError(STARTS_NOT.format(error=error))


class StartsNoWorker(FromOrders):
    """What ends a stage as Spark does, where its workers cannot start."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fail_to_start, ()


def test_a_file_in_the_current_folder_that_hides_a_module_of_python_from_workers_is_named_without_a_restart(
    tmp_path: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("x = 1")
    (tmp_path / "queue.py").write_text("x = 1")  # which is not to blame
    with pytest.raises(ConfigError) as caught:
        in_process(of(StartsNoWorker()), tmp_path / "state")
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/random.py: Spark's Python workers cannot start")
    assert f"got: ImportError: cannot import name 'Random' from 'random' ({tmp_path}/random.py)" in text
    assert "rename the file: it hides a module" in text
    assert "queue.py" not in text
    assert "restart" not in caplog.text


def test_a_worker_that_cannot_start_for_another_import_says_which_and_for_lack_of_memory_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = RuntimeError(STARTS_NOT.format(error="ModuleNotFoundError: No module named 'pyspark'"))
    fault = reason(said, tmp_path / "state")
    assert is_final(said)
    assert "got: ModuleNotFoundError: No module named 'pyspark'" in str(fault)
    assert "tupletree doctor" in str(fault)
    full = RuntimeError(STARTS_NOT.format(error="MemoryError"))
    assert not is_final(full)
    assert "got: MemoryError" in str(reason(full, tmp_path / "state"))
