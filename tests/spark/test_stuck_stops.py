"""A stop ends although a worker is stuck, and says what stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import StartTopology
from tests.spark.killing import killing
from tests.spark.tapped import wait_until

pytestmark = pytest.mark.spark

HANG_S = 60.0


@pytest.mark.parametrize("deed", ["c-loop", pytest.param("loop", marks=pytest.mark.nightly)])
def test_a_stop_while_a_worker_is_stuck_ends_and_reports_what_is_open(
    deed: str, tmp_path: Path, start_topology: StartTopology, caplog: pytest.LogCaptureFixture
) -> None:
    topology = killing(f"stuck-{deed}", tmp_path, {3: deed}, 10)
    handle = start_topology(topology, tmp_path / "state", processing_timeout_s=None)
    wait_until(handle, lambda progress: progress.open)
    handle.stop(2.0)
    summary = handle.wait(HANG_S)
    assert (summary.emitted, summary.acked, summary.open) == (10, 0, 10)
    assert "the drain timed out: epoch 0 stays open and runs again" in caplog.text
