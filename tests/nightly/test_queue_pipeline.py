"""The example on queues at the size of the night: processes and servers are killed in the middle of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from examples.queue_pipeline import ReadOn
from tests.queues.selling import BROKERS, KILL_MOMENTS, LEASE_S, READ_BY_EXECUTORS, Selling, served
from tests.queues.servers import NatsServer, RabbitServer, RedisServer, nats_server, rabbit_server, redis_server

pytestmark = pytest.mark.nightly

ON_SPARK = pytest.param("spark", marks=pytest.mark.spark)


KILLED = [*BROKERS, "kafka"]


@pytest.mark.parametrize(
    ("broker", "read_on"),
    [*((broker, "driver") for broker in KILLED), *((broker, "executors") for broker in READ_BY_EXECUTORS)],
)
@pytest.mark.parametrize("runtime", ["in process", ON_SPARK])
def test_killed_three_times_on_spark_every_good_order_is_sold_exactly_once(
    tmp_path: Path, broker: str, read_on: ReadOn, runtime: str
) -> None:
    with served(broker, tmp_path) as url:
        selling = Selling(tmp_path, url, runtime, read_on)
        for kills, moment in enumerate(KILL_MOMENTS):
            process = selling.start()
            selling.sell(process, 0.2 * (kills + 1), moment)
            selling.kill(process, alone=kills == 0)
        selling.finish(selling.start())
        assert selling.check() == Counter(selling.good)


@pytest.mark.parametrize("broker", KILLED)
def test_killed_three_times_locally_every_good_order_is_sold_at_least_once(tmp_path: Path, broker: str) -> None:
    """By their keys the table has one row of each, and by their ids consumers of the queue know them."""
    with served(broker, tmp_path) as url:
        selling = Selling(tmp_path, url, "local")
        for kills, moment in enumerate(["", "its orders are acked", ""]):
            process = selling.start()
            selling.sell(process, 0.2 * (kills + 1), moment)
            selling.kill(process)
        selling.finish_all()
        selling.check()


@pytest.mark.parametrize("server_of", [redis_server, nats_server, rabbit_server], ids=["redis", "nats", "rabbitmq"])
@pytest.mark.parametrize("runtime", ["local", "in process", ON_SPARK])
def test_a_server_that_is_killed_twice_pauses_a_run_that_goes_on_by_itself(
    tmp_path: Path, server_of: type, runtime: str
) -> None:
    """The process never ends for it. What the server forgets is acked again, or sold again as its capabilities say."""
    with server_of() as server:
        assert isinstance(server, RedisServer | NatsServer | RabbitServer)
        url = f"{server.url}?lease_s={LEASE_S:g}" if isinstance(server, NatsServer) else server.url
        selling = Selling(tmp_path, url, runtime)
        process = selling.start()
        for kills in range(2):
            selling.sell(process, 0.3 * (kills + 1))
            server.kill()
            server.start()
        selling.finish(process)
        selling.finish_all()
        found = selling.check()
        if runtime != "local" and not isinstance(server, RabbitServer):
            assert found == Counter(selling.good)
