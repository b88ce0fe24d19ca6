"""An ordinary pipeline, killed again and again: the table is the state, and nothing is late that was not at its source.

The large one, on Spark and with `kill -9`, is in tests/nightly.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.ordinary import log_pipeline
from tests.ordinary.log_pipeline import Log, check_first, check_replayed, topology
from tests.spark.upgrading import complete, crash
from tupletree.runtimes.deadletters import request_replay

LINES = 1_200
POINTS = ("settle.before_log", "settle.after_log", "publish.before_call", "publish.after_call", "callbacks.before")
OPTIONS: dict[str, Any] = {"epoch_max_messages": 100, "service_backoff_max_ms": 20.0}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 20))])
def test_table_state_and_windows_are_those_of_the_log_after_crashes_and_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(log_pipeline, "SCALE", 0.005)
    chance, log = Random(seed), Log.written(tmp_path, LINES, seed)
    for number, point in enumerate(chance.sample(POINTS, len(POINTS))):
        passes = chance.randint(1, 3) if number < 2 else 1  # later ones must not come to the end before
        crash(topology(tmp_path), tmp_path, point, monkeypatch, passes, **OPTIONS)
    ended = complete(topology(tmp_path), tmp_path, **OPTIONS)
    assert log.late
    dead, _ = check_first(tmp_path, log)
    assert (ended.open, ended.dead, ended.acked) == (0, dead, LINES - dead)
    request_replay(tmp_path / "state", None)
    ended = complete(topology(tmp_path, mended=True), tmp_path, **OPTIONS)
    assert (ended.open, ended.dead, ended.acked) == (0, 0, LINES)
    check_replayed(tmp_path, log)
