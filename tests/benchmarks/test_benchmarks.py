from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness import REPOSITORY, child_environment, peer_environment


def test_one_command_prints_a_table_and_writes_the_raw_numbers(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "benchmarks", "startup", "--repeats", "1", "--json", str(numbers)]
    done = subprocess.run(command, cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=True)
    assert "`python -m benchmarks startup --repeats 1" in done.stdout
    rows = {row["job"]: row for row in msgspec.json.decode(numbers.read_bytes())["rows"]}
    assert f"| startup | import tupletree | {rows['import tupletree']['result']} |" in done.stdout
    assert rows["import tupletree"]["data"]["heavy_modules"] == []


def test_jobs_and_peers_keep_compiled_modules_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("OTHERS", "stay")
    for environment in (child_environment(), peer_environment()):
        assert "PYTHONDONTWRITEBYTECODE" not in environment
        assert environment["OTHERS"] == "stay"
