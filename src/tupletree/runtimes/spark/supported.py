"""What this runtime does not support yet: refused before the start, with every finding at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tupletree.data.payloads import registry_of
from tupletree.errors import ConfigError, Finding, TopologyError
from tupletree.routing.ordered_bolts import OrderedBolts
from tupletree.texts import encodable, is_encodable
from tupletree.topology.model import BoltSpec, ComponentSpec, TopologySpec


def refuse_unsupported(spec: TopologySpec) -> None:
    """Raise TopologyError with every finding if the Spark runtime cannot run this topology yet."""
    findings = [finding for component in spec.components.values() for finding in _component(component)]
    findings += _out_of_order(spec)
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
    if isinstance(component.body, BoltSpec):
        yield from _bolt(component.body, finding)


def _out_of_order(spec: TopologySpec) -> Iterator[Finding]:
    """What stands in the way of ordered inputs here, beside what `topology.ordering` refuses on every runtime."""
    bolts = OrderedBolts.of(spec)
    if bolts is None:
        return
    for name, above in bolts.above.items():
        for one in sorted(above):
            component = spec.components[one]
            where = f"{component.kind} {one!r} ({component.where})"
            if component.kind == "spout" and component.replay == "source":
                yield Finding(
                    f"the source emits failed messages again by itself, and an input of {name!r} behind it is ordered",
                    where,
                    expected="a spout whose messages the runtime tries again",
                    next_step='leave out replay="source", or run it locally',
                )
            if one in spec.upstream_of(one):
                yield Finding(
                    f"it is part of a cycle, and an input of {name!r} behind it is ordered",
                    where,
                    next_step="move the ordered input before the cycle, or run it locally",
                )
    for one, component in spec.components.items():
        body = component.body
        if isinstance(body, BoltSpec) and not (body.auto_ack and body.auto_fail):
            spouts = sorted(bolts.spouts & spec.upstream_of(one))
            if spouts:
                yield Finding(
                    f"it acks or fails by hand what comes from {spouts[0]!r}, which is before an ordered input",
                    f"{component.kind} {one!r} ({component.where})",
                    expected="a bolt that settles each tuple with its call, or a window, join, batch or HoldingBolt",
                    next_step="leave out auto_ack=False and auto_fail=False, read the source with a second spout for "
                    "this bolt, or run it locally",
                )


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
