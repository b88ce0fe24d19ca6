"""The command line and the Spark session of other tests, for those of ordinary use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import run, write_target
from tests.spark.conftest import only_marked_tests_start_spark, run_topology, spark, start_topology
from tests.spark.counting import QUICK
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.runtimes.api import RunHandle, RunRequest, Summary
from tupletree.testing.in_process import start_in_process

__all__ = [
    "in_process",
    "only_marked_tests_start_spark",
    "run",
    "run_topology",
    "spark",
    "start_topology",
    "write_target",
]

HANG_S = 60.0

InProcess = Callable[..., Summary]


@pytest.fixture
def in_process() -> InProcess:
    """Run a topology to its end by the driver, stages and files of the Spark runtime, without Spark."""

    def run(topology: Topology, state_dir: Path, **options: object) -> Summary:
        return begin_in_process(topology, state_dir, **options).wait(HANG_S)

    return run


def begin_in_process(topology: Topology, state_dir: Path, **options: object) -> RunHandle:
    """Start it."""
    settings = resolve_options(code={**QUICK, **topology.build().options, **options})
    return start_in_process(RunRequest(topology, settings, None, state_dir, append=False, master="", redact=None))
