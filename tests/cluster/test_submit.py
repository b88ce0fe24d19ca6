"""spark-submit, as docs/operations.md says it: Tupletree and the target travel to workers that have neither."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.clusters import ROOT, SPARK_HOME, Cluster
from tupletree.runtimes.java import find_java
from tupletree.sinks import read_rows

pytestmark = pytest.mark.cluster

RUN_S = 240.0

DRIVER = """import sys

from tupletree.cli.main import main

sys.exit(main(["run", *sys.argv[1:]]))
"""


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Cluster:
    """Its workers find neither Tupletree nor the target by themselves."""
    return Cluster(tmp_path, search_path=[])


def test_spark_submit_ships_tupletree_and_the_target_to_a_cluster(bare_cluster: Cluster, tmp_path: Path) -> None:
    submit = tmp_path / "submit"
    submit.mkdir()
    package = shutil.make_archive(str(submit / "tupletree"), "zip", ROOT / "src", "tupletree")
    target = submit / "submitted.py"
    shutil.copy(ROOT / "tests" / "cluster" / "submitted.py", target)
    (submit / "driver.py").write_text(DRIVER)
    lines = [f"alpha beta w{number % 7}" for number in range(300)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"), "--master", bare_cluster.master,
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m",
        "--py-files", f"{package},{target}", str(submit / "driver.py"), str(target),
        "--set", f"paths={tmp_path / 'text.txt'}", "--set", f"out={tmp_path / 'out'}",
        "--state-dir", str(tmp_path / "state"), "--summary", "json",
    ]  # fmt: skip
    environment = {
        **os.environ,
        **bare_cluster.variables,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("PYTHONPATH", None)
    try:
        bare_cluster.start()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False, cwd=tmp_path
        )
    finally:
        bare_cluster.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["open"]) == (300, 300, 0)
    rows = list(read_rows(tmp_path / "out"))
    totals = Counter(word for line in lines for word in line.split())
    assert Counter(row["word"] for row in rows) == totals
    assert all("tupletree.zip" in row["tupletree"] for row in rows), rows[0]
    assert [*tmp_path.glob("work*/app-*")], "no executor was started by this cluster"
