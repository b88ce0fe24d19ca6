"""`ordered=True` for async bolts: results leave in the order of the tuples, and calls go on side by side."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.ordinary.conftest import InProcess
from tupletree import KeyedState, Topology, bolt, testing
from tupletree.errors import TopologyError
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import items
from tupletree.testing.simulator.faults import Faults


class Number(msgspec.Struct, frozen=True):
    key: str
    number: int


NUMBERS = [Number("ab"[number % 2], number) for number in range(40)]


def pause_s(number: int) -> float:
    """Different for neighbours, the same in every run: 0.1 to 0.4."""
    return 0.1 + (number * 7919 % 31) / 100


@bolt(concurrency=10, ordered=True)
async def in_order(number: Number) -> Number:
    await asyncio.sleep(pause_s(number.number))
    return Number(number.key, number.number)


@bolt(concurrency=10)
async def as_they_end(number: Number) -> Number:
    await asyncio.sleep(pause_s(number.number))
    return Number(number.key, number.number)


@bolt(concurrency=10, ordered=True, state=int)
async def counted(number: Number, count: KeyedState[int]) -> Number:
    await asyncio.sleep(pause_s(number.number) if number.key == "a" else 0.01)
    count.value += 1
    return Number(number.key, number.number)


def topology(worker: Any, out: Path = Path("never")) -> Topology:
    t = Topology("in-order", options={"max_spout_pending": 100})
    worked = t.bolt("worker", worker).fields(t.spout("numbers", items(NUMBERS)), "key")
    t.sink("out", jsonl(out), parallelism=1).global_(worked)
    return t


def numbers_of(run: testing.TestRun) -> list[int]:
    return [row.number for row in run.outputs["out"]]


def test_results_leave_in_the_order_of_the_tuples_and_calls_go_on_side_by_side() -> None:
    run = testing.run(topology(in_order), {"numbers": NUMBERS})
    assert numbers_of(run) == [*range(40)]
    assert run.seconds < sum(pause_s(number) for number in range(40)) / 5
    assert numbers_of(testing.run(topology(as_they_end), {"numbers": NUMBERS})) != [*range(40)]


def test_keys_with_one_call_at_a_time_leave_in_order_too() -> None:
    assert numbers_of(testing.run(topology(counted), {"numbers": NUMBERS})) == [*range(40)]


def test_a_call_that_fails_holds_nothing_up_and_what_is_tried_again_comes_later() -> None:
    failed: list[int] = []

    @bolt(concurrency=10, ordered=True)
    async def fails_once(number: Number) -> Number:
        await asyncio.sleep(pause_s(number.number))
        if number.number == 3 and not failed:
            failed.append(3)
            raise ValueError("once")
        return Number(number.key, number.number)

    run = testing.run(topology(fails_once), {"numbers": NUMBERS})
    assert [number for number in numbers_of(run) if number != 3] == [*range(3), *range(4, 40)]
    assert all(message.acked for message in run.messages["numbers"])


@pytest.mark.parametrize("seed", range(10))
def test_it_ends_under_faults(seed: int) -> None:
    """Calls that are cancelled, messages that are over before their turn, outages, deaths."""
    worker = random.Random(seed).choice([in_order, counted])
    testing.simulate(lambda: topology(worker), {"numbers": NUMBERS}, seed=seed, faults=replace(Faults(), outage=0.02))


def test_on_spark_results_are_in_order_as_well(tmp_path: Path, in_process: InProcess) -> None:
    in_process(topology(in_order, tmp_path / "out"), tmp_path / "state")
    assert [row["number"] for row in read_rows(tmp_path / "out")] == [*range(40)]


def test_a_plain_function_needs_no_order() -> None:
    @bolt(ordered=True)
    def plain(number: Number) -> Number:
        return number

    t = Topology("plain")
    t.sink("out", jsonl("never")).shuffle(t.bolt("plain", plain).shuffle(t.spout("numbers", items(NUMBERS))))
    with pytest.raises(TopologyError, match="ordered is for async bolts"):
        t.build()


@bolt(concurrency=10, ordered=True)
async def stubborn(number: Number) -> Number:
    if number.number == 3:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as code does that catches too much
            await asyncio.sleep(1000.0)
    await asyncio.sleep(0.01)
    return Number(number.key, number.number)


def test_what_waited_for_a_call_that_is_given_up_counts() -> None:
    run = testing.run(
        topology(stubborn),
        {"numbers": NUMBERS},
        options={"processing_timeout_s": 2.0, "message_timeout_s": None, "max_attempts": 1},
        at_most_s=3000.0,
    )
    assert [letter.failure.error_type for letter in run.dead] == ["tupletree.errors.ProcessingTimeoutError"]
    assert numbers_of(run) == [number for number in range(40) if number != 3]
