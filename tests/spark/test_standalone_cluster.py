"""The word count on a standalone master with two workers gives what it gives on one machine's threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import SHORT_LIVED, Cluster
from tests.spark.counting import ROOT
from tupletree.sinks import read_rows

RUN_S = 240.0

pytestmark = pytest.mark.spark  # what it starts are JVMs


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    try:
        started.start()
        yield started
    finally:
        started.stop()


def test_a_standalone_cluster_of_two_workers_counts_the_same_words(cluster: Cluster, tmp_path: Path) -> None:
    lines = [f"alpha beta {'poison ' if number % 50 == 0 else ''}w{number % 7}" for number in range(2_000)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    command = [str(Path(sys.executable).with_name("tupletree")), "run", str(ROOT / "examples" / "word_count.py")]
    settings = ["--set", f"paths={text}", "--set", f"out={tmp_path / 'out'}", "--set", "poison=poison"]
    options = ["--option", "backoff_initial_ms=1", "--option", "epoch_max_messages=500"]
    done = subprocess.run(
        [
            *command,
            *settings,
            *options,
            "--master",
            cluster.master,
            "--state-dir",
            str(tmp_path / "state"),
            "--summary",
            "json",
        ],
        env={**os.environ, **SHORT_LIVED, **cluster.variables},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["dead"], summary["open"]) == (2_000, 1_960, 40, 0)
    expected = Counter(word for line in lines if "poison" not in line for word in line.split())
    rows = [(row["word"], row["count"]) for row in read_rows(tmp_path / "out")]
    assert sorted(rows) == sorted((word, number) for word, most in expected.items() for number in range(1, most + 1))
