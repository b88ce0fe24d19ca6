"""Dead letters that a person moved back to work: they are worked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.queues.test_sources_and_sinks import CONTEXT, Invoice, Order, invoices_of, url_of
from tests.queues.test_sources_that_were_not_told import HANG_S, started, unconfirmed
from tests.until import until
from tupletree import ConnectorError, Topology, bolt
from tupletree.errors import PermanentError
from tupletree.queues import Capabilities, Letter, Message, open_queue
from tupletree.queues.sqlite import SqliteBroker
from tupletree.queues.sqlite import broker as sqlite
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.run import run
from tupletree.sinks import queue_sink
from tupletree.sources import broker_spout, queue
from tupletree.tracking.outcomes import Failure as Verdict
from tupletree.tracking.outcomes import FailureKind

MENDED: set[str] = set()


@bolt
def price_if_mended(order: Order) -> Invoice:
    if order.pears < 0 and not MENDED:
        raise PermanentError("a negative number of pears")
    return Invoice(order.number, order.pears * 40)


def topology(place: Path, read_on: Any) -> Topology:
    t = Topology("pricing")
    orders = t.spout("orders", queue(url_of(place, "orders"), Order, follow=True, read_on=read_on))
    priced = t.bolt("price", price_if_mended).shuffle(orders)
    t.sink("invoices", queue_sink(url_of(place, "invoices"))).shuffle(priced)
    return t


def on_spark(t: Topology, place: Path) -> RunHandle:
    return started(t, place)


def on_local(t: Topology, place: Path) -> RunHandle:
    return run(t, runtime="local", durable=True, state_dir=place / "local")


@pytest.mark.parametrize("start", [on_spark, on_local])
@pytest.mark.parametrize("read_on", ["driver", "executors"])
@pytest.mark.parametrize("is_moved_first", [True, False], ids=["moved before the start", "moved after the start"])
def test_a_dead_letter_that_was_moved_back_after_a_stop_is_worked(
    tmp_path: Path, start: Callable[[Topology, Path], RunHandle], is_moved_first: bool, read_on: Any
) -> None:
    MENDED.clear()
    with open_queue(url_of(tmp_path, "orders")) as orders:
        bodies = [b'{"number": %d, "pears": %d}' % (number, -1 if number == 3 else 1) for number in range(5)]
        orders.publish([Message(id=f"order-{number}", body=body) for number, body in enumerate(bodies)])
        handle = start(topology(tmp_path, read_on), tmp_path)
        until(lambda: handle.progress().acked == 4 and (orders.depth().open, orders.depth().dead) == (0, 1))
        handle.stop()
        handle.wait(HANG_S)
        MENDED.add("it is")
        if is_moved_first:
            assert orders.move("orders", state="dead") == 1
        handle = start(topology(tmp_path, read_on), tmp_path)
        if not is_moved_first:
            orders.publish([Message(id="order-7", body=b'{"number": 7, "pears": 1}')])
            until(lambda: 7 in invoices_of(tmp_path))
            assert orders.move("orders", state="dead") == 1
        until(lambda: orders.depth().open == 0)
        handle.stop()
        handle.wait(HANG_S)
        assert orders.depth().dead == 0
    assert invoices_of(tmp_path) == Counter([*range(5), *([] if is_moved_first else [7])])


@pytest.mark.parametrize("end", [RunHandle.stop, RunHandle.drain], ids=["stop", "drain"])
def test_a_stop_leaves_nothing_that_the_next_start_tells_a_source_again(
    tmp_path: Path, end: Callable[[RunHandle], None]
) -> None:
    MENDED.clear()
    with open_queue(url_of(tmp_path, "orders")) as orders:
        orders.publish([Message(id=f"order-{at}", body=b'{"number": 1, "pears": %d}' % (at - 1)) for at in range(3)])
        handle = started(topology(tmp_path, "driver"), tmp_path)
        until(lambda: (orders.depth().open, orders.depth().dead) == (0, 1))
    getattr(handle, end.__name__)()
    handle.wait(HANG_S)
    assert unconfirmed(tmp_path) == set()


DEAD = Verdict(kind=FailureKind.ERROR, error="no", permanent=True)
CANNOT_FIND = msgspec.structs.replace(sqlite.CAPABILITIES, find=False)


@pytest.mark.parametrize("can", [sqlite.CAPABILITIES, CANNOT_FIND], ids=["finds by id", "does not"])
def test_a_dead_letter_that_was_written_though_the_call_raised_is_worked_when_it_is_moved_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: Capabilities
) -> None:
    """Its handle is refused when it is told again, as that of a message is whose lease has ended."""
    monkeypatch.setattr(sqlite, "CAPABILITIES", can)
    monkeypatch.setattr(broker_spout, "LOOKED_AT", 2)
    written = SqliteBroker.dead_letter

    def write_and_break(self: SqliteBroker, letters: Sequence[Letter]) -> Sequence[str]:
        written(self, letters)
        raise ConnectorError("the connection was lost after")

    async def work() -> None:
        spout = queue(url_of(tmp_path, "orders"))
        await spout.open(CONTEXT)
        with open_queue(url_of(tmp_path, "orders")) as orders:
            orders.publish([Message(id=str(at)) for at in range(5)])
            assert [one.message_id for one in await spout.next() or ()] == [*"01234"]
            for message_id in "0123":
                spout.fail(message_id, DEAD)
            await spout.flush()
            with monkeypatch.context() as patched:
                patched.setattr(SqliteBroker, "dead_letter", write_and_break)
                spout.fail("4", DEAD)
                with pytest.raises(ConnectorError):
                    await spout.flush()
            await spout.flush()
            assert [*spout.not_told()] == []
            assert orders.move("orders", state="dead") == 5
            assert [one.message_id for one in await spout.next() or ()] == [*"01234"]
        await spout.close()

    asyncio.run(work())


def test_what_a_killed_process_had_told_is_worked_when_it_is_moved_back(tmp_path: Path) -> None:
    """The next one asks the broker whether it is dead already; one that is not is told again, and not worked."""

    async def work() -> None:
        spout = queue(url_of(tmp_path, "orders"))
        with open_queue(url_of(tmp_path, "orders")) as orders:
            orders.publish([Message(id=str(at)) for at in range(2)])
            told, _ = orders.lease(2, lease_s=HANG_S)
            orders.dead_letter([Letter(handle=told.handle, reason="no")])
            await spout.open(CONTEXT)
            for message_id in "01":  # as the journal says
                spout.fail(message_id, DEAD)
            await spout.flush()
            assert [*spout.not_told()] == ["1"]
            assert orders.move("orders", state="dead") == 1
            assert [one.message_id for one in await spout.next() or ()] == ["0"]
        await spout.close()

    asyncio.run(work())
