"""Messages that executors took and the driver hears of late, again, or while the broker or the disk is away."""

from __future__ import annotations

import asyncio
import errno
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.queues.test_sources_and_sinks import (
    CONTEXT,
    HANG_S,
    Order,
    invoices_of,
    price,
    url_of,
)
from tests.until import until
from tupletree import ConnectorError, Topology, bolt
from tupletree.config import resolve_options
from tupletree.errors import TupletreeError
from tupletree.queues import Failure, Message, Queue, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.spark.driver import lease_planner
from tupletree.runtimes.spark.format import segments
from tupletree.runtimes.spark.worker import taking
from tupletree.sinks import queue_sink
from tupletree.sources import executor_queue, items, queue
from tupletree.sources.executor_queue import ExecutorQueueSpout
from tupletree.testing import in_process
from tupletree.testing.in_process import start_in_process

LEASE_S = 1.0
"""The shortest there is: runs are told so late by blocking them."""


class Crash(BaseException):
    """In the place of the end of the process."""


def started(t: Topology, place: Path, **options: object) -> RunHandle:
    settings = resolve_options(code={"backoff_initial_ms": 1, "message_timeout_s": 60.0, "max_restarts": 0, **options})
    return start_in_process(RunRequest(t, settings, None, place / "state", append=True, master="", redact=None))


def ready_of(place: Path) -> int:
    with open_queue(url_of(place, "orders")) as orders:
        return orders.depth().ready


def published(place: Path, count: int, first: int = 0) -> None:
    with open_queue(url_of(place, "orders")) as orders:
        numbers = range(first, first + count)
        orders.publish([Message(id=f"order-{at}", body=b'{"number": %d, "pears": 1}' % at) for at in numbers])


def nothing(_: Order) -> None:
    """For runs that need not be waited for."""


MEANWHILE: list[Callable[[Order], object]] = [nothing]
"""What happens while an order is worked: bolts must be picklable, and workers are in this process."""


@bolt
def worked(order: Order) -> Order:
    MEANWHILE[0](order)
    return order


def chained(place: Path, meanwhile: Callable[[Order], object] = nothing, others: int = 0, **settings: Any) -> Topology:
    """Orders are worked, and priced; so are others, of other sources with 20 each."""
    MEANWHILE[0] = meanwhile
    t = Topology("late")
    settings = {"follow": False, "lease_s": LEASE_S, **settings}
    orders = t.spout("orders", queue(url_of(place, "orders"), Order, read_on="executors", **settings))
    waited = t.bolt("worked", worked).shuffle(orders)
    for number in range(others):
        waited.shuffle(t.spout(f"other-{number}", items(Order(at, 1) for at in range(20))))
    t.sink("invoices", queue_sink(url_of(place, "invoices"))).shuffle(t.bolt("price", price).shuffle(waited))
    return t


