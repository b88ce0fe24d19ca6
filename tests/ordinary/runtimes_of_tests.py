"""On which runtimes a test runs a topology, read from its source and from what it uses of its own module."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

SIGNS = {
    "spark": re.compile(
        r"in_process|[\"']spark[\"']|mark\.spark|\bSPARK|\b(?:run|start)_topology\b|EpochRuns|simulated_driver|"
        r"spark_protocol|\bEngine\b|runtimes\.spark|refuse_other_folder|SharedSession"
    ),
    "local": re.compile(
        r"testing\.(?:run|start)|run_locally|\bbegin\b|\brun\(|[\"']local[\"']|\bLOCAL|local\.running|TestRun|TopologyRun|"
        r"simulat|\bTimed\b|\bWorld\b|whole_flow"
    ),
}
"""What a source has that starts a topology on the runtime: its command, its fixtures, its simulator."""


def runtimes_of(test: str) -> set[str]:
    """Those of `folder/test_file.py::test_name`: by its source, with what of its module it uses."""
    path, _, name = test.partition("::")
    source = _source_of(path, name.split("[")[0])
    return {runtime for runtime, sign in SIGNS.items() if sign.search(source)}


@functools.cache
def _module(path: str) -> tuple[str, dict[str, ast.AST]]:
    source = (TESTS / path).read_text(encoding="utf-8")
    named: dict[str, ast.AST] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            named[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named[node.target.id] = node
    return source, named


def _source_of(path: str, name: str) -> str:
    source, named = _module(path)
    waiting, seen, parts = ["pytestmark", name], set(), [path]
    while waiting:
        one = waiting.pop()
        if one in seen or one not in named:
            continue
        seen.add(one)
        node = named[one]
        for part in [node, *getattr(node, "decorator_list", [])]:
            parts.append(ast.get_source_segment(source, part) or "")
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                waiting.append(inner.id)
            elif isinstance(inner, ast.arg):
                waiting.append(inner.arg)
    return "\n".join(parts)
