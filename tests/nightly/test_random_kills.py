"""Kills at random moments, again and again, over one long run: what the named crash points may have missed.

TUPLETREE_KILLS says how many (default 20), TUPLETREE_SEED which moments; the seed is printed.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.spark.counting import heard, target, topology, write_text
from tests.spark.crashing import (
    How,
    check_crashed,
    check_ended,
    end,
    newest_settle,
    said,
    start_process,
    wait_for_settle,
)
from tupletree.config import resolve_options
from tupletree.runtimes import run

pytestmark = pytest.mark.nightly

EPOCH_LINES = 100
LINES_PER_KILL = 1_500
"""More than a process gets done before it is killed, or else the last kills would find nothing to do."""

REST_LINES = 5_000
"""An epoch of the last process, which has only to come to the end."""

STARTING_S = 12.0
AT_WORK_S = 4.0
"""Three kills in ten come this long after the start of a process at most, the others after its first epoch."""

OPTIONS = {
    "max_attempts": 3,
    "epoch_max_messages": EPOCH_LINES,
    "backoff_initial_ms": 1.0,
    "backoff_max_ms": 50.0,
    "service_backoff_max_ms": 50.0,
}
HANG_S = 1_800.0


def test_everything_is_there_once_after_kills_at_random_moments(tmp_path: Path) -> None:
    kills = int(os.environ.get("TUPLETREE_KILLS", "20"))
    seed = int(os.environ.get("TUPLETREE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"TUPLETREE_KILLS={kills} TUPLETREE_SEED={seed}")
    chance = random.Random(seed)
    write_text(tmp_path, kills * LINES_PER_KILL)
    how = How(base_epochs=8, master="local[2]", options=OPTIONS, batch_size=EPOCH_LINES)
    before: dict[Path, bytes] = {}
    settled = -1
    for number in range(1, kills + 1):
        at_work = chance.random() < 0.7
        moment_s = chance.uniform(0.0, AT_WORK_S if at_work else STARTING_S)
        process = start_process(tmp_path, how)
        try:
            if at_work:
                wait_for_settle(tmp_path, process, settled + 1)
            process.wait(moment_s)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise AssertionError(f"it ended by itself before kill {number}:\n{said(tmp_path)}")
        finally:
            end(process)
        files = check_crashed(tmp_path)
        assert before.items() <= files.items(), "what was published changed"
        before = files
        settled = newest_settle(tmp_path)
        after = f"{moment_s:.2f} s after its {'first epoch' if at_work else 'start'}"
        print(f"kill {number}, {after}: settled up to epoch {settled}, {len(heard(tmp_path))} lines told")
    handle = run.run(
        topology(tmp_path, REST_LINES),
        options=resolve_options(code={**OPTIONS, "epoch_max_messages": REST_LINES}),
        target=target(),
        state_dir=tmp_path / "state",
    )
    check_ended(tmp_path, handle.wait(HANG_S), before)