def test_messages_that_are_open_and_come_again_do_not_count_as_bytes_of_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be in the buffer, and it would be full: nothing would ever be asked for again."""
    published(tmp_path, 40)
    limits = {"epoch_max_bytes": 3_000}  # 40 messages are longer, as they lie in a segment

    def crash(name: str) -> None:
        if name == "epoch.after_log":
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", crash)
        with pytest.raises((TupletreeError, Crash)):
            started(chained(tmp_path), tmp_path, **limits).wait(HANG_S)
    until(lambda: ready_of(tmp_path) == 40)
    come = threading.Event()

    def wait_for_all(_: Order) -> None:
        until(lambda: come.is_set() or ready_of(tmp_path) < 10)
        come.set()

    ended = started(chained(tmp_path, wait_for_all, lease_s=60.0), tmp_path, **limits).wait(HANG_S)
    assert invoices_of(tmp_path) == Counter(range(40))
    assert ended.open == 0


def be_away(_: SqliteBroker, handles: Sequence[str], *__: object) -> Sequence[str]:
    raise ConnectorError("the broker is away", got=str(handles))


def test_what_came_with_a_message_that_is_over_is_worked_although_the_broker_is_away_when_that_is_to_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be out, and kept, and nobody would work it."""
    url = url_of(tmp_path, "orders")
    tell = SqliteBroker.ack

    def refuse(_: SqliteBroker, handles: Sequence[str]) -> Sequence[str]:
        return handles

    async def work(spout: ExecutorQueueSpout[Order]) -> None:
        await spout.open(CONTEXT)
        with open_queue(url) as orders:
            orders.publish([Message(id="over")])
            await spout.plan(10)
            [(lease, _)] = spout.take(10, 10_000)
            assert [*await spout.accept([lease])] == [0]
            monkeypatch.setattr(SqliteBroker, "ack", refuse)
            spout.ack("over")
            await spout.flush()
            orders.fail([Failure(handle=lease.handle)])  # as if its lease had ended
            orders.publish([Message(id="new")])
            monkeypatch.setattr(SqliteBroker, "ack", be_away)
            taken = [lease for lease, _ in spout.take(10, 10_000)]
            assert [taken[at].message_id for at in await spout.accept(taken)] == ["new"]
            assert [*spout.not_told()] == ["over"]
            with pytest.raises(ConnectorError, match="away"):
                await spout.plan(10)
            monkeypatch.setattr(SqliteBroker, "ack", tell)
            await spout.plan(10)
            assert [*spout.not_told()] == []
            assert orders.depth().open == 1
        await spout.close()

    made = queue(url, Order, read_on="executors")
    assert isinstance(made, ExecutorQueueSpout)
    asyncio.run(work(made))


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "full"])
def test_the_leases_of_what_was_taken_are_kept_while_nothing_of_it_can_be_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """Else other consumers would work it, too; or, again and again, it would be dead at the end and never worked."""
    published(tmp_path, 20)
    taking_now, go_on, kept = threading.Event(), threading.Event(), threading.Event()
    extend = Queue.extend

    def note(given: Queue, handles: Sequence[str], lease_s: float) -> Sequence[str]:
        if len(handles) == 20:
            kept.set()
        return extend(given, handles, lease_s)

    def take_late(*arguments: Any) -> bytes:
        taking_now.set()
        assert go_on.wait(HANG_S)
        return taking.take(*arguments)

    monkeypatch.setattr(Queue, "extend", note)
    monkeypatch.setattr(in_process, "take", take_late)
    t = chained(
        tmp_path, lambda _: None if is_paused else until(kept.is_set), follow=True, others=0 if is_paused else 3
    )
    handle = started(t, tmp_path, epoch_max_messages=20)
    until(taking_now.is_set)
    if is_paused:
        handle.pause()
    else:  # one epoch is worked, one is logged, and the next one is full
        until(lambda: handle.progress().open >= 60, what=handle.progress)
    go_on.set()
    until(kept.is_set, patience_s=20)
    handle.resume()
    until(lambda: len(invoices_of(tmp_path)) == 20, what=handle.progress)
    handle.stop()
    handle.wait(HANG_S)
    assert {*invoices_of(tmp_path).values()} == {1 if is_paused else 4}


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [(OSError(errno.ENOSPC, "No space left on device"), True), (RuntimeError("the executor was lost"), False)],
    ids=["disk", "executor"],
)
def test_a_job_that_took_messages_and_failed_is_run_again_as_one_that_works_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_outage: bool
) -> None:
    published(tmp_path, 20)
    tries = Counter[str]()

    def fail_first(path: Path, messages: Sequence[bytes]) -> None:
        tries["written"] += 1
        if tries["written"] < 4:
            raise error
        segments.write_segment(path, messages)

    monkeypatch.setattr(taking, "write_segment", fail_first)
    handle = started(chained(tmp_path), tmp_path)
    assert handle.wait(HANG_S).open == 0
    assert invoices_of(tmp_path) == Counter(range(20))
    assert bool(handle.progress().outage_counts) is is_outage


