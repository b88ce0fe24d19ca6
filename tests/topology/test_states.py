"""Kinds of state: the views alone, as a test of a bolt uses them, and what a bolt's hints say about its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree import Bolt, Collector, KeyedState, ListState, MapState, TaskState, Topology, TopologyError, bolt
from tupletree.sources.items import items
from tupletree.topology.changes.fingerprint import fingerprint
from tupletree.topology.decorators import FunctionBolt
from tupletree.topology.signatures import read_class


class Page(msgspec.Struct, frozen=True):
    user: str
    path: str


@bolt
def visits(page: Page, counts: MapState[str, int]) -> None:
    counts[page.path] = counts.get(page.path, 0) + 1


@bolt
def trail(page: Page, last: ListState[str]) -> None:
    last.append(page.path)
    del last[:-2]


@bolt(state=int)
def seen(page: Page, total: TaskState[int]) -> None:
    total.value += 1


def test_a_bolt_with_a_map_or_a_list_can_be_called_in_a_test() -> None:
    counts: MapState[str, int] = MapState({"/": 1})
    last: ListState[str] = ListState(["/a"])
    for path in ("/", "/b"):
        visits(Page("ann", path), counts)
        trail(Page("ann", path), last)

    assert dict(counts) == {"/": 2, "/b": 1}
    assert last == ["/", "/b"]
    assert (repr(counts), repr(last)) == ("MapState({'/': 2, '/b': 1})", "ListState(['/', '/b'])")


operations = st.lists(st.tuples(st.sampled_from(["set", "del", "pop", "clear", "update"]), st.integers(0, 4)))


@given(operations)
def test_a_map_does_what_a_dict_does(steps: list[tuple[str, int]]) -> None:
    view, model = MapState[int, int](), dict[int, int]()
    for what, key in steps:
        for one in (view, model):
            mapping: Any = one
            if what == "set":
                mapping[key] = mapping.get(key, 0) + 1
            elif what == "del" and key in mapping:
                del mapping[key]
            elif what == "pop":
                mapping.pop(key, None)
            elif what == "clear":
                mapping.clear()
            else:
                mapping.update({key: 7, key + 1: 8})
        assert dict(view) == model
        assert list(view) == list(model)
        assert (len(view), bool(view), key in view) == (len(model), bool(model), key in model)


@given(operations)
def test_a_list_does_what_a_list_does(steps: list[tuple[str, int]]) -> None:
    view, model = ListState[int](), list[int]()
    for what, number in steps:
        for one in (view, model):
            values: Any = one
            if what == "set":
                values.append(number)
            elif what == "del" and number < len(values):
                del values[number]
            elif what == "pop" and values:
                values.pop()
            elif what == "clear":
                values.clear()
            else:
                values.extend([number, number])
                values[-1:] = [number + 1]
        assert view == model
        assert list(view) == model
        assert view[:2] == model[:2]


@pytest.mark.parametrize(
    ("what", "kind", "value_type", "text"),
    [
        (visits, "map", dict[str, int], "map dict[str, int]"),
        (trail, "list", list[str], "list list[str]"),
        (seen, "task", int, "task int"),
    ],
)
def test_the_annotation_says_the_kind(what: FunctionBolt[Any, Any], kind: str, value_type: Any, text: str) -> None:
    state = what.spec.state
    assert state is not None
    assert (state.kind, state.value_type, state.ttl_s) == (kind, value_type, None)

    topology = Topology("kinds")
    source = topology.spout("pages", items([Page("ann", "/")]))
    topology.bolt("bolt", what).fields(source, "user")
    assert fingerprint(topology.build())["bolt"]["state"] == text


def test_state_of_a_task_needs_no_key_and_keyed_state_does() -> None:
    topology = Topology("kinds")
    source = topology.spout("pages", items([Page("ann", "/")]))
    topology.bolt("seen", seen).shuffle(source)
    topology.build()
    topology.bolt("visits", visits).shuffle(source)
    with pytest.raises(TopologyError, match=r"keyed state, but pages\.Page is not grouped by its key"):
        topology.build()


class Trails(Bolt[Page]):
    state_ttl_s = 60.0
    last: ListState[str]

    def process(self, value: Page, collector: Collector[Page]) -> None:
        self.last.append(value.path)


def test_a_class_bolt_says_its_state_by_an_attribute() -> None:
    described = read_class(Trails)

    assert not described.findings
    assert described.spec.state is not None
    assert (described.spec.state.kind, described.spec.state.ttl_s) == ("list", 60.0)
    assert described.spec.inject == {"last": "state"}


def typed(annotation: Any, **settings: Any) -> FunctionBolt[Any, Any]:
    def use(page: Page, state: Any) -> None: ...

    use.__annotations__["state"] = annotation
    return bolt(**settings)(use)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: typed(MapState[str, int], state=dict), "MapState starts empty"),
        (lambda: typed(ListState[int], state=list), "ListState starts empty"),
        (lambda: typed(TaskState[int]), "TaskState needs a first value"),
        (lambda: typed(TaskState[int], state=str), "the state's first value has another type than TaskState says"),
        (lambda: typed(TaskState[int], state=int, ttl_s=5), "a task's state does not expire"),
        (lambda: typed(KeyedState[int], state=int, ttl_s=0), "the time to live is not right"),
        (lambda: typed(MapState[str, int], ttl_s=float("nan")), "the time to live is not right"),
        (lambda: typed(MapState[str, object]), "the state's type cannot be stored"),
    ],
)
def test_what_is_wrong_with_a_declaration_is_said(make: Callable[[], FunctionBolt[Any, Any]], fault: str) -> None:
    assert fault in [finding.what for finding in make().describe().findings]


def test_a_time_to_live_without_state_is_a_fault() -> None:
    @bolt(ttl_s=5)
    def stateless(page: Page) -> None: ...

    assert [finding.what for finding in stateless.describe().findings] == ["state is declared, but nothing takes it"]
