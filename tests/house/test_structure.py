"""The structure of the package: no circles of imports, no crowded rooms, no words that need explaining."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "tupletree"

MOST_IN_ROOT = 9
MOST_IN_FOLDER = 22
MOST_SAME_LINES = 12
"""A longer passage that is the same in both runtimes is one idea: it belongs into a module that both use."""

# Written in pieces, so that this file does not find itself.
ODD_WORDS = [
    "wi" + "sh",
    "bu" + "ry",
    "bur" + "ied",
    "who" + "ever",
    "sa" + "ted",
    "err" + "ands",
    "ow" + "ing",
    "me" + "nd",
]
STILL_ODD = {"wi" + "sh", "bu" + "ry", "bur" + "ied", "who" + "ever", "err" + "ands", "me" + "nd"}
"""Words of the list that are still somewhere; one that is gone comes off here and stays gone."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports() -> dict[str, set[str]]:
    """Module → the modules of the package that it imports anywhere, for type checks too."""
    names = modules()
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tupletree"):
                fulls = (f"{node.module}.{alias.name}" for alias in node.names)
                targets.update(full if full in names else node.module for full in fulls)
            elif isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
        found[name] = {target for target in targets if target in names and target != name}
    return found


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """What can be reached from a module by at least one import."""
    met: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        name = waiting.pop()
        if name not in met:
            met.add(name)
            waiting += graph[name]
    return met


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    graph = imports()
    assert [name for name in graph if name in reachable(graph, name)] == []


def test_what_begins_with_an_underscore_is_its_modules_own() -> None:
    taken: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tupletree"):
                taken += [f"{path}: {node.module}.{one.name}" for one in node.names if one.name.startswith("_")]
    assert taken == []


def test_no_room_is_crowded() -> None:
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert counts[PACKAGE] <= MOST_IN_ROOT
    assert {
        folder.relative_to(PACKAGE): count
        for folder, count in counts.items()
        if folder != PACKAGE and count > MOST_IN_FOLDER
    } == {}


def test_no_word_is_used_that_the_field_does_not_know() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    used = {word for word in ODD_WORDS if re.search(rf"\b{word}\b", text)}
    assert used - STILL_ODD == set()


def code_lines(folder: Path) -> list[str]:
    """Lines that say something, without indentation; a line of its own ends each file."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
        found += [line for line in lines if len(line) > 1 and not line.startswith(("import ", "from ", "#", '"""'))]
        found.append(f"end of {path}")
    return found


def same_passages(one: list[str], other: list[str], longest: int) -> list[list[str]]:
    """Passages of more than `longest` lines that are in both."""
    places: dict[str, list[int]] = {}
    for position, line in enumerate(other):
        places.setdefault(line, []).append(position)
    found: list[list[str]] = []
    before: dict[int, int] = {}  # position in `other` → how many lines up to it are the same as here
    for position, line in enumerate(one):
        lengths = {at: before.get(at - 1, 0) + 1 for at in places.get(line, ())}
        found += [one[position - longest : position + 1] for length in lengths.values() if length == longest + 1]
        before = lengths
    return found


def test_the_two_runtimes_share_what_is_the_same_in_both() -> None:
    local, spark = (code_lines(PACKAGE / "runtimes" / name) for name in ("local", "spark"))
    assert same_passages(local, spark, MOST_SAME_LINES) == []


def test_a_passage_that_two_files_share_is_found() -> None:
    common = [f"line {number}" for number in range(13)]
    assert same_passages(["a", *common, "b"], [*common[:5], "c", *common], 12) == [common]
    assert same_passages(["a", *common[1:], "b"], [*common[:5], "c", *common], 12) == []
