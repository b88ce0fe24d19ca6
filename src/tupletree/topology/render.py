"""Drawings of a topology: text for terminals, DOT for Graphviz, Mermaid for Markdown and notebooks.

Pure and stable: the same topology gives the same text. It draws what it is given, checked or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tupletree.topology.model import ComponentSpec, InputSpec, TopologySpec
from tupletree.topology.windows import holding_text

DOT_SHAPES = {"spout": "cds", "bolt": "box", "sink": "cylinder"}
MERMAID_SHAPES = {"spout": ("([", "])"), "bolt": ("[", "]"), "sink": ("[(", ")]")}


def to_text(topology: TopologySpec) -> str:
    """One block per component: what it is, what it takes and by which grouping, and what no bolt takes.

    ::

        topology word-count
        spout lines ×1 → Line
        bolt split ×2 → Word, Bad
          ← lines.Line  shuffle
    """
    lines = [f"topology {topology.name}"]
    for component in topology.components.values():
        outputs = ", ".join(
            stream.name + (" (unconsumed)" if stream.unconsumed else "") for stream in component.outputs.values()
        )
        lines.append(
            f"{component.kind} {component.name}{_times(component)}"
            + (" with keyed state" if getattr(component.body, "state", None) is not None else "")
            + _held(component)
            + (f" with at most {component.pending} open" if component.pending is not None else "")
            + (f" → {outputs}" if outputs else "")
        )
        lines += [f"  ← {entry.component}.{entry.stream}  {_grouping(entry)}" for entry in component.inputs]
    return "\n".join(lines) + "\n"


def to_dot(topology: TopologySpec) -> str:
    """A directed graph in Graphviz's DOT language."""
    lines = [f"digraph {json.dumps(topology.name)} {{", "  rankdir=LR;"]
    for component in topology.components.values():
        label = json.dumps(component.name + _times(component), ensure_ascii=False)
        lines.append(f"  {json.dumps(component.name)} [label={label}, shape={DOT_SHAPES[component.kind]}];")
    for consumer, entry in _edges(topology.components.values()):
        label = json.dumps(f"{entry.stream}\n{_grouping(entry)}", ensure_ascii=False)
        lines.append(f"  {json.dumps(entry.component)} -> {json.dumps(consumer.name)} [label={label}];")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(topology: TopologySpec) -> str:
    """A flow chart in Mermaid's language. Nodes are numbered, for names may hold words that Mermaid reserves."""
    numbers = {name: f"n{number}" for number, name in enumerate(topology.components)}
    lines = ["flowchart LR"]
    for component in topology.components.values():
        opening, closing = MERMAID_SHAPES[component.kind]
        lines.append(f'  {numbers[component.name]}{opening}"{component.name}{_times(component)}"{closing}')
    for consumer, entry in _edges(topology.components.values()):
        label = f"{entry.stream}<br/>{_grouping(entry)}"
        lines.append(f'  {numbers[entry.component]} -->|"{label}"| {numbers[consumer.name]}')
    return "\n".join(lines) + "\n"


def _times(component: ComponentSpec) -> str:
    return f" ×{component.parallelism}" if component.parallelism is not None else ""


def _held(component: ComponentSpec) -> str:
    """The settings of a window or join that say what comes together in it."""
    holding = getattr(component.body, "holding", None)
    return "" if holding is None else f" with a {holding_text(holding)}"


def _grouping(entry: InputSpec) -> str:
    fields = ", ".join(entry.grouping.fields)
    return f"{entry.grouping.kind}({fields})" if fields else entry.grouping.kind


def _edges(components: Iterable[ComponentSpec]) -> Iterator[tuple[ComponentSpec, InputSpec]]:
    return ((component, entry) for component in components for entry in component.inputs)
