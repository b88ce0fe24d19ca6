"""Drawings of a pipeline: text for terminals, DOT for Graphviz, Mermaid for Markdown.

Pure and stable: the same pipeline gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tupletree.escaping import escape
from tupletree.routes.document.spec import PipelineSpec, RouteSpec


def to_text(pipeline: PipelineSpec) -> str:
    """One block per route: what it reads, its adapters in order, and where its messages go."""
    lines = [f"pipeline {pipeline.name}"]
    for route in pipeline.routes.values():
        lines += [
            f"route {route.name} ×{route.inbound.concurrency}"
            + (f": {route.description}" if route.description else ""),
            f"  ← {route.inbound.queue}" + (" (first message)" if _is_first(pipeline, route) else ""),
        ]
        for position, adapter in enumerate(route.adapters):
            named = f" ({adapter.type_name})" if adapter.name != adapter.type_name else ""
            batch = f", in batches of {adapter.batch_size:,}" if adapter.batch_size else ""
            condition = ", on a condition" if adapter.condition is not None else ""
            lines.append(f"  {position} {adapter.name}{named}{batch}{condition}")
        for queue in route.outbound:
            reader = pipeline.reader_of(queue)
            lines.append(f"  → {queue}" + (f" (route {reader.name})" if reader else " (read by others)"))
        if route.error_handling.dead_letter_queue:
            lines.append(f"  ✗ {route.error_handling.dead_letter_queue}")
    return "\n".join(map(escape, lines)) + "\n"


def to_dot(pipeline: PipelineSpec) -> str:
    """A directed graph in Graphviz's DOT language."""
    lines = [f"digraph {_quoted(pipeline.name)} {{", "  rankdir=LR;"]
    lines += [f"  {_quoted(f'queue {name}')} [label={_quoted(name)}, shape=cylinder];" for name in _queues(pipeline)]
    for route in pipeline.routes.values():
        label = "\n".join([route.name, *(adapter.name for adapter in route.adapters)])
        lines.append(f"  {_quoted(f'route {route.name}')} [label={_quoted(label)}, shape=box];")
    for source, target, dead in _edges(pipeline):
        lines.append(f"  {_quoted(source)} -> {_quoted(target)}{' [style=dashed]' if dead else ''};")
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(pipeline: PipelineSpec) -> str:
    """A flow chart in Mermaid's language. Nodes are numbered, for names may hold words that Mermaid reserves."""
    names = [*(f"queue {name}" for name in _queues(pipeline)), *(f"route {name}" for name in pipeline.routes)]
    numbers = {name: f"n{number}" for number, name in enumerate(names)}
    lines = ["flowchart LR"]
    lines += [f'  {numbers[f"queue {name}"]}[("{_shown(name)}")]' for name in _queues(pipeline)]
    for route in pipeline.routes.values():
        label = "<br/>".join(_shown(name) for name in (route.name, *(adapter.name for adapter in route.adapters)))
        lines.append(f'  {numbers[f"route {route.name}"]}["{label}"]')
    for source, target, dead in _edges(pipeline):
        lines.append(f"  {numbers[source]} {'-.->' if dead else '-->'} {numbers[target]}")
    return "\n".join(lines) + "\n"


def _is_first(pipeline: PipelineSpec, route: RouteSpec) -> bool:
    return pipeline.init_message is not None and pipeline.init_message.route == route.name


def _queues(pipeline: PipelineSpec) -> list[str]:
    """Every queue that a message can go through, in the document's order."""
    found: dict[str, None] = {}
    for source, target, _ in _edges(pipeline):
        for name in (source, target):
            if name.startswith("queue "):
                found[name.removeprefix("queue ")] = None
    return list(found)


def _edges(pipeline: PipelineSpec) -> Iterator[tuple[str, str, bool]]:
    """From, to, and whether only dead letters go there."""
    for route in pipeline.routes.values():
        yield f"queue {route.inbound.queue}", f"route {route.name}", False
        for queue in route.outbound:
            yield f"route {route.name}", f"queue {queue}", False
        if route.error_handling.dead_letter_queue:
            yield f"route {route.name}", f"queue {route.error_handling.dead_letter_queue}", True


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shown(text: str) -> str:
    return escape(text).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
