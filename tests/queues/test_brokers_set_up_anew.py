"""A broker that comes back empty, or shuts its user out, while a run publishes: no message is to blame for that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.queues.servers import NatsServer, RedisServer, nats_server, redis_server
from tests.until import until
from tupletree.bolts.effects import TaskPlace
from tupletree.errors import ConnectorError, is_outage
from tupletree.queues import open_queue
from tupletree.sinks import queue_sink
from tupletree.sinks.queue import QueueSink
from tupletree.topology.components import SinkBatch


@dataclass(frozen=True)
class Row:
    n: int


@pytest.fixture(params=["redis", "nats"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer | NatsServer]:
    with redis_server() if request.param == "redis" else nats_server() as serving:
        yield serving


def write(sink: Any, number: int) -> None:
    sink.write(SinkBatch(f"run-{number}", [Row(number)], "run", number, "run"))


def test_a_queue_that_is_gone_is_declared_again_and_has_what_comes(
    server: RedisServer | NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{server.url}?queue=out"
    sink: QueueSink[Row] = queue_sink(url)
    sink.open(TaskPlace("t", "out", 1, 0, 1))
    write(sink, 1)
    server.kill()
    for path in Path(server.folder).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    server.start()

    def is_written() -> bool:
        try:
            write(sink, 2)
        except ConnectorError as error:
            met.append(error)
            return False
        return True

    met: list[ConnectorError] = []
    until(is_written)
    assert all(map(is_outage, met)), "a message would fail of it"
    sink.close()
    with open_queue(url) as queue:
        assert [one.message.body for one in queue.lease(10, wait_s=5.0)] == [b'{"n":2}']
    assert "is declared again, and what was in it is gone" in caplog.text


def test_a_user_who_is_shut_out_is_an_outage_until_it_is_let_in() -> None:
    redis = pytest.importorskip("redis")
    with redis_server() as server:
        sink: QueueSink[Row] = queue_sink(f"{server.url}?queue=out")
        sink.open(TaskPlace("t", "out", 1, 0, 1))
        write(sink, 1)
        operator = redis.Redis(port=server.port)
        operator.config_set("requirepass", "another one")
        operator.execute_command("AUTH", "another one")
        operator.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(ConnectorError) as cut:
            write(sink, 2)
        assert is_outage(cut.value)
        with pytest.raises(ConnectorError, match="does not let this user in any more") as refused:
            write(sink, 2)
        assert is_outage(refused.value)
        operator.config_set("requirepass", "")
        write(sink, 2)
        assert operator.xlen("tupletree:{out}:stream") == 2
        sink.close()
