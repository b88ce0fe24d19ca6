"""How many threads a component asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tupletree import Sink, Topology
from tupletree.errors import TopologyError
from tupletree.sources import items
from tupletree.topology.components import SinkBatch


class Line(msgspec.Struct, frozen=True, gc=False):
    text: str


class Anything(Sink[Any]):
    def write(self, batch: SinkBatch[Any]) -> None:
        """Take it."""


def with_sink(**asked: Any) -> Topology:
    topology = Topology("t")
    topology.sink("out", Anything(), **asked).shuffle(topology.spout("lines", items([Line("a")])))
    return topology


@pytest.mark.parametrize(("executors", "tasks"), [(0, 2), (3, 2), (2, None), (1.0, 2), (True, 2)])
def test_executors_are_at_least_one_and_at_most_one_per_task(executors: Any, tasks: int | None) -> None:
    with pytest.raises(TopologyError) as caught:
        with_sink(parallelism=tasks, executors=executors).build()
    (finding,) = caught.value.findings
    assert (finding.what, finding.got) == ("the number of executors is not right", repr(executors))
    assert finding.where.startswith("sink 'out' (")
    assert finding.expected == f"a whole number from 1 to the parallelism ({'2 tasks' if tasks else 'one task'})"


def test_a_wrong_parallelism_is_not_blamed_on_the_executors_as_well() -> None:
    with pytest.raises(TopologyError) as caught:
        with_sink(parallelism=0, executors=2).build()
    assert [finding.what for finding in caught.value.findings] == ["the parallelism is not right"]


def test_as_many_executors_as_tasks_are_right() -> None:
    assert with_sink(parallelism=2, executors=2).build().components["out"].executors == 2
