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
from tests.spark.crashing import How, check_crashed, check_ended, kill_session, said, start_process
from tupletree.config import resolve_options
from tupletree.runtimes import base
from tupletree.runtimes.spark.journal import numbered

pytestmark = pytest.mark.nightly

EPOCH_LINES = 100
LINES_PER_KILL = 1_500
"""More than a process gets done before it is killed, or else the last kills would find nothing to do."""

LATEST_KILL_S = 25.0
OPTIONS = {"max_attempts": 3, "epoch_max_messages": EPOCH_LINES, "backoff_initial_ms": 1.0, "backoff_max_ms": 50.0}
HANG_S = 1_800.0


def test_everything_is_there_once_after_kills_at_random_moments(tmp_path: Path) -> None:
    kills = int(os.environ.get("TUPLETREE_KILLS", "20"))
    seed = int(os.environ.get("TUPLETREE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"TUPLETREE_KILLS={kills} TUPLETREE_SEED={seed}")
    chance = random.Random(seed)
    write_text(tmp_path, kills * LINES_PER_KILL)
    how = How(base_epochs=8, master="local[2]", options=OPTIONS, batch_size=EPOCH_LINES)
    before: dict[Path, bytes] = {}
    for number in range(1, kills + 1):
        moment_s = chance.uniform(0.0, LATEST_KILL_S)
        process = start_process(tmp_path, how)
        try:
            process.wait(moment_s)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise AssertionError(f"it ended by itself before kill {number}:\n{said(tmp_path)}")
        finally:
            kill_session(process.pid)
        files = check_crashed(tmp_path)
        assert before.items() <= files.items(), "what was published changed"
        before = files
        settled = max(numbered(tmp_path / "state" / "settles", ".settle"), default=-1)
        print(f"kill {number} after {moment_s:.1f} s: settled up to epoch {settled}, {len(heard(tmp_path))} lines told")
    handle = base.run(
        topology(tmp_path, EPOCH_LINES),
        options=resolve_options(code=OPTIONS),
        target=target(),
        state_dir=tmp_path / "state",
    )
    check_ended(tmp_path, handle.wait(HANG_S), before)
