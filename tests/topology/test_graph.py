"""The shape of the graph: cycles are named, and the work grows with the edges."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from tupletree import Emit, Sink, Spout, Topology, TopologyError, bolt
from tupletree.errors import Finding
from tupletree.topology.builder import BoltHandle, SpoutHandle
from tupletree.topology.check import find_cycles
from tupletree.topology.components import SinkBatch


class Word(msgspec.Struct, frozen=True):
    word: str = ""


class Words(Spout[Word]):
    def next(self) -> Emit[Word] | None:
        return None


class CarryOver(Sink[Any]):
    def write(self, batch: SinkBatch[Any]) -> None: ...


@bolt
def shout(word: Word) -> Word:
    return word


def only(topology: Topology) -> Finding:
    with pytest.raises(TopologyError) as caught:
        topology.build()
    (finding,) = caught.value.findings
    return finding


class TestCycles:
    def circle(self, **settings: Any) -> Topology:
        topology = Topology("t", **settings)
        words = topology.spout("words", Words())
        a = topology.bolt("a", shout)
        b = topology.bolt("b", shout).shuffle(a).shuffle(words)
        a.shuffle(b)
        return topology

    def test_a_cycle_is_named_by_its_path(self) -> None:
        finding = only(self.circle())
        assert finding.what == "the topology has a cycle"
        assert finding.got in {"a → b → a", "b → a → b"}
        assert "allow_cycle=True" in finding.next_step

    def test_a_cycle_can_be_meant(self) -> None:
        assert "a" in self.circle(allow_cycle=True).build().components

    def test_a_component_that_feeds_itself_is_a_cycle(self) -> None:
        topology = Topology("t")
        words = topology.spout("words", Words())
        again = topology.bolt("again", shout).shuffle(words)
        again.shuffle(again)
        assert only(topology).got == "again → again"

    def test_cycles_that_share_nothing_are_all_named(self) -> None:
        graph = {"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c", "d"], "e": ["e"], "f": []}
        cycles = [set(cycle) for cycle in find_cycles(graph, graph.__getitem__)]
        assert {"a", "b"} in cycles
        assert {"e"} in cycles
        assert any(cycle <= {"c", "d"} for cycle in cycles)
        assert sum(map(len, cycles)) == len(set().union(*cycles))

    def test_each_component_is_visited_once_however_many_paths_lead_there(self) -> None:
        layers = 60
        graph = {f"{side}{layer}": [f"l{layer + 1}", f"r{layer + 1}"] for layer in range(layers) for side in "lr"}
        graph |= {f"l{layers}": [], f"r{layers}": []}
        asked: list[str] = []

        def successors(name: str) -> list[str]:
            asked.append(name)
            return graph[name]

        assert list(find_cycles(graph, successors)) == []
        assert sorted(asked) == sorted(graph)

    def test_a_long_chain_does_not_exhaust_the_stack(self) -> None:
        length = 20_000
        graph = {str(number): [str(number + 1)] for number in range(length)} | {str(length): ["0"]}
        (cycle,) = find_cycles(graph, graph.__getitem__)
        assert len(cycle) == length + 1


def diamonds(layers: int) -> Topology:
    topology = Topology("diamonds")
    sources: list[SpoutHandle | BoltHandle] = [topology.spout("s", Words())]
    for layer in range(layers):
        pair: list[SpoutHandle | BoltHandle] = []
        for side in "lr":
            handle = topology.bolt(f"{side}{layer}", shout)
            for source in sources:
                handle.shuffle(source)
            pair.append(handle)
        sources = pair
    end = topology.sink("end", CarryOver())
    for source in sources:
        end.shuffle(source)
    return topology


def calls_to_build(topology: Topology) -> int:
    calls = 0

    def count_calls(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_calls)
    try:
        topology.build()
    finally:
        sys.setprofile(None)
    return calls


def test_the_work_of_a_build_grows_with_the_edges_not_with_the_paths() -> None:
    small, large = calls_to_build(diamonds(15)), calls_to_build(diamonds(60))
    assert large < 5 * small
