"""Queues as sources and sinks, on the local runtime and on that of Spark without a JVM."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tupletree import ConfigError, ConnectorError, Emit, Options, Topology, bolt
from tupletree.bolts.effects import TaskPlace
from tupletree.config import resolve_options
from tupletree.errors import EndOfInput, PermanentError, TupletreeError
from tupletree.queues import Delivery, Failure, Message, Queue, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.runtimes.run import run
from tupletree.sinks import queue_sink
from tupletree.sources import items, queue
from tupletree.testing.in_process import start_in_process
from tupletree.tracking.outcomes import Failure as Verdict
from tupletree.tracking.outcomes import FailureKind

HANG_S = 60.0


@dataclass(frozen=True)
class Order:
    number: int
    pears: int


@dataclass(frozen=True)
class Invoice:
    order: int
    cents: int


@bolt
def price(order: Order) -> Invoice:
    """Refuses negative orders, for good."""
    if order.pears < 0:
        raise PermanentError("a negative number of pears")
    return Invoice(order.number, order.pears * 40)


SEEN: set[int] = set()


@bolt
def flaky(order: Order) -> Order:
    """Fails each order once, by its number."""
    if order.number not in SEEN:
        SEEN.add(order.number)
        raise ValueError("the service had a moment")
    return order


def pricing(place: Path, **settings: object) -> Topology:
    SEEN.clear()
    t = Topology("pricing")
    orders = t.spout("orders", queue(url_of(place, "orders"), Order, **{"follow": False, **settings}))  # type: ignore[call-overload]
    tried = t.bolt("tried", flaky).shuffle(orders)
    t.sink("invoices", queue_sink(url_of(place, "invoices"))).shuffle(t.bolt("price", price).shuffle(tried))
    return t


Runner = Callable[..., Summary]


def run_local(t: Topology, place: Path, **options: object) -> Summary:
    settings = {"backoff_initial_ms": 1, "message_timeout_s": 60.0, **options}
    return run(t, runtime="local", options=settings, state_dir=place / "local").wait(HANG_S)


def run_spark(t: Topology, place: Path, **options: object) -> Summary:
    settings = resolve_options(code={"backoff_initial_ms": 1, "message_timeout_s": 60.0, **options})
    request = RunRequest(t, settings, None, place / "state", append=True, master="", redact=None)
    return start_in_process(request).wait(HANG_S)


RUNTIMES = pytest.mark.parametrize("runtime", [run_local, run_spark], ids=["local", "spark"])


def url_of(place: Path, name: str) -> str:
    return f"sqlite:///{place}/shop.db?queue={name}"


def publish(place: Path, count: int) -> None:
    """Orders 0 to `count`; number 3 is negative, number 5 is no JSON."""
    with open_queue(url_of(place, "orders")) as orders:
        bodies = [b'{"number": %d, "pears": %d}' % (number, number if number != 3 else -1) for number in range(count)]
        if count > 5:
            bodies[5] = b"\xff no JSON"
        orders.publish([Message(id=f"order-{number}", body=body) for number, body in enumerate(bodies)])


def invoices_of(place: Path) -> Counter[int]:
    with open_queue(url_of(place, "invoices")) as invoices:
        stored = invoices.peek(limit=100_000)
        assert len(stored) < 100_000  # these are all of them
        assert (invoices.depth().leased, invoices.depth().delayed) == (0, 0)
    return Counter(msgspec.json.decode(one.message.body, type=Invoice).order for one in stored)


def dead_of(queue: Queue) -> dict[str, tuple[bytes, str]]:
    return {one.message.id: (one.message.body, one.reason) for one in queue.peek("dead", 100)}


@RUNTIMES
def test_each_message_is_acked_once_its_tree_is_done_and_what_dies_is_a_dead_letter_of_the_queue(
    tmp_path: Path, runtime: Runner
) -> None:
    publish(tmp_path, 300)
    ended = runtime(pricing(tmp_path), tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (298, 2, 0)
    assert invoices_of(tmp_path) == Counter(number for number in range(300) if number not in {3, 5})
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 2)
        dead = dead_of(orders)
    assert dead["order-3"] == (
        b'{"number": 3, "pears": -1}',
        "price: tupletree.errors.PermanentError: a negative number of pears",
    )
    assert dead["order-5"][0] == b"\xff no JSON"
    assert "malformed" in dead["order-5"][1] or "invalid" in dead["order-5"][1]


@pytest.mark.parametrize("point", crash_points.CRASH_POINTS)
def test_after_a_crash_at_any_point_every_message_is_published_once_and_the_queue_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    publish(tmp_path, 40)
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == 1:
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", reach)
        try:
            run_spark(pricing(tmp_path, prefetch=10), tmp_path, epoch_max_messages=15, max_restarts=0)
        except (TupletreeError, Crash):
            assert met
    run_spark(pricing(tmp_path, prefetch=10), tmp_path, epoch_max_messages=15, max_restarts=0)
    assert invoices_of(tmp_path) == Counter(number for number in range(40) if number not in {3, 5})
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 2)


@RUNTIMES
def test_a_broker_that_is_away_for_acks_and_leases_pauses_the_spout_and_no_message_dies_of_it(
    tmp_path: Path, runtime: Runner, monkeypatch: pytest.MonkeyPatch
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

    for name in ("ack", "take", "dead_letter", "publish"):
        break_now_and_then(name)
    ended = runtime(pricing(tmp_path, prefetch=7), tmp_path)
    monkeypatch.undo()
    assert (ended.acked, ended.dead, ended.open) == (58, 2, 0)
    assert set(invoices_of(tmp_path)) == {number for number in range(60) if number not in {3, 5}}
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 2)


CONTEXT = TaskPlace("pricing", "orders", 0, 0, 1, attempts={})


def test_an_outage_in_the_function_that_reads_bodies_holds_up_messages_and_loses_none(tmp_path: Path) -> None:
    publish(tmp_path, 3)
    away = {"order-1"}

    def read(message: Message) -> Order:
        if message.id in away:
            raise ConnectorError("the registry of schemas is away")
        return msgspec.json.decode(message.body, type=Order)

    async def lease() -> None:
        spout = queue(url_of(tmp_path, "orders"), Order, body=read)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["order-0"]
        with pytest.raises(ConnectorError, match="registry"):
            await spout.next()
        away.clear()
        assert ids_of(await spout.next()) == ["order-1", "order-2"]
        await spout.close()

    asyncio.run(lease())


@pytest.mark.parametrize("is_acked", [True, False], ids=["acked", "dead"])
def test_a_message_whose_lease_ended_before_the_broker_was_told_its_outcome_is_not_worked_again(
    tmp_path: Path, is_acked: bool
) -> None:
    publish(tmp_path, 1)

    async def settle() -> None:
        spout = queue(url_of(tmp_path, "orders"), Order)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["order-0"]
        handle = spout._out["order-0"].handle
        if is_acked:
            spout.ack("order-0")
        else:
            spout.fail("order-0", Verdict(kind=FailureKind.ERROR, error="no pears", permanent=True))
        with open_queue(url_of(tmp_path, "orders")) as orders:
            orders.fail([Failure(handle=handle, counts=False)])  # as if its lease had ended
            assert await spout.next() is None
            assert (orders.depth().open, orders.depth().dead) == (0, 0 if is_acked else 1)
            # Nothing is remembered of it: a message of the same id is a new one.
            orders.move("orders", state="dead")
        if not is_acked:
            assert ids_of(await spout.next()) == ["order-0"]
        await spout.close()

    asyncio.run(settle())


@pytest.mark.parametrize("fault", ["the broker is away", "it was suspended"])
def test_what_was_leased_ahead_and_whose_lease_ended_is_not_given_here_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Another consumer has it."""
    publish(tmp_path, 3)

    def no_answer(*_: object) -> list[str]:
        raise ConnectorError("the broker is away")

    if fault == "the broker is away":
        monkeypatch.setattr(Queue, "extend", no_answer)

    async def lease() -> None:
        spout = queue(url_of(tmp_path, "orders"), Order, prefetch=2, lease_s=1, follow=False)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["order-0", "order-1"]
        assert spout._leasing is not None
        await asyncio.wait([spout._leasing])
        assert [one.message.id for one in spout._leased] == ["order-2"]
        if fault == "it was suspended":
            assert spout._keeper is not None
            spout._keeper.cancel()
        with open_queue(url_of(tmp_path, "orders")) as other:
            found = await asyncio.to_thread(_lease_three, other)
            assert sorted(one.message.id for one in found) == ["order-0", "order-1", "order-2"]
            assert await spout.next() is None
            monkeypatch.undo()
            assert not spout._failures  # a broker without fencing would settle it for its new holder
            assert other.ack([one.handle for one in found]) == []
            spout.ack("order-0")
            spout.ack("order-1")
            with pytest.raises(EndOfInput):
                await asyncio.wait_for(until_it_raises(spout.next), HANG_S)
        await spout.close()

    asyncio.run(lease())


