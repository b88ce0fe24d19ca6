"""The command line and the Spark session of other tests, for those of ordinary use."""

from __future__ import annotations

from tests.cli.conftest import run, write_target
from tests.spark.conftest import only_marked_tests_start_spark, run_topology, spark, start_topology

__all__ = ["only_marked_tests_start_spark", "run", "run_topology", "spark", "start_topology", "write_target"]
