"""A queue that a pipeline reads, with all that may go wrong at once: crashes, outages, other consumers, ends of leases.

Eight processes follow each other on one state directory, in process and without a JVM; the last one finds a calm
broker. By then each good order has one invoice, each bad one is dead, and the queue is empty.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.queues.test_sources_and_sinks import HANG_S, SEEN, Order, flaky, invoices_of, price, url_of
from tupletree import ConnectorError, Topology
from tupletree.config import resolve_options
from tupletree.errors import TupletreeError
from tupletree.queues import Failure, Message, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import queue_sink
from tupletree.sources import queue
from tupletree.testing.in_process import start_in_process

SEEDS = int(os.environ.get("TT_QUEUE_SEEDS", "20"))
ORDERS, STARTS = 120, 8
OPERATIONS = ("ack", "take", "dead_letter", "depth", "extend", "fail", "find")


def orders_of(place: Path) -> str:
    """The queue that is read. It forgets ids at once: what comes again is told by the run alone."""
    return url_of(place, "orders") + "&remembers_acked_s=0"


class Crash(BaseException):
    """In the place of the end of the process."""


class Trouble:
    """What goes wrong, drawn from a seed."""

    def __init__(self, seed: int, place: Path) -> None:
        self.draw = random.Random(seed)
        self.place = place
        self.is_calm = False
        self.other = threading.local()

    def met_by(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """The operation, which now and then meets an outage before or after it was done."""

        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_calm or getattr(self.other, "is_me", False):
                return operation(*arguments, **named)
            chance = self.draw.random()
            if chance < 0.08:
                raise ConnectorError("the connection was lost before")
            answer = operation(*arguments, **named)
            if chance < 0.14:
                raise ConnectorError("the connection was lost after")
            return answer

        return call

    @contextmanager
    def crash(self) -> Iterator[None]:
        """The process ends at one of the crash points, or at none."""
        point, which, met = self.draw.choice([*crash_points.CRASH_POINTS]), self.draw.randint(1, 4), 0

        def reach(name: str) -> None:
            nonlocal met
            met += name == point
            if not self.is_calm and name == point and met == which:
                raise Crash(name)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(crash_points, "on_reached", reach)
            yield

    @contextmanager
    def another_consumer(self) -> Iterator[None]:
        """Someone leases messages beside the run, and gives them back."""
        over = threading.Event()
        draw = random.Random(self.draw.random())

        def consume() -> None:
            self.other.is_me = True
            with open_queue(orders_of(self.place)) as orders:
                while not over.wait(0.01):
                    for one in orders.lease(draw.randint(1, 5), lease_s=60):
                        over.wait(0.005)
                        orders.fail([Failure(handle=one.handle, counts=False)])

        thread = threading.Thread(target=consume)
        if not self.is_calm and self.draw.random() < 0.5:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.ident is not None:
                thread.join()

    def run(self, read_on: str) -> None:
        """One process, until its end, its crash, or for three seconds."""
        source: Any = {"prefetch": self.draw.choice([1, 7, 100]), "lease_s": 1.0, "read_on": read_on, "follow": False}
        t = Topology("pricing")
        orders = t.spout(
            "orders", queue(orders_of(self.place), Order, **source), pending=self.draw.choice([None, 1, 9])
        )
        priced = t.bolt("price", price).shuffle(t.bolt("tried", flaky).shuffle(orders))
        t.sink("invoices", queue_sink(url_of(self.place, "invoices"))).shuffle(priced)
        settings = resolve_options(
            code={
                "backoff_initial_ms": 1,
                "message_timeout_s": 60.0,
                "max_restarts": 0 if self.is_calm else self.draw.choice([0, 2]),
                "epoch_max_messages": self.draw.choice([5, 15, 50]),
            }
        )
        request = RunRequest(t, settings, None, self.place / "state", append=True, master="", redact=None)
        handle = start_in_process(request, self.draw.choice([1, 2, 3]))
        try:
            handle.wait(HANG_S if self.is_calm else 3.0)
        except TimeoutError:
            if self.is_calm:
                raise
            handle.stop()
            handle.wait(HANG_S)


@pytest.mark.nightly
@pytest.mark.parametrize("read_on", ["executors", "driver"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_order_has_one_invoice_whatever_went_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, read_on: str
) -> None:
    SEEN.clear()
    bad = {number for number in range(ORDERS) if number % 17 == 3}
    with open_queue(orders_of(tmp_path)) as orders:
        bodies = [b'{"number": %d, "pears": %d}' % (number, -1 if number in bad else 1) for number in range(ORDERS)]
        orders.publish([Message(id=f"order-{number}", body=body) for number, body in enumerate(bodies)])
    trouble = Trouble(seed, tmp_path)
    for name in OPERATIONS:
        monkeypatch.setattr(SqliteBroker, name, trouble.met_by(getattr(SqliteBroker, name)))
    for start in range(STARTS):
        trouble.is_calm = start == STARTS - 1
        try:
            with trouble.crash(), trouble.another_consumer():
                trouble.run(read_on)
        except (TupletreeError, Crash):
            if trouble.is_calm:
                raise
    assert invoices_of(tmp_path) == Counter(number for number in range(ORDERS) if number not in bad)
    with open_queue(orders_of(tmp_path)) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, len(bad))
