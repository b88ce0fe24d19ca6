"""The example on queues on a cluster: its driver is killed three times, and an executor of the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import SHORT_LIVED, Cluster
from tests.queues.selling import BROKERS, Selling, served

pytestmark = pytest.mark.cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The session of the other tests has the executors of theirs."""
    started = Cluster(tmp_path)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.mark.parametrize("broker", BROKERS)
def test_with_three_drivers_and_an_executor_killed_every_good_order_is_sold_exactly_once(
    own_cluster: Cluster, tmp_path: Path, broker: str
) -> None:
    with served(broker, tmp_path) as url:
        variables = {**SHORT_LIVED, **own_cluster.variables}
        selling = Selling(tmp_path, url, "spark", ["--master", own_cluster.master], variables)
        for kills in range(3):
            process = selling.start()
            selling.sell(process, 0.2 * (kills + 1))
            selling.kill(process)
        process = selling.start()
        selling.sell(process, 0.8)
        own_cluster.kill_executor()
        selling.finish(process)
        assert selling.check() == Counter(selling.good)
