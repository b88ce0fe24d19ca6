"""What this runtime does not support yet: refused before the start, with every finding at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tupletree.data.payloads import registry_of
from tupletree.errors import ConfigError, Finding, TopologyError
from tupletree.texts import encodable, is_encodable
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec
from tupletree.topology.ordering import ordered_inputs

__all__ = ["refuse_unnameable", "refuse_unsupported"]


def refuse_unsupported(spec: TopologySpec) -> None:
    """Raise TopologyError with every finding if the Spark runtime cannot run this topology yet."""
    findings = [finding for component in spec.components.values() for finding in _component(component)]
    if findings:
        raise TopologyError("the Spark runtime does not support everything in this topology yet", findings=findings)


def _component(component: ComponentSpec) -> Iterator[Finding]:
    def finding(what: str, next_step: str, got: str = "") -> Finding:
        return Finding(
            what, where=f"{component.kind} {component.name!r} ({component.where})", got=got, next_step=next_step
        )

    for cls, place in _out_of_reach(component).items():
        yield finding(
            f"the structure {cls.__qualname__} is defined in {place}, where Spark's workers cannot import it",
            "put it in a module and import it, use a dataclass or NamedTuple, or start it with `tupletree run FILE`",
        )
    for source, stream in sorted(ordered_inputs(component)):
        yield finding(
            f"the input from {source}.{stream} is ordered, which the Spark runtime cannot keep yet",
            "run it locally, or leave out ordered=True: then a message that is tried again comes later than others",
        )
    if isinstance(component.body, BoltSpec):
        yield from _bolt(component.body, finding)


def _out_of_reach(component: ComponentSpec) -> dict[type, str]:
    """Structures that no worker can import, among those that the component emits and keeps, and where they are defined.

    A dataclass or NamedTuple can be sent as it is; the pickler cannot do that with a structure.
    """
    kinds: list[Any] = [stream.schema.cls for stream in component.outputs.values()]
    if isinstance(component.body, BoltSpec) and component.body.state is not None:
        kinds.append(component.body.state.value_type)
    found: dict[type, str] = {}
    for cls in (cls for kind in kinds for cls in registry_of(kind).values() if issubclass(cls, msgspec.Struct)):
        if "<locals>" in cls.__qualname__:
            found[cls] = "a function"
        elif cls.__module__ == "__main__":
            found[cls] = "__main__"
    return found


class _FindingMaker(Protocol):
    def __call__(self, what: str, next_step: str, got: str = "") -> Finding: ...


def _bolt(bolt: BoltSpec, finding: _FindingMaker) -> Iterator[Finding]:
    if bolt.style in {"batch", "arrow"} and bolt.is_async:
        yield finding("async batch and Arrow bolts cannot run on Spark", "make it a plain function")


def refuse_unnameable(state_dir: Path) -> None:
    """Raise ConfigError for a state directory whose name Java cannot represent."""
    if not is_encodable(str(state_dir.absolute())):
        raise ConfigError(
            "Spark cannot use a state directory whose name is not UTF-8",
            where=encodable(str(state_dir)),
            next_step="name another folder with --state-dir; files and sinks may have such names",
        )
