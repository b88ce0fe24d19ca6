"""An ordinary pipeline on Spark, with calls of 100 to 400 ms, killed with -9 five times and resumed each time.

TUPLETREE_LINES says how many lines (default 100,000), TUPLETREE_SEED which log and moments; the seed is printed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ordinary.log_pipeline import Log, check_first, check_replayed
from tests.spark.counting import ROOT
from tests.spark.crashing import end, newest_settle, said, wait_for_settle

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

KILLS = 5
AT_WORK_S = 6.0
"""A kill comes this long after an epoch of a process at most."""
HANG_S = 3_000.0
EPOCHS = 25
"""About so many for the whole log, so that kills come all over it."""


def environment() -> dict[str, str]:
    """That of a process of the command line; the settings of this test are none of its options."""
    own = {name: value for name, value in os.environ.items() if name not in {"TUPLETREE_LINES", "TUPLETREE_SEED"}}
    return {**own, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def start(folder: Path, lines: int, *, mended: bool = False) -> subprocess.Popen[bytes]:
    """The command line that a user has, in a session of its own."""
    settings = {"folder": folder, "mended": str(mended).lower()}
    options = {"epoch_max_messages": max(500, lines // EPOCHS), "service_backoff_initial_ms": 200.0}
    command = [sys.executable, "-m", "tupletree", "run", str(ROOT / "tests" / "ordinary" / "log_pipeline.py")]
    command += ["--state-dir", str(folder / "state"), "--master", "local[2]"]
    command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command += [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    with (folder / "said").open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def finish(folder: Path, lines: int, *, mended: bool = False) -> int:
    """Run to the end; gives the exit code: 3 for dead letters."""
    process = start(folder, lines, mended=mended)
    try:
        return process.wait(HANG_S)
    finally:
        end(process)


def test_table_state_and_windows_are_those_of_the_log_after_kills_and_a_replay(tmp_path: Path) -> None:
    lines = int(os.environ.get("TUPLETREE_LINES", "100000"))
    seed = int(os.environ.get("TUPLETREE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"TUPLETREE_LINES={lines} TUPLETREE_SEED={seed}")
    chance, log = random.Random(seed), Log.written(tmp_path, lines, seed)
    began_s = time.monotonic()
    for number in range(1, KILLS + 1):
        process = start(tmp_path, lines)
        moment_s = chance.uniform(0.0, AT_WORK_S)
        try:
            wait_for_settle(tmp_path, process, newest_settle(tmp_path) + chance.randint(1, 3))
            process.wait(moment_s)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise AssertionError(f"it ended by itself before kill {number}:\n{said(tmp_path)}")
        finally:
            end(process)
        print(f"kill {number} after {time.monotonic() - began_s:.0f} s: settled up to epoch {newest_settle(tmp_path)}")
    code = finish(tmp_path, lines)
    dead, late = check_first(tmp_path, log)
    took_s = time.monotonic() - began_s
    print(f"{took_s:.0f} s: {dead} dead, {len(log.broken)} not parsed, {len(late)} of {len(log.late)} late")
    assert code == 3, said(tmp_path)
    subprocess.run(
        [sys.executable, "-m", "tupletree", "dead", "replay", "--all", "--state-dir", str(tmp_path / "state")],
        env=environment(),
        check=True,
        timeout=60,
    )
    assert finish(tmp_path, lines, mended=True) == 0, said(tmp_path)
    check_replayed(tmp_path, log)
    print(f"{time.monotonic() - began_s:.0f} s: replayed")
