"""A record that kills the worker that reads it, or is never read to its end, dies alone, as one that a bolt dies of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.crashes import crashing
from tests.spark.conftest import RunTopology
from tests.spark.killing import DEEDS
from tupletree import KeyedState, Topology, bolt
from tupletree.data.payloads import to_jsonable
from tupletree.errors import EndOfInput, UnusableDataError
from tupletree.queues import Message, open_queue
from tupletree.runtimes import deadletters
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import queue
from tupletree.topology.splits import Split, SplitSpout
from tupletree.tracking.outcomes import FailureKind

LIMIT_S = 1.0
MESSAGES = 60
STUMBLES = 7


class Order(msgspec.Struct, frozen=True):
    number: int
    deed: str = ""


READS: Counter[int] = Counter()
"""Order → how often this process read it."""


def read(message: Message) -> Order:
    order = msgspec.json.decode(message.body, type=Order)
    READS[order.number] += 1
    if order.deed:
        DEEDS[order.deed]()
    return order


@bolt(state=int)
def stumble(order: Order, times: KeyedState[int]) -> Order:
    """A failure leaves a trace in state, so that its epoch is run again."""
    times.value += 1
    if order.number == STUMBLES:
        raise ValueError("a trace is left")
    return order


def publish(folder: Path, deeds: dict[int, str]) -> str:
    url = f"sqlite:///{folder}/shop.db?queue=orders"
    READS.clear()
    with open_queue(url) as orders:
        bodies = [msgspec.json.encode(Order(number, deeds.get(number, ""))) for number in range(MESSAGES)]
        orders.publish([Message(id=f"order-{at}", body=body) for at, body in enumerate(bodies)])
    return url


def reading(folder: Path, url: str, **settings: Any) -> Topology:
    t = Topology("reading")
    orders = t.spout("orders", queue(url, Order, body=read, follow=False, read_on="executors", **settings))
    t.sink("out", jsonl(folder / "out")).shuffle(t.bolt("work", stumble).fields(orders, "number"))
    return t


def check(folder: Path, url: str, deeds: dict[int, str], kind: FailureKind, words: str) -> None:
    numbers = Counter(row["number"] for row in read_rows(folder / "out"))
    assert numbers == Counter(number for number in range(MESSAGES) if number not in {*deeds, STUMBLES})
    letters = {letter.message_id: letter for letter in deadletters.read(folder / "state")}
    assert letters.keys() == {f"order-{number}" for number in (*deeds, STUMBLES)}
    for number, deed in deeds.items():
        letter = letters[f"order-{number}"]
        assert (letter.failure.kind, letter.failure.component, letter.attempts) == (kind, "orders", 1)
        assert words in letter.failure.error
        assert f'"deed":"{deed}"' in letter.failure.failing_tuple
        assert letter.payload == to_jsonable(msgspec.json.encode(Order(number, deed)))
    with open_queue(url) as orders:
        assert (orders.depth().open, orders.depth().dead) == (0, len(deeds) + 1)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("exit", FailureKind.POISON, "2 worker processes ended while they read this message: it ended without"),
        pytest.param("fault", FailureKind.POISON, "Segmentation fault", marks=pytest.mark.nightly),
        pytest.param("killed", FailureKind.POISON, "killed from outside", marks=pytest.mark.nightly),
        pytest.param("loop", FailureKind.TIMEOUT, "longer than processing_timeout_s", marks=pytest.mark.nightly),
        pytest.param("c-loop", FailureKind.POISON, "could not interrupt it", marks=pytest.mark.nightly),
    ],
)
def test_records_that_kill_the_worker_that_reads_them_die_alone(
    deed: str, kind: FailureKind, words: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    deeds = {25: deed, 26: deed}
    url = publish(tmp_path, deeds)
    summary = run_topology(
        reading(tmp_path, url), tmp_path / "state", max_attempts=2, max_restarts=0, processing_timeout_s=LIMIT_S
    )
    assert (summary.acked, summary.dead, summary.open) == (MESSAGES - 3, 3, 0)
    check(tmp_path, url, deeds, kind, words)


def test_what_a_run_of_an_epoch_leaves_out_is_not_read_again(tmp_path: Path, run_topology: RunTopology) -> None:
    """Or a record that killed one worker in its first run would kill others in the next."""
    url = publish(tmp_path, {})
    run_topology(reading(tmp_path, url), tmp_path / "state", max_attempts=1)
    assert READS.pop(STUMBLES) == 2  # in the first run, and in the driver for its letter
    assert {*READS.values()} == {2}
    check(tmp_path, url, {}, FailureKind.ERROR, "")


def test_a_start_does_not_read_what_the_epoch_in_the_log_has(tmp_path: Path, run_topology: RunTopology) -> None:
    """Or the driver would die of it, at each start."""
    url = publish(tmp_path, {})
    with crashing("epoch.after_log"):
        run_topology(reading(tmp_path, url, lease_s=1.0), tmp_path / "state", max_restarts=0)
    assert not READS
    run_topology(reading(tmp_path, url, lease_s=1.0), tmp_path / "state", max_attempts=1)
    assert {*READS.values()} == {2}
    check(tmp_path, url, {}, FailureKind.ERROR, "")


class Lines(SplitSpout[Order]):
    """Reads three pieces; the worker that reads the second one dies."""

    message_type = Order
    taken = 0

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split]:
        self.taken += 1
        if self.taken > 3:
            raise EndOfInput
        return [Split(10, first=10 * (self.taken - 1), source="lines")]

    def read(self, split: Split) -> Iterator[Order]:
        for number in range(split.first, split.first + split.rows):
            if number == 15:
                os._exit(3)
            yield Order(number)

    def snapshot(self) -> int:
        return self.taken

    def restore(self, position: int) -> None:
        self.taken = position


@pytest.mark.spark
def test_a_piece_of_a_source_that_kills_the_workers_that_read_it_ends_the_run_with_its_place(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    """No row of it can be left out: only the source knows where the next one begins."""
    t = Topology("pieces")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", Lines()))
    with pytest.raises(UnusableDataError, match="a piece of a source cannot be read") as raised:
        run_topology(t, tmp_path / "state", max_restarts=0)
    assert "spout 'lines', lines, rows 10 to 19" in str(raised.value)
    assert "2 worker processes ended while they were in its `read of lines, rows 10 to 19`" in str(raised.value)
