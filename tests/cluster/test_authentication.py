"""A standalone cluster asks for a secret, as docs/operations.md says it: none goes without it, and none shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.safety.looking import command_line
from tests.safety.others import as_other, needs_root

pytestmark = pytest.mark.cluster

STRANGER = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.authenticate", "false").config("spark.network.crypto.enabled", "false")
session = builder.config("spark.cores.max", "1").getOrCreate()
print("let in", session.sparkContext.parallelize([1]).count())
"""


def test_a_driver_without_the_secret_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"SPARK_CONF_DIR", "PYTHONPATH"}}
    told = subprocess.run(
        [sys.executable, "-c", STRANGER, cluster.master],
        env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "let in" not in told.stdout
    assert told.returncode != 0
    assert cluster.secret not in told.stdout + told.stderr


def test_executors_have_the_secret_and_no_command_line_shows_it(cluster: Cluster, spark: Any) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.authenticate") == "true"
    assert spark.sparkContext.parallelize(range(4), 2).count() == 4
    lines = [command_line(one) for one in cluster.processes]
    assert any("CoarseGrainedExecutorBackend" in line for line in lines)
    assert cluster.secret not in "".join(lines) + command_line(os.getpid())


@needs_root
def test_other_users_read_the_secret_nowhere(cluster: Cluster, spark: Any) -> None:
    assert spark.sparkContext.parallelize(range(4), 2).count() == 4
    conf, processes, secret = cluster.variables["SPARK_CONF_DIR"], cluster.processes, cluster.secret

    def read_all() -> list[str]:
        found = []
        for path in (f"{conf}/spark-defaults.conf", *(f"/proc/{one}/environ" for one in processes)):
            try:
                found.append(Path(path).read_text(errors="replace"))
            except OSError:
                continue
        return [text[:80] for text in found if secret in text]

    assert as_other(read_all) == []
