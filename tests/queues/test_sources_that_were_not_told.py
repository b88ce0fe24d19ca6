"""What a broker could not be told is in Spark's journal for the next process, and an ended queue is asked again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.queues.test_sources_and_sinks import (
    Invoice,
    Order,
    dead_of,
    invoices_of,
    price,
    pricing,
    publish,
    run_spark,
    url_of,
)
from tests.until import until
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.errors import TupletreeError
from tupletree.queues import Delivery, Depth, Failure, Letter, Message, Queue, open_queue
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunHandle, RunRequest
from tupletree.runtimes.spark.format.entries import numbered, read_settle
from tupletree.sinks import queue_sink
from tupletree.sources import queue
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0

NEGATIVE = b'{"number": 3, "pears": -1}', "price: tupletree.errors.PermanentError: a negative number of pears"
"""The dead letter of order 3."""


class OtherConsumer:
    """Has every message, by another lease, before the broker is told what became of it; and keeps it until `die`."""

    def __init__(self, url: str, patching: pytest.MonkeyPatch) -> None:
        self.queue = open_queue(url)
        self.taken: list[Delivery] = []
        self.refused: set[str] = set()
        self.leasing = threading.RLock()
        ack, dead_letter, lease = Queue.ack, Queue.dead_letter, Queue.lease

        def ack_late(given: Queue, handles: Sequence[str]) -> Sequence[str]:
            self._take(handles)
            return self._noted(ack(given, handles))

        def dead_letter_late(given: Queue, letters: Sequence[Letter]) -> Sequence[str]:
            self._take([one.handle for one in letters])
            return self._noted(dead_letter(given, letters))

        def lease_alone(given: Queue, limit: int, **named: Any) -> Sequence[Delivery]:
            with self.leasing:
                return lease(given, limit, **named)

        patching.setattr(Queue, "lease", lease_alone)
        patching.setattr(Queue, "ack", ack_late)
        patching.setattr(Queue, "dead_letter", dead_letter_late)

    def _take(self, handles: Sequence[str]) -> None:
        with self.leasing:
            self.queue.fail([Failure(handle=one, counts=False) for one in handles])  # as if their leases had ended
            self.taken += self.queue.lease(len(handles), lease_s=HANG_S)

    def _noted(self, refused: Sequence[str]) -> Sequence[str]:
        self.refused.update(refused)
        return refused

    def die(self) -> None:
        self.queue.fail([Failure(handle=one.handle, counts=False) for one in self.taken])
        self.queue.close()


def started(t: Topology, place: Path) -> RunHandle:
    settings = resolve_options(code={"backoff_initial_ms": 1, "message_timeout_s": 60.0, "max_restarts": 0})
    return start_in_process(RunRequest(t, settings, None, place / "state", append=True, master="", redact=None))


def test_what_a_broker_refused_to_be_told_is_told_by_the_next_process_and_not_worked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 4)
    with monkeypatch.context() as patching:
        other = OtherConsumer(url_of(tmp_path, "orders"), patching)
        handle = started(pricing(tmp_path, follow=True), tmp_path)
        until(lambda: len(other.refused) == 4, what=lambda: (other.refused, other.taken, handle.progress()))
    with open_queue(url_of(tmp_path, "orders")) as orders:
        orders.publish([Message(id="order-9", body=b'{"number": 9, "pears": 1}')])
    until(lambda: handle.progress().acked == 4, what=handle.progress)
    handle.stop()
    handle.wait(HANG_S)
    other.die()
    ended = run_spark(pricing(tmp_path), tmp_path)
    assert (ended.acked, ended.dead, ended.open) == (4, 1, 0)
    assert invoices_of(tmp_path) == Counter([0, 1, 2, 9])
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, dead_of(orders)) == (0, {"order-3": NEGATIVE})


@pytest.mark.parametrize("read_on", ["driver", "executors"])
def test_after_two_kills_the_queue_has_dead_letters_that_say_what_the_messages_died_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_on: str
) -> None:
    """The second process settles another epoch, and is killed before the first one's leases end."""

    class Crash(BaseException):
        """In the place of the end of the process."""

    def reach(name: str) -> None:
        if name == "callbacks.before":
            raise Crash(name)

    def start() -> None:
        run_spark(
            pricing(tmp_path, prefetch=10, lease_s=2.0, read_on=read_on),
            tmp_path,
            epoch_max_messages=10,
            max_restarts=0,
        )

    publish(tmp_path, 40)
    with monkeypatch.context() as patching:
        patching.setattr(crash_points, "on_reached", reach)
        patching.setattr(Queue, "fail", lambda given, failures: [])  # it gives nothing back
        for _ in range(2):
            with pytest.raises((TupletreeError, Crash)):
                start()
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (40, 0)
        assert len(numbered(tmp_path / "state" / "settles", ".settle")) == 2
        start()
        dead = dead_of(orders)
        assert (orders.depth().open, [*dead]) == (0, ["order-3", "order-5"])
    assert dead["order-3"] == NEGATIVE
    assert "malformed" in dead["order-5"][1]


