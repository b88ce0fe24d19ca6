"""Infrastructure fails, and the supervisor starts the topology again from the journal: rule 12."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import SPARK_NIGHTLY, StartTopology
from tests.spark.tapped import HANG_S, TANKS, Tank, Tap, rows_of, tapped, wait_until
from tupletree import Emit
from tupletree.errors import TupletreeError
from tupletree.runtimes import handle as runs
from tupletree.sources.text import Line
from tupletree.tracking.retry import RestartPolicy

TEXTS = [f"a b{number % 3}" for number in range(40)]
OPTIONS = {"epoch_max_messages": 4, "max_restarts": 3}


class Impatient(RestartPolicy):
    """The real policy, on a clock that jumps over each wait."""

    skipped_s = 0.0

    def started(self, now_s: float) -> None:
        super().started(now_s + self.skipped_s)

    def failed(self, now_s: float) -> float | None:
        delay_s = super().failed(now_s + self.skipped_s)
        self.skipped_s += delay_s or 0.0
        return None if delay_s is None else 0.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RestartPolicy", Impatient)


def generations(tmp_path: Path) -> int:
    return len(list((tmp_path / "state" / "generations").iterdir()))


def break_after(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> None:
    """Let the tap raise when it has given so many lines, and so often."""
    real: Callable[[Tap], Any] = Tap.next
    left = [times]

    def breaking(tap: Tap) -> list[Emit[Line]] | None:
        if tap.given >= number and left[0]:
            left[0] -= 1
            raise ConnectionError("the broker went away")
        given: list[Emit[Line]] | None = real(tap)
        return given

    monkeypatch.setattr(Tap, "next", breaking)


@SPARK_NIGHTLY
def test_a_source_that_breaks_is_opened_again_and_every_row_is_there_once(
    tmp_path: Path, start_topology: StartTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    tank = TANKS["breaks"] = Tank(TEXTS)
    tank.open_all()
    break_after(monkeypatch, 15, times=2)
    summary = start_topology(tapped("breaks", tmp_path / "out"), tmp_path / "state", **OPTIONS).wait(HANG_S)
    assert (summary.emitted, summary.acked, summary.open) == (40, 40, 0)
    assert rows_of(tmp_path / "out") == tank.rows()
    assert tank.acked.keys() == set(range(1, 41))
    assert generations(tmp_path) == 3


@pytest.mark.spark
def test_an_epoch_whose_job_was_cancelled_is_run_again(
    tmp_path: Path, start_topology: StartTopology, spark: Any
) -> None:
    tank = TANKS["cancelled"] = Tank(TEXTS, allowed=20)
    handle = start_topology(tapped("cancelled", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.acked == 20)
    tank.open_all()
    for _ in range(3):  # a fourth in a row would be a fault
        spark.sparkContext.cancelAllJobs()
        with contextlib.suppress(TimeoutError):
            handle.wait(0.1)
    assert handle.wait(HANG_S).acked == 40
    assert rows_of(tmp_path / "out") == tank.rows()


@SPARK_NIGHTLY
def test_a_fault_that_stays_ends_the_run_when_the_restarts_are_used_up(
    tmp_path: Path, start_topology: StartTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    TANKS["stays"] = Tank(TEXTS)
    TANKS["stays"].open_all()
    break_after(monkeypatch, 0, times=100)
    handle = start_topology(tapped("stays", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    with pytest.raises(TupletreeError, match="the broker went away"):
        handle.wait(HANG_S)
    assert generations(tmp_path) == 1 + 3


@SPARK_NIGHTLY
def test_a_stop_during_the_wait_for_a_restart_wins(
    tmp_path: Path, start_topology: StartTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RestartPolicy", RestartPolicy)  # the wait is what this is about; it is cut short
    TANKS["wins"] = Tank(TEXTS)
    TANKS["wins"].open_all()
    break_after(monkeypatch, 5, times=100)
    handle = start_topology(tapped("wins", tmp_path / "out"), tmp_path / "state", **OPTIONS)
    wait_until(handle, lambda progress: progress.state == "restarting")
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    summary = handle.wait(HANG_S)
    stopping.join()
    assert summary.emitted == summary.acked + summary.dead + summary.open
    assert generations(tmp_path) == 1
