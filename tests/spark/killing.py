"""Bolts that crash their workers, each in its own way, for one message out of many."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.helpers_semantics import Feed
from tupletree import Emit, KeyedState, TaskContext, Topology, bolt
from tupletree.sinks import jsonl


class Task(msgspec.Struct, frozen=True):
    number: int
    deed: str


class Done(msgspec.Struct, frozen=True):
    number: int
    times: int


def exit_at_once() -> None:
    os._exit(3)


def fault() -> None:
    ctypes.string_at(0)


def eat_memory() -> None:
    """Grow beyond what the process may have, so that the kernel kills the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_size() + 64 * 2**20, hard))
    try:
        eaten: list[Any] = []
        while True:
            eaten = [eaten, bytearray(2**20)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def be_killed_for_memory() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loop_for_ever() -> None:
    while True:
        time.sleep(0.01)  # that is what it does wrong


def loop_in_c() -> None:
    """Hold the interpreter in C, where no signal handler of Python's runs."""
    sum(itertools.repeat(0))


def _size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


DEEDS: dict[str, Callable[[], None]] = {
    "exit": exit_at_once,
    "fault": fault,
    "memory": eat_memory,
    "killed": be_killed_for_memory,
    "loop": loop_for_ever,
    "c-loop": loop_in_c,
}


@bolt
def work(task: Task) -> Task:
    if task.deed:
        DEEDS[task.deed]()
    return task


@bolt(state=int)
def count(task: Task, times: KeyedState[int]) -> Done:
    times.value += 1
    return Done(task.number, times.value)


def killing(name: str, folder: Path, deeds: dict[int, str], messages: int) -> Topology:
    """`messages` tasks, of which those in `deeds` kill; every other one comes out once."""
    t = Topology(name)
    tasks = [Emit(Task(number, deeds.get(number, "")), number) for number in range(messages)]
    source = t.spout("source", Feed(name, Task, tasks))
    worked = t.bolt("work", work, parallelism=2).shuffle(source)
    counted = t.bolt("count", count, parallelism=2).fields(worked, "number")
    t.sink("out", jsonl(folder / "out")).shuffle(counted)
    return t


class Keyed(msgspec.Struct, frozen=True):
    number: int
    key: int


@bolt
def work_by_key(task: Task) -> Keyed:
    if task.deed:
        DEEDS[task.deed]()
    return Keyed(task.number, task.number % 3)


@bolt(state=int)
def place(keyed: Keyed, met: KeyedState[int], context: TaskContext) -> Done:
    if keyed.number % 20 == 11 and context.attempt == 1:
        raise ValueError("once")
    met.value += 1
    return Done(keyed.number, met.value)


def killing_in_order(name: str, folder: Path, deeds: dict[int, str], messages: int) -> Topology:
    """The same, with three keys; each row says which place its message had among those of its key."""
    t = Topology(name)
    tasks = [Emit(Task(number, deeds.get(number, "")), number) for number in range(messages)]
    worked = t.bolt("work", work_by_key, parallelism=2).shuffle(t.spout("source", Feed(name, Task, tasks)))
    placed = t.bolt("place", place, parallelism=2).fields(worked, "key", ordered=True)
    t.sink("out", jsonl(folder / "out")).shuffle(placed)
    return t