async def until_it_raises(next_: Callable[[], Awaitable[object]]) -> None:
    while True:
        assert await next_() is None


def _lease_three(other: Queue) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < 3:
        found += other.lease(3, lease_s=600, wait_s=HANG_S)
    return found


def test_what_was_leased_ahead_is_given_when_its_lease_was_extended(tmp_path: Path) -> None:
    publish(tmp_path, 3)

    async def lease() -> None:
        spout = queue(url_of(tmp_path, "orders"), Order, prefetch=2, lease_s=1)
        await spout.open(CONTEXT)
        assert ids_of(await spout.next()) == ["order-0", "order-1"]
        assert spout._leasing is not None
        await asyncio.shield(spout._leasing)
        with open_queue(url_of(tmp_path, "orders")) as other:
            assert await asyncio.to_thread(lambda: other.lease(3, wait_s=2.5)) == []  # longer than two leases
        assert ids_of(await spout.next()) == ["order-2"]
        await spout.close()

    asyncio.run(lease())


def ids_of(given: object) -> list[object]:
    assert isinstance(given, list)
    assert all(isinstance(one, Emit) for one in given)
    return [one.message_id for one in given]


@pytest.mark.parametrize(("quick_s", "prefetch", "batches"), [(60.0, 50, 3), (0.0, 50, 1), (60.0, 49, 1)])
def test_batches_of_a_run_that_works_quickly_are_leased_ahead_and_all_of_them_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_s: float, prefetch: int, batches: int
) -> None:
    monkeypatch.setattr(sys.modules["tupletree.sources.broker_spout"], "QUICK_S", quick_s)
    url = f"sqlite:///{tmp_path}/shop.db?queue=orders"
    bodies = [msgspec.json.encode(Order(number, 1)) for number in range(1000)]

    async def ahead(spout: Any, given: int) -> int:
        """How many are leased and not given, when no more are."""
        if spout._leasing is not None:
            await asyncio.wait([spout._leasing])
        return orders.depth().leased - given

    async def work() -> None:
        spout = queue(url, Order, prefetch=prefetch)
        await spout.open(CONTEXT)
        first = await spout.next()
        assert isinstance(first, list)
        assert await ahead(spout, len(first)) == prefetch
        second = await spout.next()
        assert isinstance(second, list)
        assert await ahead(spout, len(first) + len(second)) == batches * prefetch
        third = await spout.next()
        assert isinstance(third, list)
        assert len(third) == batches * prefetch
        ids = [one.message_id for one in [*first, *second, *third]]
        assert ids == [str(number) for number in range(len(ids))]
        spout.ack("0")
        await spout.close()

    with open_queue(url) as orders:
        orders.publish([Message(id=str(number), body=body) for number, body in enumerate(bodies)])
        asyncio.run(work())
        assert (orders.depth().ready, orders.depth().open) == (999, 999)


