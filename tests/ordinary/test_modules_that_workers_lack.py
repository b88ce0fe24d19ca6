"""A module that workers cannot import ends the start at once, and the error says which and what ships it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import InProcess
from tupletree import Topology, bolt
from tupletree.errors import TopologyError
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


def of() -> Topology:
    lacking = FromOrders()

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
        in_process(of(), tmp_path / "state")
    assert caught.value.exit_code == 2
    assert "a worker cannot import orders_lib" in str(caught.value)
    assert "--py-files" in str(caught.value)
    assert "restart" not in caplog.text


def test_it_is_known_in_what_spark_says_of_a_worker(tmp_path: Path, in_process: InProcess) -> None:
    with pytest.raises(TopologyError) as caught:
        in_process(of(), tmp_path / "state")
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
