"""The example on queues, on both runtimes; on Spark with a process that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.queue_pipeline import PRICES, publish, topology
from tests.queues.servers import nats_server, rabbit_server, redis_server
from tupletree.queues import open_queue, url_of
from tupletree.runtimes.run import run

ORDERS = 300
GOOD = {f"order-{number}" for number in range(ORDERS) if number % 100 != 99}


def check(place: Path, broker: str, good: set[str]) -> None:
    """Every good order is sold once in the table and the queue, and the others are dead letters.

    A broker that does not know an id again may have it twice, in a queue and among dead letters.
    """
    with sqlite3.connect(place / "sales.db") as table:
        rows = table.execute("SELECT id, cents FROM sales").fetchall()
    assert Counter(one for one, _ in rows) == Counter(good)
    prices = [*PRICES.values()]
    for one, cents in rows:
        number = int(one.removeprefix("order-"))
        assert cents == prices[number % 3] * (number % 7 + 1)
    with open_queue(url_of(broker, "sales")) as sales:
        sold: Counter[str] = Counter()
        while leased := sales.lease(1000, lease_s=3600):
            sold.update(one.message.id for one in leased)
        knows_ids = sales.broker.capabilities.idempotent_publish
        assert (sold == Counter(good)) if knows_ids else ({*sold} == good)
    with open_queue(url_of(broker, "orders")) as orders:
        assert orders.depth().open == 0
        dead = orders.peek("dead", 1_000_000)
        assert len({one.message.id for one in dead}) == len(good) // 99
        assert len(dead) == len(good) // 99 or not knows_ids
        assert {one.message.body for one in dead} == {b"no order"}


def test_every_good_order_is_sold_once_and_the_others_are_dead_letters_of_the_queue(tmp_path: Path) -> None:
    assert publish(f"sqlite:///{tmp_path}/shop.db", ORDERS) == ORDERS
    t = topology(f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/sales.db")
    ended = run(t, runtime="local", options={"backoff_initial_ms": 1.0}, state_dir=tmp_path / "run").wait(60)
    assert (ended.acked, ended.dead) == (len(GOOD), ORDERS - len(GOOD))
    check(tmp_path, f"sqlite:///{tmp_path}/shop.db", GOOD)


@pytest.fixture(params=["sqlite", "redis", "nats", "rabbitmq"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Its URL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db"
    elif request.param == "redis":
        with redis_server() as server:
            yield server.url
    elif request.param == "nats":
        with nats_server() as server:
            yield f"{server.url}?lease_s=5"  # what a killed driver had comes back so soon
    else:
        with rabbit_server() as server:
            yield server.url


@pytest.mark.nightly
@pytest.mark.spark
def test_killed_three_times_on_spark_every_good_order_of_10_000_is_sold_exactly_once(
    tmp_path: Path, broker: str
) -> None:
    count = 10_000
    publish(broker, count)
    command = [sys.executable, "-m", "tupletree", "run", "examples/queue_pipeline.py", "--runtime", "spark"]
    command += ["--set", f"queue={broker}", "--set", f"table=sqlite:///{tmp_path}/sales.db"]
    command += ["--state-dir", str(tmp_path / "state"), "--option", "epoch_max_messages=500"]
    for kills in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        wanted = count - (kills + 1) * 2000
        while _left(broker) > wanted and process.poll() is None:
            time.sleep(0.05)  # a queue that another process empties
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 3, ended.stderr[-2000:]  # there are dead letters
    check(tmp_path, broker, {f"order-{number}" for number in range(count) if number % 100 != 99})


@pytest.mark.nightly
def test_killed_three_times_locally_every_good_order_of_10_000_is_sold(tmp_path: Path, broker: str) -> None:
    """At least once: by their keys the table has one row of each, and by their ids consumers of the queue know them."""
    count = 10_000
    publish(broker, count)
    command = [sys.executable, "-m", "tupletree", "run", "examples/queue_pipeline.py", "--runtime", "local"]
    command += ["--set", f"queue={broker}", "--set", f"table=sqlite:///{tmp_path}/sales.db"]
    for kills in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        wanted = count - (kills + 1) * 2000
        while _left(broker) > wanted and process.poll() is None:
            time.sleep(0.02)  # a process of its own, of which nobody is told
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    while True:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode in {0, 3}, ended.stderr[-2000:]
        if not _left(broker):
            break
    good = {f"order-{number}" for number in range(count) if number % 100 != 99}
    with sqlite3.connect(tmp_path / "sales.db") as table:
        rows = table.execute("SELECT id FROM sales").fetchall()
    assert Counter(one for (one,) in rows) == Counter(good)
    with open_queue(url_of(broker, "sales")) as sales:
        sold: set[str] = set()
        while leased := sales.lease(1000, lease_s=3600):
            sold.update(one.message.id for one in leased)
        assert sold == good
    with open_queue(url_of(broker, "orders")) as orders:
        assert orders.depth().open == 0
        assert len({one.message.id for one in orders.peek("dead", count)}) == count // 100


def _left(broker: str) -> int:
    with open_queue(url_of(broker, "orders")) as orders:
        return orders.depth().open
