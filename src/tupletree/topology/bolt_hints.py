"""Readings: what the hints of one bolt have said so far, and how windows and joins complete it.

Part of `signatures`, which owns the reading itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tupletree.errors import Finding
from tupletree.topology import hints
from tupletree.topology.model import BoltStyle
from tupletree.topology.state_hints import StateKind
from tupletree.topology.window_check import holding_faults
from tupletree.topology.windows import JoinSpec, WindowSpec

__all__ = ["Reading", "check_holding", "message_classes", "read_side"]


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
