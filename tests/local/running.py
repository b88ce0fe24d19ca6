"""Runs topologies on the local runtime in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tupletree import Topology
from tupletree.config import Options
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import Summary
from tupletree.runtimes.local.runtime import LocalRun

HANG_S = 60.0
"""A hang guard, never waited for in a test that passes."""


def begin(topology: Topology, state_dir: Path, **options: Any) -> LocalRun:
    """Start a run; options as `Options` takes them."""
    handle = api_run.run(topology, runtime="local", options=Options(**options), state_dir=state_dir)
    assert isinstance(handle, LocalRun)
    return handle


def run(topology: Topology, state_dir: Path, **options: Any) -> Summary:
    """Run until the input is over."""
    return begin(topology, state_dir, **options).wait(HANG_S)
