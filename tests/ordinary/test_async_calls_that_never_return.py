"""An async call that never returns: its message dies, the others do not wait for it, and its place is free again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run
from tests.ordinary.conftest import InProcess
from tests.ordinary.test_slow_work import Done, Job
from tupletree import KeyedState, Topology, bolt, testing
from tupletree.sinks import foreach
from tupletree.sources import items

JOBS = [Job(number) for number in range(40)]
HANG = [job.number for job in JOBS if job.number % 4 == 3]


async def come(job: Job) -> Done:
    if job.number in HANG:
        await asyncio.Event().wait()
    return Done(job.number)


@bolt
async def alone(job: Job) -> Done:
    return await come(job)


@bolt(concurrency=3)
async def beside(job: Job) -> Done:
    return await come(job)


@bolt(concurrency=3, state=int)
async def keyed(job: Job, calls: KeyedState[int]) -> Done:
    calls.value += 1
    return await come(job)


@bolt(concurrency=3)
async def stubborn(job: Job) -> Done:
    try:
        return await come(job)
    except asyncio.CancelledError:  # as code does that catches too much
        await asyncio.sleep(20.0)
        return Done(-1)


def take(batch: object) -> None:
    pass


def topology_of(work: Any) -> Topology:
    t = Topology("hangs")
    source = t.spout("jobs", items(JOBS))
    declared = t.bolt("work", work)
    t.sink("out", foreach(take)).shuffle(
        declared.fields(source, "number") if work is keyed else declared.shuffle(source)
    )
    return t


@pytest.mark.parametrize("work", [alone, beside, keyed, stubborn])
@pytest.mark.parametrize("limit", ["message_timeout_s", "processing_timeout_s"])
def test_the_messages_behind_it_are_acked(work: Any, limit: str) -> None:
    options: dict[str, Any] = {"message_timeout_s": None, limit: 2.0, "max_attempts": 6, "backoff_jitter": 0.0}
    if limit == "message_timeout_s":
        options |= {"processing_timeout_s": None, "max_spout_pending": 4}
    result = testing.run(topology_of(work), options=options, at_most_s=1000.0)
    dead = [number for number, message in enumerate(result.messages["jobs"]) if message.dead]
    acked = [number for number, message in enumerate(result.messages["jobs"]) if message.acked]
    assert dead == HANG
    assert len(acked) == len(JOBS) - len(HANG)
    assert {letter.failure.kind.value for letter in result.dead} == {"timeout"}


def test_its_dead_letter_says_what_to_change() -> None:
    result = testing.run(topology_of(beside), options={"message_timeout_s": None, "max_attempts": 1})
    letter = result.dead[0]
    assert letter.failure.error_type == "tupletree.errors.ProcessingTimeoutError"
    assert "longer than processing_timeout_s (60 s) and was cancelled" in letter.failure.error


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_both_runtimes_end(tmp_path: Path, in_process: InProcess, runtime: str) -> None:
    options: dict[str, Any] = {"processing_timeout_s": 0.1, "max_attempts": 1}
    if runtime == "local":
        summary = run(topology_of(beside), tmp_path / "state", **options)
    else:
        summary = in_process(topology_of(beside), tmp_path / "state", **options)
    assert (summary.acked, summary.dead, summary.open) == (len(JOBS) - len(HANG), len(HANG), 0)
