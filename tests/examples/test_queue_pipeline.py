"""The example on queues. At the size of the night, while processes are killed: tests/nightly/test_queue_pipeline.py."""

from __future__ import annotations

from pathlib import Path

from examples.queue_pipeline import publish, topology
from tests.queues.selling import check_sales
from tupletree.runtimes.run import run

ORDERS = 300


def test_every_good_order_is_sold_once_and_the_others_are_dead_letters_of_the_queue(tmp_path: Path) -> None:
    assert publish(f"sqlite:///{tmp_path}/shop.db", ORDERS) == ORDERS
    t = topology(f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/sales.db")
    ended = run(t, runtime="local", options={"backoff_initial_ms": 1.0}, state_dir=tmp_path / "run").wait(60)
    assert (ended.acked, ended.dead) == (ORDERS - ORDERS // 100, ORDERS // 100)
    check_sales(tmp_path, f"sqlite:///{tmp_path}/shop.db", ORDERS)