def test_what_is_out_at_a_stop_goes_back_and_is_no_delivery_that_counts(tmp_path: Path) -> None:
    publish(tmp_path, 4)
    entered, leave = threading.Event(), threading.Event()

    @bolt
    def slow(order: Order) -> None:
        entered.set()
        leave.wait(HANG_S)

    t = Topology("slow")
    t.bolt("slow", slow).shuffle(t.spout("orders", queue(url_of(tmp_path, "orders"), Order)))
    handle = run(t, runtime="local", options=Options(drain_timeout_s=0.1))
    assert entered.wait(HANG_S)
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    leave.set()
    stopping.join(HANG_S)
    handle.wait(HANG_S)
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert orders.depth().leased == 0
        assert {one.deliveries for one in orders.peek(limit=10)} <= {0}


@RUNTIMES
def test_without_a_class_messages_come_as_they_are_and_go_on_as_they_are(tmp_path: Path, runtime: Runner) -> None:
    sent = [
        Message(id="ä", body=b"", headers={"who": "Zoë"}, key="k", content_type="text/plain"),
        Message(id="b", body=b"\x00\xff"),
    ]
    with open_queue(url_of(tmp_path, "in")) as inbound:
        inbound.publish(sent)
    t = Topology("copy")
    copied = t.spout("in", queue(url_of(tmp_path, "in"), follow=False))
    t.sink("out", queue_sink(url_of(tmp_path, "out"))).shuffle(copied)
    assert runtime(t, tmp_path).acked == 2
    with open_queue(url_of(tmp_path, "out")) as outbound:
        assert sorted((one.message for one in outbound.peek()), key=lambda message: message.id) == [sent[1], sent[0]]


