"""The example on queues on a cluster: its driver is killed three times, and an executor of the last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.queue_pipeline import ReadOn
from tests.clusters import SHORT_LIVED, Cluster
from tests.queues.selling import BROKERS, KILL_MOMENTS, READ_BY_EXECUTORS, Selling, served
from tests.until import until

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


@pytest.mark.parametrize(
    ("broker", "read_on"),
    [*((broker, "driver") for broker in BROKERS), *((broker, "executors") for broker in READ_BY_EXECUTORS)],
)
def test_with_three_drivers_and_an_executor_killed_every_good_order_is_sold_exactly_once(
    own_cluster: Cluster, tmp_path: Path, broker: str, read_on: ReadOn
) -> None:
    with served(broker, tmp_path) as url:
        variables = {**SHORT_LIVED, **own_cluster.variables}
        selling = Selling(tmp_path, url, "spark", read_on, ["--master", own_cluster.master], variables)
        for kills, moment in enumerate(KILL_MOMENTS):
            process = selling.start()
            selling.sell(process, 0.2 * (kills + 1), moment)
            selling.kill(process, alone=kills == 0)
        process = selling.start()
        selling.sell(process, 0.8, "an epoch is logged")
        assert own_cluster.count_executors() == 2
        own_cluster.kill_executor()
        assert selling.written() < len(selling.good)
        until(lambda: own_cluster.count_executors() == 3, what=selling.said)
        selling.finish(process)
        assert selling.check() == Counter(selling.good)
