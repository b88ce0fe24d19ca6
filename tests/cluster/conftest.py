"""One standalone cluster of two workers and one session on it, for everything in here: `make cluster`.

A process has one Spark context. These tests must not share theirs with tests on local masters, so they have a mark of
their own, and a pytest process: `make nightly` starts it after the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clusters import Cluster
from tupletree.runtimes.spark.session import open_session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    os.environ.update(started.variables)  # for the JVM of this process, and drivers that tests start
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def spark(cluster: Cluster) -> Iterator[Any]:
    """The session on the cluster; every run in this process uses it as it is."""
    session, owned = open_session("cluster tests", cluster.master, {"spark.driver.host": "127.0.0.1"})
    assert owned, "another session runs in this process: use `make cluster`"
    yield session
    session.stop()
