"""The call timeout: a call that takes too long is interrupted where it is, and nothing else is."""

from __future__ import annotations

import faulthandler
import signal
import sys
import time

import msgspec
import pytest

from tupletree import Collector, Topology, bolt
from tupletree.bolts.effects import TaskPlace, Worked
from tupletree.bolts.plain import BoltTask
from tupletree.data.frames import Frame
from tupletree.runtimes.spark.worker.call_timeout import CallTimeout
from tupletree.runtimes.spark.worker.pacing import Pacing
from tupletree.sources import items
from tupletree.tracking.outcomes import FailureKind

LIMIT_S = 0.1


class Item(msgspec.Struct, frozen=True):
    seconds: float


def busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@bolt
def plain(item: Item) -> None:
    busy(item.seconds)


@bolt
def stubborn(item: Item) -> None:
    until = time.monotonic() + item.seconds
    while time.monotonic() < until:
        try:
            busy(item.seconds)
        except Exception:  # noqa: BLE001 - that is what is stubborn
            continue


@bolt
def emitting(item: Item, out: Collector[Item]) -> None:
    until = time.monotonic() + item.seconds
    while time.monotonic() < until:
        out.emit(item)


def work(target: object, *seconds: float, per_s: float | None = None) -> Worked:
    t = Topology("alarmed")
    words = t.bolt("bolt", target).shuffle(t.spout("items", items([Item(0.0)])))  # type: ignore[arg-type]  # any bolt
    if target is emitting:
        words.stream(Item, unconsumed=True)
    component = t.build().components["bolt"]
    place = TaskPlace("alarmed", "bolt", 1, 0, 1)
    place.before_call = Pacing(per_s).wait if per_s is not None else None
    task = BoltTask(component, place)
    roots = list(range(1, len(seconds) + 1))
    frame = Frame(1, "items", "item", [Item(one) for one in seconds], [*roots], roots, 99)
    with CallTimeout(LIMIT_S, sys.__stderr__.fileno() if sys.__stderr__ else 2):
        return task.work(frame)


@pytest.mark.parametrize("target", [plain, stubborn, emitting])
def test_a_call_that_takes_too_long_fails_its_tuple_and_the_others_go_on(target: object) -> None:
    worked = work(target, 0.0, 60.0, 0.0)
    (failure,) = worked.failures.values()
    assert worked.failures.keys() == {2}
    assert failure.kind is FailureKind.TIMEOUT
    assert failure.component == "bolt"
    assert failure.error == f"the call took longer than processing_timeout_s ({LIMIT_S:g} s) and was interrupted"
    assert "test_call_timeout.py" in failure.traceback
    assert failure.failing_tuple == "Item(seconds=60.0)"


def test_many_calls_that_take_long_together_are_not_interrupted() -> None:
    assert work(plain, *[LIMIT_S / 5] * 20).failures == {}


def test_nothing_is_left_of_a_call_timeout() -> None:
    before = signal.getsignal(signal.SIGALRM)
    work(plain, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    faulthandler.cancel_dump_traceback_later()


def test_without_a_limit_there_is_no_signal() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with CallTimeout(None, 2):
        assert signal.getsignal(signal.SIGALRM) is before


def test_the_wait_for_a_rate_is_no_part_of_a_call() -> None:
    assert work(plain, 0.0, 0.0, per_s=1 / (3 * LIMIT_S)).failures == {}
