"""What a bolt's hints say of its state: the kind and the type, and everything that is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, get_origin

from tupletree.topology import hints
from tupletree.topology.components import KeyedBatch, KeyedState, TaskState
from tupletree.topology.field_types import untravelled
from tupletree.topology.model import StateSpec
from tupletree.topology.states import ListState, MapState

__all__ = ["STATE_KINDS", "StateKind", "blame_state", "state_spec", "state_type"]

StateKind: TypeAlias = Literal["value", "map", "list", "task"]


class Fault(Protocol):
    """Takes what is wrong, in the words of a finding."""

    def __call__(self, what: str, *, got: str = "", expected: str = "", next_step: str = "") -> None: ...


STATE_KINDS: dict[Any, StateKind] = {
    KeyedState: "value",
    KeyedBatch: "value",
    MapState: "map",
    ListState: "list",
    TaskState: "task",
}


def blame_state(fault: Fault, style: str, name: str, asked: Any) -> None:
    """Each style of bolt has its kinds of state, and batches of tuples have none."""
    if style == "batch":
        fault("a batch has no single key, so it has no KeyedState", next_step="use @bolt, which gets one tuple")
    elif style == "arrow":
        fault(f"parameter {name!r}", got=f"{asked.__name__}, which is of one key", expected="KeyedBatch[V]")
    else:
        fault(f"parameter {name!r}", got="KeyedBatch, which is of many keys", expected="KeyedState[V]")


def state_type(asked: Any, arguments: tuple[Any, ...]) -> Any:
    """What is stored per key or task: `MapState[str, int]` is a `dict[str, int]`."""
    if asked is MapState:
        key_type, value_type = arguments or (Any, Any)
        return dict[key_type, value_type]  # type: ignore[valid-type]  # types in hand
    (value_type,) = arguments or (Any,)
    return list[value_type] if asked is ListState else value_type  # type: ignore[valid-type]  # a type in hand


def state_spec(
    fault: Fault,
    states: Sequence[tuple[StateKind, Any]],
    default: Callable[[], Any] | None,
    ttl_s: float | None,
    example: str,
) -> StateSpec | None:
    """The declared state, checked against the place that takes it.

    Args:
        fault: takes what is wrong.
        states: kind and type of every parameter or attribute that takes state.
        default: what the declaration says makes the first value.
        ttl_s: its time to live.
        example: how to declare a first value.
    """
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
