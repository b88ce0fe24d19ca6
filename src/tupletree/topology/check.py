"""The check: everything that can be known to be wrong before a topology runs, all of it at once.

Pure: components in, findings out; user code is not called. The work is linear in components and subscriptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from tupletree.config import resolve_options
from tupletree.errors import ConfigError, Finding
from tupletree.topology import hints
from tupletree.topology.components import Sink
from tupletree.topology.model import BoltSpec, ComponentSpec, InputSpec, StreamSpec
from tupletree.topology.ordering import order_faults
from tupletree.topology.window_check import input_faults

# Names become names of files and folders, where a leading _ or . means hidden and a leading - an option.
LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def check(
    name: str,
    components: Sequence[ComponentSpec],
    *,
    options: Mapping[str, Any] | None = None,
    allow_cycle: bool = False,
    incomplete: Collection[str] = (),
) -> list[Finding]:
    """Judge a topology.

    Args:
        name: the topology's name.
        components: in declaration order; names may occur twice, which is a finding.
        options: settings from code.
        allow_cycle: cycles are intended.
        incomplete: components with an input that was found wrong before and is not listed; they get no second finding
            that they have none.

    Returns:
        Every fault, in the order of declaration; empty if there is none.
    """
    by_name: dict[str, ComponentSpec] = {}
    for component in components:
        by_name.setdefault(component.name, component)
    findings = [
        *filter(None, [name_fault("topology", name, f"topology {name!r}")]),
        *_options(options or {}),
        *_duplicates(components, by_name),
    ]
    if not any(component.kind == "spout" for component in components):
        findings.append(Finding("there is no spout", f"topology {name!r}", next_step="add one with Topology.spout"))
    consumed = {(source.component, source.stream) for component in components for source in component.inputs}
    for component in components:
        where = place(component)
        findings += _component(component, where)
        if not component.inputs and component.kind != "spout" and component.name not in incomplete:
            findings.append(
                Finding(
                    f"the {component.kind} has no input",
                    where,
                    next_step="say where its tuples come from: `.shuffle(source)`, or another grouping",
                )
            )
        findings += _inputs(component, by_name, where)
        findings += _keys(component, by_name, where)
        findings += _unconsumed(component, consumed, where)
        findings += _unknown_names(component, by_name, where)
        findings += order_faults(component, by_name, where)
        findings += input_faults(component, by_name, where)
    if not allow_cycle:
        findings += _cycles(by_name)
    return findings


def place(component: ComponentSpec) -> str:
    """`bolt 'count' (words.py:12)`."""
    head = f"{component.kind} {component.name!r}"
    return f"{head} ({component.where})" if component.where else head


def name_fault(what: str, name: str, where: str) -> Finding | None:
    """Why this cannot be a name, or None if it can."""
    if LEGAL_NAME.fullmatch(name):
        return None
    return Finding(
        f"the {what} has an illegal name" if name else f"the {what} has no name",
        where,
        got=repr(name),
        expected="a letter or digit, then letters, digits, '.', '_' or '-', at most 100 in all",
        next_step="names become names of files; choose a plain one",
    )


def _options(options: Mapping[str, Any]) -> Iterable[Finding]:
    try:
        resolve_options(code=options)
    except ConfigError as error:
        return error.findings
    return ()


def _duplicates(components: Sequence[ComponentSpec], by_name: Mapping[str, ComponentSpec]) -> Iterator[Finding]:
    for component in components:
        first = by_name[component.name]
        if first is not component:
            yield Finding(
                f"the name {component.name!r} is taken",
                place(component),
                got=f"a {first.kind} declared before" + (f" ({first.where})" if first.where else ""),
                next_step="give each component its own name",
            )


def _component(component: ComponentSpec, where: str) -> Iterator[Finding]:
    if fault := name_fault(component.kind, component.name, where):
        yield fault
    for stream in component.outputs:
        # The default is the class's name, an identifier.
        if not stream.isidentifier() and (fault := name_fault("stream", stream, where)):
            yield fault
    parallelism: Any = component.parallelism
    if parallelism is not None and (type(parallelism) is not int or parallelism < 1):
        yield Finding(
            "the parallelism is not right", where, got=repr(parallelism), expected="a whole number, at least 1"
        )
    else:
        yield from _executors(component, where)
    replay: str = component.replay
    if replay not in {"runtime", "source"}:
        yield Finding("unknown replay mode", where, got=f"replay={replay!r}", expected="replay='runtime' or 'source'")


def _executors(component: ComponentSpec, where: str) -> Iterator[Finding]:
    """More threads than tasks would have nothing to serve."""
    executors: Any = component.executors
    tasks = component.parallelism or 1
    if executors is None or (type(executors) is int and 1 <= executors <= tasks):
        return
    too_many = type(executors) is int and executors > tasks
    named = "one task" if tasks == 1 else f"{tasks} tasks"
    yield Finding(
        "the number of executors is not right",
        where,
        got=repr(executors),
        expected=f"a whole number from 1 to the parallelism ({named})",
        next_step=f"say parallelism={executors} or more as well" if too_many else "",
    )


def _unknown_names(component: ComponentSpec, by_name: Mapping[str, ComponentSpec], where: str) -> Iterator[Finding]:
    """Resources, components and streams that are named and do not exist."""
    given = component.resources
    asks = component.body.inject.values() if isinstance(component.body, BoltSpec) else ()
    asked = [what.removeprefix("resource:") for what in asks if what.startswith("resource:")]
    for name in (name for name in asked if name not in given):
        what, otherwise = f"nothing is given for the resource {name!r}", f"say resources={{{name!r}: ...}}"
        yield Finding.unknown(what, where, name, given, otherwise)
    for name in (name for name in given if name not in asked):
        what, otherwise = f"the bolt asks for no resource {name!r}", f"annotate a parameter `{name}: Resource[...]`"
        yield Finding.unknown(what, where, name, asked, otherwise)
    for subscription in component.inputs:
        producer = by_name.get(subscription.component)
        if producer is None:
            what = f"there is no component {subscription.component!r}"
            yield Finding.unknown(what, where, subscription.component, by_name)
        elif subscription.stream not in producer.outputs:
            what = f"{producer.kind} {producer.name!r} has no stream {subscription.stream!r}"
            yield Finding.unknown(what, where, subscription.stream, producer.outputs)


def _inputs(component: ComponentSpec, by_name: Mapping[str, ComponentSpec], where: str) -> Iterator[Finding]:
    seen = set[tuple[str, str]]()
    accepted = _accepted(component)
    for subscription in component.inputs:
        source = f"{subscription.component}.{subscription.stream}"
        if (subscription.component, subscription.stream) in seen:
            yield Finding(
                f"{source} is subscribed to twice",
                where,
                next_step="keep one grouping, or every tuple comes twice",
            )
        seen.add((subscription.component, subscription.stream))
        producer = by_name.get(subscription.component)
        stream = producer.outputs.get(subscription.stream) if producer is not None else None
        if producer is None or stream is None:
            continue  # see `_unknown_names`
        # A bolt whose classes could not be read has a finding already.
        if accepted and not any(issubclass(stream.schema.cls, cls) for cls in accepted):
            yield Finding(
                f"the {component.kind} does not take the tuples of {source}",
                where,
                got=stream.schema.text,
                expected=" | ".join(map(hints.text_of, accepted)),
                next_step="subscribe to another stream, or widen the annotation",
            )
        yield from _grouping(producer, stream, subscription, where)


def _accepted(component: ComponentSpec) -> tuple[type, ...]:
    if isinstance(component.body, BoltSpec):
        return component.body.input_types
    return hints.declared_classes(component.body, Sink) or (object,)


def _grouping(producer: ComponentSpec, stream: StreamSpec, subscription: InputSpec, where: str) -> Iterator[Finding]:
    grouping = subscription.grouping
    source = f"{producer.name}.{stream.name}"
    if grouping.kind in {"fields", "partial_key"} and stream.schema.is_read:
        for fault in stream.schema.key_faults(grouping.fields):
            yield replace(fault, what=f"grouping {source} by fields: {fault.what}", where=where)
    if grouping.kind == "custom" and not callable(grouping.custom):
        yield Finding(
            f"the custom grouping of {source} is no function",
            where,
            got=repr(grouping.custom),
            expected="(value, number of tasks) → index, or list of indexes",
        )
    if grouping.kind == "direct" and not (isinstance(producer.body, BoltSpec) and producer.body.can_collect):
        yield Finding(
            f"{producer.kind} {producer.name!r} cannot emit directly, so nothing would ever come",
            where,
            expected="a bolt with a Collector, which has `emit_direct`",
            next_step="give that bolt a Collector parameter, or choose another grouping",
        )


def _keys(component: ComponentSpec, by_name: Mapping[str, ComponentSpec], where: str) -> Iterator[Finding]:
    """What is kept by key has one owner per key only if every input is grouped by that key."""
    if not isinstance(component.body, BoltSpec) or not component.body.is_keyed:
        return
    kept = "keyed state" if component.body.state is not None else "tuples by key"
    first: tuple[str, list[str]] | None = None
    for subscription in component.inputs:
        source = f"{subscription.component}.{subscription.stream}"
        if subscription.grouping.kind != "fields":
            yield Finding(
                f"the bolt keeps {kept}, but {source} is not grouped by its key",
                where,
                got=f"{subscription.grouping.kind} grouping",
                expected="`.fields(source, ...)` for every input",
                next_step="group it by the fields that are the key",
            )
            continue
        wanted = component.body.key_fields
        if wanted and subscription.grouping.fields != wanted:
            yield Finding(
                f"the bolt works by another key than {source} is grouped by",
                where,
                got=f"fields ({', '.join(subscription.grouping.fields)})",
                expected=f"fields ({', '.join(wanted)})",
                next_step="group it by the fields that the bolt was made with, in the same order",
            )
        types = _key_types(by_name.get(subscription.component), subscription)
        if types is None:
            continue
        if first is None:
            first = (source, types)
        elif types != first[1]:
            yield Finding(
                f"the inputs of a bolt with {kept} have different keys",
                where,
                got=f"{source} by ({', '.join(types)})",
                expected=f"({', '.join(first[1])}), as {first[0]}",
                next_step="group every input by fields of the same types, in the same order",
            )


def _key_types(producer: ComponentSpec | None, subscription: InputSpec) -> list[str] | None:
    """Texts of the key's types without None, which every key may be; None if a field is unknown."""
    stream = producer.outputs.get(subscription.stream) if producer is not None else None
    if stream is None or any(name not in stream.schema.fields for name in subscription.grouping.fields):
        return None
    return [stream.schema.text_of_key(name) for name in subscription.grouping.fields]