@RUNTIMES
def test_a_row_that_the_broker_refuses_is_a_dead_letter_and_the_others_are_published(
    tmp_path: Path, runtime: Runner
) -> None:
    def name_of(order: Order) -> str:
        return "x" * 600 if order.number == 2 else f"order-{order.number}"

    t = Topology("publishing")
    orders = t.spout("orders", items([Order(number, 1) for number in range(5)]))
    t.sink("out", queue_sink(url_of(tmp_path, "out"), id=name_of, key="number")).shuffle(orders)
    ended = runtime(t, tmp_path)
    assert (ended.acked, ended.dead) == (4, 1)
    with open_queue(url_of(tmp_path, "out")) as outbound:
        stored = {one.message.id: one.message for one in outbound.peek()}
    assert sorted(stored) == ["order-0", "order-1", "order-3", "order-4"]
    assert stored["order-4"].key == "4"
    assert stored["order-4"].body == b'{"number":4,"pears":1}'
    assert stored["order-4"].content_type == "application/json"


@RUNTIMES
def test_a_message_that_processes_died_of_too_often_is_a_dead_letter(tmp_path: Path, runtime: Runner) -> None:
    publish(tmp_path, 1)
    with open_queue(url_of(tmp_path, "orders")) as orders:
        for _ in range(3):  # its leases ended, and nobody gave it back
            [delivery] = orders.lease(lease_s=0.001, wait_s=5)
            assert delivery.deliveries < 4
    t = Topology("once")
    spout = queue(url_of(tmp_path, "orders"), Order, follow=False, max_deliveries=3)
    t.sink("seen", queue_sink(url_of(tmp_path, "seen"))).shuffle(t.spout("orders", spout))
    ended = runtime(t, tmp_path)
    assert (ended.acked, ended.dead) == (0, 1)
    with open_queue(url_of(tmp_path, "orders")) as orders:
        [(_, reason)] = dead_of(orders).values()
    assert "delivered 4 times" in reason


@RUNTIMES
def test_a_broker_that_is_away_at_the_start_is_a_failed_start_that_says_so(tmp_path: Path, runtime: Runner) -> None:
    t = Topology("away")
    t.sink("out", queue_sink(url_of(tmp_path, "out"))).shuffle(t.spout("in", queue("redis://127.0.0.1:1/0", Order)))
    with pytest.raises(ConnectorError, match=r"redis://127\.0\.0\.1:1/0.*cannot be reached"):
        runtime(t, tmp_path)


@RUNTIMES
def test_a_sink_may_make_a_queue_that_keeps_the_order_of_keys(tmp_path: Path, runtime: Runner) -> None:
    t = Topology("copying")
    orders = t.spout("orders", items([Order(number, number % 2) for number in range(6)]))
    t.sink("out", queue_sink(url_of(tmp_path, "out"), key="pears", ordered=True)).shuffle(orders)
    assert runtime(t, tmp_path).acked == 6
    with open_queue(url_of(tmp_path, "out")) as out:
        assert sorted(one.message.key for one in out.lease(6)) == ["0", "1"]  # one at a time of each key


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="no broker is known"):
        queue("sqlit:///a.db")
    with pytest.raises(ConfigError, match="no way to read"):
        queue("sqlite:///a.db", Order, body="yaml")
    with pytest.raises(ConfigError, match="cannot be"):
        queue("sqlite:///a.db", Order, lease_s=0)
    with pytest.raises(ConfigError, match="wrong value for id"):
        queue_sink("sqlite:///a.db", id=3)  # type: ignore[arg-type]
    assert repr(queue("sqlite:///a.db?queue=q")) == "queue('sqlite:///a.db?queue=q')"