def unconfirmed(place: Path) -> set[str]:
    """The messages whose outcomes the journal keeps because their source may deliver them again."""
    kept: set[str] = set()
    for epoch in numbered(place / "state" / "settles", ".settle"):
        entry = read_settle(place / "state" / "settles", epoch)
        assert entry.base is None
        kept |= {message_id for _, message_id, _ in entry.pending.settled}
        kept -= {message_id for _, message_id in entry.pending.confirmed}
    return kept


def test_what_was_told_late_is_kept_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 4)

    def more(number: int) -> None:
        with open_queue(url_of(tmp_path, "orders")) as orders:
            orders.publish([Message(id=f"order-{number}", body=b'{"number": %d, "pears": 1}' % number)])
        until(lambda: number in invoices_of(tmp_path))

    with monkeypatch.context() as patching:
        other = OtherConsumer(url_of(tmp_path, "orders"), patching)
        handle = started(pricing(tmp_path, follow=True), tmp_path)
        until(lambda: len(other.refused) == 4, what=handle.progress)
    for number in (8, 9):  # the second one's epoch says what the callbacks of the first one's have confirmed
        more(number)
    assert unconfirmed(tmp_path) >= {f"order-{number}" for number in range(4)}
    other.die()
    with open_queue(url_of(tmp_path, "orders")) as orders:
        until(lambda: orders.depth().open == 0)
    for number in (10, 11):
        more(number)
    handle.stop()
    handle.wait(HANG_S)
    assert unconfirmed(tmp_path) <= {"order-10", "order-11"}
    assert invoices_of(tmp_path) == Counter([0, 1, 2, 8, 9, 10, 11])


@pytest.mark.parametrize("point", crash_points.CRASH_POINTS)
def test_a_queue_whose_end_was_known_before_a_crash_is_asked_again_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Crash(BaseException):
        """In the place of the end of the process."""

    publish(tmp_path, 4)
    met = 0

    def reach(name: str) -> None:
        nonlocal met
        met += name == point
        if name == point and met == 2:  # the first epoch has all messages, the second one knows the end
            raise Crash(name)

    with monkeypatch.context() as patching:
        patching.setattr(crash_points, "on_reached", reach)
        try:
            run_spark(pricing(tmp_path), tmp_path, max_restarts=0)
        except (TupletreeError, Crash):
            assert met == 2
    run_spark(pricing(tmp_path), tmp_path, max_restarts=0)
    assert invoices_of(tmp_path) == Counter([0, 1, 2])
    with open_queue(url_of(tmp_path, "orders")) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, 1)


TAKEN: list[Delivery] = []
LOOKS: list[str] = []
"""A driver that leases does so again and again; one whose executors lease asks how many messages there are."""


def refuse_late(place: Path, _: Invoice) -> bytes:
    """The body of a row that cannot be, as is found when its message has come again, and was looked at."""
    with open_queue(url_of(place, "orders")) as orders:
        orders.fail([Failure(handle=TAKEN[0].handle, counts=False)])  # as if its lease had ended
    until(lambda: len(TAKEN) == 2)
    looks = len(LOOKS)
    until(lambda: len(LOOKS) > looks + 5)
    raise ValueError("no such invoice")


@pytest.mark.parametrize("read_on", ["driver", "executors"])
def test_a_message_that_comes_again_while_its_rows_are_written_is_dead_if_the_sink_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_on: str
) -> None:
    """The broker is not to hear that it was acked, which it is in the journal until then.

    It was taken by a process that was killed: what one has in hand itself is not asked for.
    """

    class Crash(BaseException):
        """In the place of the end of the process."""

    def reach(name: str) -> None:
        if name == "epoch.after_log":
            raise Crash(name)

    TAKEN.clear()
    LOOKS.clear()
    lease, depth = Queue.lease, Queue.depth

    def noting(given: Queue, limit: int, **named: Any) -> Sequence[Delivery]:
        found = lease(given, limit, **named)
        TAKEN.extend(found)
        LOOKS.append("lease")
        return found

    def noting_depth(given: Queue) -> Depth:
        LOOKS.append("depth")
        return depth(given)

    monkeypatch.setattr(Queue, "lease", noting)
    monkeypatch.setattr(Queue, "depth", noting_depth)
    publish(tmp_path, 1)
    t = Topology("refusing")
    orders = t.spout("orders", queue(url_of(tmp_path, "orders"), Order, follow=True, read_on=read_on))  # type: ignore[call-overload]
    sink = queue_sink(url_of(tmp_path, "invoices"), body=partial(refuse_late, tmp_path))
    t.sink("invoices", sink).shuffle(t.bolt("price", price).shuffle(orders))
    with monkeypatch.context() as patching:
        patching.setattr(crash_points, "on_reached", reach)
        patching.setattr(Queue, "fail", lambda given, failures: [])  # it gives nothing back
        with pytest.raises((TupletreeError, Crash)):
            started(t, tmp_path).wait(HANG_S)
    assert len(TAKEN) == 1
    handle = started(t, tmp_path)
    with open_queue(url_of(tmp_path, "orders")) as inbound:
        until(lambda: inbound.broker.depth("orders").open == 0, what=handle.progress)
        [(_, reason)] = dead_of(inbound).values()
    assert "no such invoice" in reason
    handle.stop()
    assert handle.wait(HANG_S).dead == 1