def _unconsumed(component: ComponentSpec, consumed: AbstractSet[tuple[str, str]], where: str) -> Iterator[Finding]:
    for stream in component.outputs.values():
        if not stream.unconsumed and (component.name, stream.name) not in consumed:
            named = stream.schema.cls.__qualname__.rpartition(".")[2]
            yield Finding(
                f"no bolt consumes stream {stream.name!r}",
                where,
                next_step=f"subscribe to it, or say that this is meant: `.stream({named}, unconsumed=True)`",
            )


def _cycles(by_name: Mapping[str, ComponentSpec]) -> Iterator[Finding]:
    """Cycles that share no component, each as a path, by one depth-first walk (iterative: chains may be long)."""
    successors: dict[str, list[str]] = {name: [] for name in by_name}
    for component in by_name.values():
        for subscription in component.inputs:
            if subscription.component in successors:
                successors[subscription.component].append(component.name)
    for cycle in find_cycles(successors, successors.__getitem__):
        yield Finding(
            "the topology has a cycle",
            place(by_name[cycle[0]]),
            got=" → ".join([*cycle, cycle[0]]),
            next_step="take one of these subscriptions out, or say Topology(..., allow_cycle=True) if it is meant",
        )


def find_cycles(names: Iterable[str], successors: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Cycles of a directed graph that share no node with each other, at least one per strongly connected component.

    `successors` is called once per node, so the work is linear in the edges.
    """
    depth: dict[str, int] = {}  # position on the path; -1 once finished
    for root in names:
        if root in depth:
            continue
        path, pending = [root], [iter(successors(root))]
        reported = [-1]  # per path entry: the last position up to there that lies on a reported cycle
        depth[root] = 0
        while path:
            following = next(pending[-1], None)
            if following is None:
                depth[path.pop()] = -1
                pending.pop()
                reported.pop()
            elif following not in depth:
                depth[following] = len(path)
                path.append(following)
                pending.append(iter(successors(following)))
                reported.append(reported[-1])
            elif depth[following] > reported[-1]:
                start = depth[following]
                yield path[start:]
                reported[start:] = range(start, len(path))