@pytest.mark.parametrize("call", ["depth", "take"])
def test_an_outage_is_over_when_messages_are_taken_again_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else the next one would have lasted since the first one began, and `outage_limit_s` would end the run."""
    published(tmp_path, 20)
    real, tries, is_back = getattr(SqliteBroker, call), Counter[str](), threading.Event()

    def be_away(*arguments: Any, **named: Any) -> Any:
        tries[call] += 1
        if not is_back.is_set() and tries[call] > 1:
            raise ConnectorError("the broker is away")
        return real(*arguments, **named)

    monkeypatch.setattr(SqliteBroker, call, be_away)
    handle = started(chained(tmp_path, follow=True, prefetch=10), tmp_path, epoch_max_messages=10)
    until(lambda: tries[call] > 4 and handle.progress().outages, what=handle.progress)
    is_back.set()
    until(lambda: len(invoices_of(tmp_path)) == 20, what=handle.progress)
    until(lambda: not handle.progress().outages, patience_s=20, what=handle.progress)
    assert handle.progress().outage_counts == {"orders": 1}
    handle.stop()
    handle.wait(HANG_S)


def test_what_executors_took_and_another_consumer_has_by_now_is_not_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that took it was told of late: it waited for the cores that an epoch had, or the run was suspended."""
    url = url_of(tmp_path, "orders")
    monkeypatch.setattr(executor_queue, "KEEP_PART", 0.0)  # every lease may have ended since

    async def work(spout: ExecutorQueueSpout[Order]) -> None:
        await spout.open(CONTEXT)
        with open_queue(url) as orders:
            orders.publish([Message(id=f"order-{at}") for at in range(3)])
            await spout.plan(10)
            taken = [lease for lease, _ in spout.take(10, 10_000)]
            orders.fail([Failure(handle=taken[1].handle)])  # as if its lease had ended
            [other] = orders.lease(lease_s=HANG_S)
            assert [*await spout.accept(taken)] == [0, 2]
            for at in (0, 2):
                spout.ack(f"order-{at}")
            await spout.flush()
            assert [*orders.ack([other.handle])] == []
            assert orders.depth().open == 0
            # Where that cannot be asked: what is late is not worked, and what is not is.
            monkeypatch.setattr(SqliteBroker, "extend", be_away)
            orders.publish([Message(id=f"order-{at}") for at in range(4, 6)])
            for lease_s, expected in ((60.0, [0]), (0.0, [])):
                await spout.plan(1)
                monkeypatch.setattr(spout, "_lease_s", 60.0)
                taken = [lease for lease, _ in spout.take(1, 10_000)]
                monkeypatch.setattr(spout, "_lease_s", lease_s)
                assert [*await spout.accept(taken)] == expected
        await spout.close()

    made = queue(url, Order, lease_s=60.0, read_on="executors")
    assert isinstance(made, ExecutorQueueSpout)
    asyncio.run(work(made))


def test_more_is_taken_at_once_after_messages_that_are_over_and_came_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause follows where executors found nothing, and not where all that they found is known."""
    published(tmp_path, 40)

    def crash(name: str) -> None:
        if name == "callbacks.before":
            raise Crash(name)

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", crash)
        with pytest.raises((TupletreeError, Crash)):
            started(chained(tmp_path, lease_s=60.0), tmp_path, epoch_max_messages=20).wait(HANG_S)
    assert ready_of(tmp_path) == 40
    monkeypatch.setattr(lease_planner, "EMPTY_PAUSES", math.inf)
    assert started(chained(tmp_path), tmp_path, epoch_max_messages=5).wait(HANG_S).open == 0
    assert invoices_of(tmp_path) == Counter(range(40))


def test_a_job_that_would_take_messages_after_the_end_of_its_run_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(tmp_path, 20)
    taking_now, cancelled = threading.Event(), threading.Event()

    def wait(*_: object) -> bytes:
        taking_now.set()
        assert cancelled.wait(HANG_S)
        raise InterruptedError("the job was cancelled")

    monkeypatch.setattr(in_process, "take", wait)
    monkeypatch.setattr(in_process.InProcessPlanRunner, "cancel", lambda _: cancelled.set())
    monkeypatch.setattr(lease_planner, "CLOSE_S", 0.01)
    handle = started(chained(tmp_path, follow=True), tmp_path)
    until(taking_now.is_set)
    handle.stop()
    handle.wait(HANG_S)
    assert cancelled.is_set()
    assert ready_of(tmp_path) == 20
