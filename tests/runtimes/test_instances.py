"""Each task has an object of its own; a single one shares what the user's object holds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tupletree import EndOfInput, Sink, Spout, Topology, TopologyError
from tupletree.runtimes import run
from tupletree.runtimes.instances import own_instance
from tupletree.sinks import foreach
from tupletree.topology.components import SinkBatch


class Number(msgspec.Struct, frozen=True):
    value: int


class Silent(Spout[Number]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def next(self) -> None:
        raise EndOfInput


class Storing(Sink[Number]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def write(self, batch: SinkBatch[Number]) -> None:
        """Nothing comes."""


def with_spout(held: Any, parallelism: int) -> Topology:
    t = Topology("t")
    t.sink("sink", foreach(lambda row: None)).shuffle(t.spout("spout", Silent(held), parallelism=parallelism))
    return t


def with_sink(held: Any, parallelism: int) -> Topology:
    t = Topology("t")
    t.sink("sink", Storing(held), parallelism=parallelism).shuffle(t.spout("spout", Silent([])))
    return t


EITHER = pytest.mark.parametrize(("make", "kind"), [(with_spout, "spout"), (with_sink, "sink")], ids=["spout", "sink"])


@EITHER
def test_a_single_task_shares_what_the_users_object_holds_and_several_have_their_own(
    make: Callable[..., Any], kind: str
) -> None:
    held: list[int] = []
    component = make(held, 1).build().components[kind]
    shared, copied = (own_instance(component, shared=one) for one in (True, False))
    assert shared is not component.body
    assert shared.held is held
    assert copied.held is not held


@EITHER
def test_a_single_task_may_hold_what_cannot_be_copied(make: Callable[..., Any], kind: str) -> None:
    run.run(make(queue.SimpleQueue(), 1), runtime="local").wait(30.0)


@EITHER
def test_what_cannot_be_copied_for_several_tasks_is_named_with_the_next_step(
    make: Callable[..., Any], kind: str
) -> None:
    with pytest.raises(TopologyError) as raised:
        run.run(make(threading.Lock(), 2), runtime="local").wait(30.0)
    said = str(raised.value)
    assert f"a {kind} cannot be copied for its tasks" in said
    assert f"{kind} {kind!r}" in said
    assert "in `open`, not in `__init__`" in said
