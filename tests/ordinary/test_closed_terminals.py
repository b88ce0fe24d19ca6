"""A run goes on when nobody can read what it prints: a closed terminal, an ended pipe, a log on a full disk."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import WriteTarget
from tests.ordinary.test_exit_codes import TARGET

FULL = Path("/dev/full")

STREAMS = {
    "stdout closed": "exec {run} >&-",
    "stderr closed": "exec {run} 2>&-",
    "all closed": "exec {run} <&- >&- 2>&-",
    "stdout is a pipe that ended": "{run} | true; exit ${{PIPESTATUS[0]}}",
    "stderr is a pipe that ended": "{run} 2>&1 >/dev/null | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
    "both are pipes that ended": "{run} --log-level debug 2>&1 | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
    "stdout is full": "exec {run} >/dev/full",
    "stderr is full": "exec {run} 2>/dev/full",
    "both are full": "exec {run} --log-level debug --log-format json >/dev/full 2>&1",
}


QUICK = ["all closed", "stderr is a pipe that ended", "both are full"]


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param([name for name in STREAMS if name not in QUICK], marks=pytest.mark.nightly)]
)
def test_the_exit_code_is_that_of_the_run_and_every_row_is_there(
    tmp_path: Path, write_target: WriteTarget, names: list[str]
) -> None:
    target = write_target(TARGET)
    running = {}
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        run = (
            f"{sys.executable} -m tupletree run {target} --runtime local --summary json --set what=slow"
            f" --set out={folder / 'out'} --state-dir {folder / 'state'} --set count=3"
        )
        line = ["bash", "-c", STREAMS[name].format(run=run)]
        running[name] = folder, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for name, (folder, process) in running.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (name, err)
        rows = [line for path in folder.glob("out/[!_]*") for line in path.read_text().splitlines()]
        assert len(rows) == 3, name
        if name == "stderr closed":
            assert json.loads(out.splitlines()[-1])["acked"] == 3
        if name == "stdout is full":
            assert "the result cannot be printed" in err
        assert "Traceback" not in err, (name, err)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_pipeline_that_nobody_can_read_completes(tmp_path: Path) -> None:
    new = [sys.executable, "-m", "tupletree", "routes", "new", "words"]
    subprocess.run(new, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    running = {}
    for number, name in enumerate(QUICK):
        run = f"{sys.executable} -m tupletree routes run pipeline.yaml --wait --home {tmp_path / str(number)}"
        line = ["bash", "-c", re.sub(r" --log-\S+ \S+", "", STREAMS[name]).format(run=run)]
        running[name] = subprocess.Popen(
            line, cwd=tmp_path / "words", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    for name, process in running.items():
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, (name, err)
        assert "Traceback" not in err, (name, err)
