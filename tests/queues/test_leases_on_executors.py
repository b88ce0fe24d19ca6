"""Queues that executors lease from: what must be as with a driver that leases, and what only they have."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queues.test_sources_and_sinks import (
    CONTEXT,
    HANG_S,
    SEEN,
    Order,
    dead_of,
    flaky,
    invoices_of,
    price,
    pricing,
    publish,
    run_local,
    run_spark,
    url_of,
)
from tupletree import ConfigError, ConnectorError, Topology
from tupletree.errors import TupletreeError
from tupletree.queues import Failure, Message, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.sqlite import broker as sqlite
from tupletree.runtimes import crash_points
from tupletree.runtimes.spark.format.entries import numbered, read_epoch_header
from tupletree.runtimes.spark.worker.splits import FRAME_TUPLES
from tupletree.sinks import jsonl, queue_sink, read_rows
from tupletree.sources import broker_spout, queue
from tupletree.sources.executor_queue import ExecutorQueueSpout

executors = partial(pricing, read_on="executors")


def check_priced(place: Path, count: int) -> None:
    """Each order has an invoice, but for the two that are dead; and the queue has none of them any more."""
    assert invoices_of(place) == Counter(number for number in range(count) if number not in {3, 5})
    with open_queue(url_of(place, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 2)
        dead = dead_of(orders)
    assert dead["order-3"][0] == b'{"number": 3, "pears": -1}'
    assert dead["order-5"][0] == b"\xff no JSON"


def segments_named(place: Path) -> set[str]:
    logs = place / "state" / "epochs"
    return {one.file for epoch in numbered(logs, ".epoch") for one in read_epoch_header(logs, epoch).segments}


@pytest.mark.parametrize("runtime", [run_local, run_spark], ids=["local", "spark"])
def test_messages_end_as_those_do_that_the_driver_leases(tmp_path: Path, runtime: object) -> None:
    publish(tmp_path, 300)
    assert callable(runtime)
    ended = runtime(executors(tmp_path), tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (298, 2, 0)
    check_priced(tmp_path, 300)


def test_bodies_are_in_segments_and_in_no_log_of_an_epoch(tmp_path: Path) -> None:
    with open_queue(url_of(tmp_path, "orders")) as orders:
        orders.publish([Message(id=f"o{at}", body=b'{"number": %d, "pears": 4711}' % at) for at in range(100)])
    t = Topology("plain")
    t.sink("out", queue_sink(url_of(tmp_path, "invoices"))).shuffle(
        t.bolt("price", price).shuffle(
            t.spout("orders", queue(url_of(tmp_path, "orders"), Order, follow=False, read_on="executors"))
        )
    )
    assert run_spark(t, tmp_path, epoch_max_messages=30).acked == 100
    named = segments_named(tmp_path)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "state" / "segments").iterdir()}
    assert named == kept.keys()
    assert sum(body.count(b"4711") for body in kept.values()) == 100
    assert all(b"4711" not in path.read_bytes() for path in (tmp_path / "state" / "epochs").iterdir())


def test_a_segment_may_have_more_messages_than_a_frame(tmp_path: Path) -> None:
    count = 2 * FRAME_TUPLES + 1000
    publish(tmp_path, count)
    t = Topology("many")
    orders = t.spout("orders", queue(url_of(tmp_path, "orders"), Order, follow=False, read_on="executors"))
    t.sink("invoices", jsonl(tmp_path / "invoices")).shuffle(t.bolt("price", price).shuffle(orders))
    assert run_spark(t, tmp_path, epoch_max_messages=20_000).acked == count - 2
    numbers = [row["order"] for row in read_rows(tmp_path / "invoices")]
    assert sorted(numbers) == [number for number in range(count) if number not in {3, 5}]
    assert len(segments_named(tmp_path)) == 1


@pytest.mark.parametrize("replay", ["runtime", "source"])
@pytest.mark.parametrize("acker_tasks", [0, 4])
def test_whoever_tries_them_again_and_whether_or_not_they_are_tracked(
    tmp_path: Path, replay: str, acker_tasks: int
) -> None:
    publish(tmp_path, 60)
    SEEN.clear()
    t = Topology("pricing")
    spout = queue(url_of(tmp_path, "orders"), Order, follow=False, read_on="executors")
    orders = t.spout("orders", spout, replay=replay)  # type: ignore[arg-type]
    tried = t.bolt("tried", flaky).shuffle(orders) if acker_tasks else orders
    t.sink("invoices", queue_sink(url_of(tmp_path, "invoices"))).shuffle(t.bolt("price", price).shuffle(tried))
    run_spark(t, tmp_path, acker_tasks=acker_tasks)
    if acker_tasks:
        check_priced(tmp_path, 60)
    else:
        assert invoices_of(tmp_path) == Counter(number for number in range(60) if number not in {3, 5})
        assert [*(tmp_path / "state" / "segments").iterdir()] == []


@pytest.mark.parametrize("point", crash_points.CRASH_POINTS)
@pytest.mark.parametrize("passes", [1, 2])
def test_after_a_crash_at_any_point_every_message_is_published_once_and_the_queue_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, passes: int
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    publish(tmp_path, 40)
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == passes:
            raise Crash(name)

    make = partial(executors, tmp_path, prefetch=10, lease_s=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        try:
            run_spark(make(), tmp_path, epoch_max_messages=15, max_restarts=0)
        except (TupletreeError, Crash):
            assert met
    run_spark(make(), tmp_path, epoch_max_messages=15, max_restarts=0)
    check_priced(tmp_path, 40)


def test_a_broker_that_is_away_now_and_then_pauses_the_spout_and_no_message_dies_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 60)
    calls = Counter[str]()

    def break_now_and_then(name: str) -> None:
        real = getattr(SqliteBroker, name)

        def call(self: SqliteBroker, *arguments: object, **named: object) -> object:
            calls[name] += 1
            if calls[name] % 3 == 1 and calls[name] > 1:
                raise ConnectorError(f"{name}: the broker is away")
            return real(self, *arguments, **named)

        monkeypatch.setattr(SqliteBroker, name, call)

    for name in ("ack", "take", "dead_letter", "depth"):
        break_now_and_then(name)
    ended = run_spark(executors(tmp_path, prefetch=7), tmp_path)
    monkeypatch.undo()
    assert (ended.acked, ended.dead, ended.open) == (58, 2, 0)
    check_priced(tmp_path, 60)


def test_a_message_that_processes_died_of_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    with open_queue(url_of(tmp_path, "orders")) as orders:
        for _ in range(3):
            orders.lease(lease_s=0.001, wait_s=5)
    t = Topology("once")
    spout = queue(url_of(tmp_path, "orders"), Order, follow=False, max_deliveries=3, read_on="executors")
    t.sink("seen", queue_sink(url_of(tmp_path, "seen"))).shuffle(t.spout("orders", spout))
    ended = run_spark(t, tmp_path)
    assert (ended.acked, ended.dead) == (0, 1)
    with open_queue(url_of(tmp_path, "orders")) as orders:
        [(_, reason)] = dead_of(orders).values()
    assert "delivered 4 times" in reason


def test_a_broker_whose_messages_only_one_connection_can_settle_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1)
    can = msgspec.structs.replace(sqlite.CAPABILITIES, ack_anywhere=False)
    monkeypatch.setattr(sqlite, "CAPABILITIES", can)
    with pytest.raises(ConfigError, match="executors cannot lease from this broker") as refused:
        run_spark(executors(tmp_path), tmp_path, max_restarts=0)
    assert "leave out read_on" in str(refused.value)
    monkeypatch.undo()
    assert run_local(executors(tmp_path), tmp_path).acked == 1


def test_another_reader_is_refused() -> None:
    with pytest.raises(ConfigError, match="driver"):
        queue("sqlite:///no.db", read_on="workers")  # type: ignore[call-overload]


def test_a_spout_can_be_sent_to_executors_as_it_was_made() -> None:
    made = queue("sqlite:///no.db", Order, follow=False, prefetch=7, lease_s=3.0, max_deliveries=2, read_on="executors")
    copy = pickle.loads(pickle.dumps(made))
    assert vars(copy) == vars(made)


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["forgotten", "refused"])
def test_an_ack_that_its_broker_forgot_or_refused_is_told_again_and_only_a_refused_one_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_forgotten: bool
) -> None:
    """The time of publishing comes with the lease: without it what was forgotten would be worked again."""
    monkeypatch.setattr(broker_spout, "SAME_S", HANG_S)  # this broker's times are exact to a few milliseconds only
    url = f"{url_of(tmp_path, 'orders')}&remembers_acked_s=0"
    made, acked = SqliteBroker.__init__, SqliteBroker.ack
    handles: list[str] = []

    def make(self: SqliteBroker, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.capabilities = msgspec.structs.replace(self.capabilities, durable_acks=not is_forgotten)

    def take_none(_: SqliteBroker, given: Sequence[str]) -> Sequence[str]:
        handles.extend(given)
        return () if is_forgotten else given

    monkeypatch.setattr(SqliteBroker, "__init__", make)

    async def work() -> None:
        spout = queue(url, Order, read_on="executors")
        assert isinstance(spout, ExecutorQueueSpout)
        await spout.open(CONTEXT)

        async def places() -> list[int]:
            assert await spout.plan(10) == 1
            return [*await spout.accept([lease for lease, _ in spout.take(10, 10_000)])]

        with open_queue(url) as orders:
            orders.publish([Message(id="order-0")])
            assert await places() == [0]
            assert [*spout.not_told()] == []
            monkeypatch.setattr(SqliteBroker, "ack", take_none)
            spout.ack("order-0")
            assert [*spout.not_told()] == ["order-0"]
            await spout.flush()
            assert [*spout.not_told()] == ([] if is_forgotten else ["order-0"])
            monkeypatch.setattr(SqliteBroker, "ack", acked)
            orders.fail([Failure(handle=handles[0])])  # as if its lease had ended
            assert await places() == []
            assert [*spout.not_told()] == []
            assert orders.depth().open == 0
        await spout.close()

    asyncio.run(work())


@pytest.mark.spark
def test_on_spark_workers_lease_and_everything_is_published_once(tmp_path: Path) -> None:
    from tupletree import run

    publish(tmp_path, 3000)
    t = Topology("pricing")
    orders = t.spout("orders", queue(url_of(tmp_path, "orders"), Order, follow=False, read_on="executors"))
    t.sink("invoices", queue_sink(url_of(tmp_path, "invoices"))).shuffle(t.bolt("price", price).shuffle(orders))
    ended = run(t, state_dir=tmp_path / "state", options={"epoch_max_messages": 1000}).wait()
    assert (ended.acked, ended.dead) == (2998, 2)
    check_priced(tmp_path, 3000)
    assert segments_named(tmp_path)
