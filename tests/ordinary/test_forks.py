"""Bolts that fork: the copy of the process works nothing, and ends when it is told to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import WriteTarget
from tests.ordinary.test_exit_codes import TARGET

FORKS = """
import multiprocessing, os, sys

@bolt
def forks(number: Number) -> Number:
    if number.n == 1 and os.fork() == 0:
        return Number(1000)
    if number.n == 2:
        child = os.fork()
        if child == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    if number.n == 3:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return Number(sum(pool.map(abs, [-3])))
    if number.n == 4:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join()
    return number

BOLTS["forks"] = forks
"""


def check(target: Path, folder: Path, runtime: str) -> None:
    line = [
        sys.executable, "-m", "tupletree", "run", str(target), "--runtime", runtime, "--summary", "json",
        "--set", f"out={folder / 'out'}", "--set", "what=forks", "--state-dir", str(folder / "state"),
    ]  # fmt: skip
    run = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    summary = json.loads(run.stdout.splitlines()[-1])
    assert (run.returncode, summary["acked"], summary["failed"]) == (0, 5, 0), run.stderr
    rows = [json.loads(line)["n"] for path in (folder / "out").glob("[!_]*") for line in path.read_text().splitlines()]
    assert sorted(rows) == [1, 2, 3, 4, 5]


def test_a_bolt_of_the_local_runtime_may_fork(tmp_path: Path, write_target: WriteTarget) -> None:
    check(write_target(TARGET + FORKS), tmp_path, "local")


@pytest.mark.spark
@pytest.mark.nightly
def test_a_bolt_on_spark_may_fork(tmp_path: Path, write_target: WriteTarget) -> None:
    check(write_target(TARGET + FORKS), tmp_path, "spark")
