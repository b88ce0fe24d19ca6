"""Readings: what the hints of one bolt have said so far, of its state among others, and how windows complete it.

Part of `signatures`, which owns the reading itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_origin

from tupletree.errors import Finding
from tupletree.topology import hints
from tupletree.topology.components import KeyedBatch, KeyedState, TaskState
from tupletree.topology.field_types import untravelled
from tupletree.topology.model import BoltStyle, StateSpec
from tupletree.topology.states import ListState, MapState
from tupletree.topology.window_check import holding_faults
from tupletree.topology.windows import JoinSpec, WindowSpec

StateKind: TypeAlias = Literal["value", "map", "list", "task"]


STATE_KINDS: dict[Any, StateKind] = {
    KeyedState: "value",
    KeyedBatch: "value",
    MapState: "map",
    ListState: "list",
    TaskState: "task",
}


@dataclass
class Reading:
    """What has been found so far in one bolt. Fields as in `BoltSpec`, but for these.

    Attributes:
        sides: of a join: parameter → the classes that it takes, and whether it may be None.
        states: the states that it asks for, each with the type of its values.
    """

    where: str
    style: BoltStyle
    value_parameter: str = ""
    holding: WindowSpec | JoinSpec | None = None
    sides: dict[str, tuple[tuple[type, ...], bool]] = field(default_factory=dict)
    inputs: tuple[type, ...] = ()
    outputs: list[Any] = field(default_factory=list)
    inject: dict[str, str] = field(default_factory=dict)
    states: list[tuple[StateKind, Any]] = field(default_factory=list)
    returns: Literal["value", "many", "nothing"] = "nothing"
    findings: list[Finding] = field(default_factory=list)

    def fault(self, what: str, *, got: str = "", expected: str = "", next_step: str = "") -> None:
        """Note a fault."""
        self.findings.append(Finding(what, self.where, got, expected, next_step))


def read_side(reading: Reading, name: str, annotation: Any) -> None:
    """Read a parameter that takes one side of a join."""
    members = hints.members(annotation)
    classes = message_classes(reading, name, annotation, [one for one in members if one is not hints.NONE_TYPE])
    reading.sides[name] = classes, hints.NONE_TYPE in members
    reading.inputs += classes


def message_classes(reading: Reading, name: str, annotation: Any, members: Iterable[Any]) -> tuple[type, ...]:
    """The classes among the members of a parameter's type; any other member is a fault."""
    accepted = [object if member is Any else member for member in members]
    for member in accepted:
        if not isinstance(member, type) or member is hints.NONE_TYPE:
            reading.fault(
                f"parameter {name!r} takes the tuple",
                got=hints.text_of(annotation),
                expected="a message class, or a union of them",
            )
    return tuple(member for member in accepted if isinstance(member, type))


def check_holding(reading: Reading, *, is_async: bool) -> None:
    """Judge the settings of a window or join, now that the hints are read, and complete them."""
    if reading.holding is None:
        return
    if isinstance(reading.holding, JoinSpec):
        if len(reading.sides) == 2:
            (left, left_side), (right, right_side) = reading.sides.items()
            reading.holding = replace(
                reading.holding,
                parameters=(left, right),
                sides=(left_side[0], right_side[0]),
                optional=(left_side[1], right_side[1]),
            )
        elif not reading.findings:
            reading.fault("a join takes two tuples", next_step="`def match(order: Order, payment: Payment) -> Paid`")
    emitted = tuple(dict.fromkeys(reading.outputs))
    for what, got, next_step in holding_faults(reading.holding, reading.inputs, emitted):
        reading.fault(what, got=got, next_step=next_step)
    kind = "window" if isinstance(reading.holding, WindowSpec) else "join"
    if "state" in reading.inject.values() or "collector" in reading.inject.values():
        reading.fault(
            f"a {kind} bolt holds and settles its tuples itself, so it has neither KeyedState nor Collector",
            next_step="return or yield its outputs, and keep state in a bolt behind it",
        )
    if is_async:
        reading.fault(
            f"a {kind} bolt cannot be async", next_step="use a plain function, with blocking=True if it waits"
        )
    if reading.holding.late == "emit":
        reading.outputs += [cls for cls in reading.inputs if cls is not object]


def blame_state(reading: Reading, name: str, asked: Any) -> None:
    """Each style of bolt has its kinds of state, and batches of tuples have none."""
    if reading.style == "batch":
        reading.fault("a batch has no single key, so it has no KeyedState", next_step="use @bolt, which gets one tuple")
    elif reading.style == "arrow":
        reading.fault(f"parameter {name!r}", got=f"{asked.__name__}, which is of one key", expected="KeyedBatch[V]")
    else:
        reading.fault(f"parameter {name!r}", got="KeyedBatch, which is of many keys", expected="KeyedState[V]")


def state_type(asked: Any, arguments: tuple[Any, ...]) -> Any:
    """What is stored per key or task: `MapState[str, int]` is a `dict[str, int]`."""
    if asked is MapState:
        key_type, value_type = arguments or (Any, Any)
        return dict[key_type, value_type]  # type: ignore[valid-type]  # types in hand
    (value_type,) = arguments or (Any,)
    return list[value_type] if asked is ListState else value_type  # type: ignore[valid-type]  # a type in hand


def state_spec(
    reading: Reading, default: Callable[[], Any] | None, ttl_s: float | None, example: str
) -> StateSpec | None:
    """The declared state, checked against the place that takes it.

    Args:
        reading: with every parameter or attribute that takes state.
        default: what the declaration says makes the first value.
        ttl_s: its time to live.
        example: how to declare a first value.
    """
    fault, states = reading.fault, reading.states
    if len(states) > 1:
        fault("a bolt has one KeyedState", got=str(len(states)), next_step="keep a class in it")
    if not states:
        if default is not None or ttl_s is not None:
            fault("state is declared, but nothing takes it", next_step="add a parameter `total: KeyedState[int]`")
        return None
    kind, value_type = states[0]
    name = next(cls.__name__ for cls, known in STATE_KINDS.items() if known == kind)
    if reason := untravelled(value_type):
        fault("the state's type cannot be stored", got=reason, expected="what a message's field may be")
    if ttl_s is not None and kind == "task":
        fault("a task's state does not expire", got=f"a time to live of {ttl_s} s", expected="keyed state")
    elif ttl_s is not None and not 0 < ttl_s < math.inf:
        fault("the time to live is not right", got=str(ttl_s), expected="seconds, above 0")
    if kind in {"map", "list"}:
        if default is not None:
            fault(f"{name} starts empty", got=hints.text_of(default), next_step="leave the first value out")
        return StateSpec(value_type, dict if kind == "map" else list, kind, ttl_s)
    if default is None:
        fault(f"{name} needs a first value", next_step=f"say how to make one: `{example}`")
        return None
    declared = get_origin(value_type) or value_type
    if isinstance(default, type) and isinstance(declared, type) and not _fits(default, declared):
        fault(
            f"the state's first value has another type than {name} says",
            got=hints.text_of(default),
            expected=hints.text_of(value_type),
        )
    return StateSpec(value_type, default, kind, ttl_s)


def _fits(default: type, declared: type) -> bool:
    return declared is Any or issubclass(default, declared) or (declared is float and default is int)
