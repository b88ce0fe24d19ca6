"""Executors lease from servers as from the embedded queue, and the driver settles what they took, whatever crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.queues.selling import served
from tests.queues.test_sources_and_sinks import SEEN, Order, flaky, price, run_spark
from tupletree import Topology
from tupletree.errors import TupletreeError
from tupletree.queues import Message, open_queue
from tupletree.runtimes import crash_points
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import queue

COUNT = 40
numbers = count()


@pytest.fixture(scope="module", params=["redis", "nats"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(request.param, tmp_path_factory.mktemp("server")) as url:
        yield url


def pricing(url: str, place: Path) -> Topology:
    SEEN.clear()
    t = Topology("pricing")
    spout = queue(url, Order, follow=False, prefetch=10, lease_s=2.0, read_on="executors")
    tried = t.bolt("tried", flaky).shuffle(t.spout("orders", spout))
    t.sink("invoices", jsonl(place / "invoices")).shuffle(t.bolt("price", price).shuffle(tried))
    return t


@pytest.mark.parametrize("point", ["", "take.after", "epoch.after_log", "callbacks.before"])
def test_every_message_is_worked_once_and_acked_or_dead_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, point: str
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    url = f"{server}{'&' if '?' in server else '?'}queue=orders-{next(numbers)}"
    with open_queue(url) as orders:
        bodies = [b'{"number": %d, "pears": %d}' % (number, -1 if number == 3 else 1) for number in range(COUNT)]
        bodies[5] = b"\xff no JSON"
        orders.publish([Message(id=f"order-{number}", body=body) for number, body in enumerate(bodies)])
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == 2:
            raise Crash(name)

    options = {"epoch_max_messages": 15, "max_restarts": 0}
    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        try:
            run_spark(pricing(url, tmp_path), tmp_path, **options)
        except (TupletreeError, Crash):
            assert met == 2
    assert run_spark(pricing(url, tmp_path), tmp_path, **options).open == 0
    invoices = Counter(row["order"] for row in read_rows(tmp_path / "invoices"))
    assert invoices == Counter(number for number in range(COUNT) if number not in {3, 5})
    with open_queue(url) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 2)
