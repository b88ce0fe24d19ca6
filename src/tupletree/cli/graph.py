"""`tupletree graph`: draw a topology."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from tupletree.cli.arguments import Set, Target


class GraphFormat(Enum):
    """What to draw in."""

    TEXT = "text"
    DOT = "dot"
    MERMAID = "mermaid"


def graph_command(
    target: Target,
    settings: Set = None,
    form: Annotated[GraphFormat, typer.Option("--format", help="What to draw in.")] = GraphFormat.TEXT,
) -> None:
    """Draw a topology: its components, their parallelism, and the streams with their groupings."""
    from tupletree.cli.target import load_target
    from tupletree.topology import render

    topology, _ = load_target(target, settings or ())
    draw = {GraphFormat.TEXT: render.to_text, GraphFormat.DOT: render.to_dot, GraphFormat.MERMAID: render.to_mermaid}[
        form
    ]
    print(draw(topology.build()).rstrip("\n"))
