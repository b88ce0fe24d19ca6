"""One Spark session for all these tests, and a way to run a topology on it that cannot hang."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import QUICK, begin
from tests.spark.deaths import Kills
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.runtimes.api import RunHandle, Summary
from tupletree.runtimes.spark.session import open_session

HANG_S = 120.0
"""A run of these tests that takes longer hangs."""

RunTopology = Callable[..., Summary]
StartTopology = Callable[..., RunHandle]

SPARK_NIGHTLY = pytest.mark.parametrize(
    "start_topology",
    ["in process", pytest.param("on Spark", marks=[pytest.mark.spark, pytest.mark.nightly])],
    indirect=True,
)
"""For a test that tells the same of driver, stages and files without a JVM: with one it runs at night."""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session; every run in this process uses it as it is."""
    session, owned = open_session("tests", "local[2]")
    yield session
    if owned:
        session.stop()


@pytest.fixture(autouse=True)
def only_marked_tests_start_spark(request: pytest.FixtureRequest) -> None:
    """Or the quick round, which leaves the marked ones out, would start one all the same."""
    assert "spark" not in request.fixturenames or request.node.get_closest_marker("spark"), "it is to be marked: spark"


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kills]:
    """What the tests of this session go on from."""
    kills = Kills(request.session.items, lambda: tmp_path_factory.mktemp("killed"))
    yield kills
    kills.close()


@pytest.fixture
def killed(request: pytest.FixtureRequest, kills: Kills) -> Path:
    """The folder of a count that died as the test's parameter, a `Kill`, says."""
    return kills.folder_of(request.node.nodeid)


@pytest.fixture
def start_topology(request: pytest.FixtureRequest) -> Iterator[StartTopology]:
    """Start a topology with `Options` on top of quick retries; what still runs at the end of the test is stopped.

    Tests marked `spark` run it on the session's Spark, all others in this process.
    """
    handles: list[RunHandle] = []
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")
        master = "local[2]"
    else:
        master = "in-process[2]"

    def start(topology: Topology, state_dir: Path, drops: Collection[str] = (), **options: Any) -> RunHandle:
        settings = resolve_options(code={**QUICK, **topology.build().options, **options})
        handle = begin(topology, settings, state_dir, master, drops)
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        handle.stop(0.0)


@pytest.fixture
def run_topology(start_topology: StartTopology) -> RunTopology:
    """Run a topology to its end."""

    def run(topology: Topology, state_dir: Path, *, timeout_s: float = HANG_S, **options: Any) -> Summary:
        return start_topology(topology, state_dir, **options).wait(timeout_s)

    return run
