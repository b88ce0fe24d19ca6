"""What docstrings and comments say: names that there are, and no word twice by accident."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_tidy import SOURCE, name_of, source_files, tree_of

OF_OTHERS = {"Class": "stands for any class", "Popen": "of `subprocess`"}
"""Names in backticks that no code of the package has → whose they are."""

TWICE = {"had", "that"}
"""Words that may follow themselves: "if they had had other names"."""


def names_in(tree: ast.AST) -> set[str]:
    """Every identifier of some code, and short texts, which may be names."""
    found: set[str] = set()
    for one in ast.walk(tree):
        found.update(getattr(one, kind, None) or "" for kind in ("id", "attr", "arg", "name") if hasattr(one, kind))
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and len(one.value) < 60:
            found.add(one.value)
    return found


def prose_of(path: Path) -> str:
    """Docstrings, those of attributes too, and comments."""
    statements = (one for one in ast.walk(tree_of(path)) if isinstance(one, ast.Expr))
    texts = (one.value.value for one in statements if isinstance(one.value, ast.Constant))
    comments = re.findall(r"(?:^|\s)# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n\n".join([*(text for text in texts if isinstance(text, str)), *comments])


def missing_names(text: str, known: set[str], modules: set[str]) -> Iterator[str]:
    """Of the words in backticks: classes and their parts that are no names, and modules that are not there."""
    folders = {part for module in modules for part in module.split("/")}
    for word in re.findall(r"`([A-Za-z_][\w./]*)`", text):
        parts = re.split(r"[./]", word.removeprefix("tupletree.").strip("/"))
        if re.fullmatch(r"[A-Z][a-z]\w*", parts[0]):
            if not {*parts} - {""} <= known:
                yield word
        elif len(parts) > 1 and {*parts} <= folders:
            there = any(f"/{module}".endswith("/" + "/".join(parts)) for module in modules)
            if not there and not {*parts[1:]} <= known:
                yield word


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {*dir(builtins), *OF_OTHERS}.union(*(names_in(tree_of(path)) for path in source_files()))


@pytest.fixture(scope="module")
def modules() -> set[str]:
    return {
        path.relative_to(SOURCE).with_suffix("").as_posix().removesuffix("/__init__") for path in SOURCE.rglob("*.py")
    }


def test_names_in_docstrings_and_comments_are_names_of_the_code(known: set[str], modules: set[str]) -> None:
    gone = [
        f"{name_of(path)}: {word}" for path in source_files() for word in missing_names(prose_of(path), known, modules)
    ]
    assert gone == []


def test_no_module_sends_its_reader_to_its_own_folder() -> None:
    """It would be what is left of a module that became a folder."""
    astray = [
        f"{name_of(path)}: `{path.parent.name}`"
        for path in source_files()
        if path.parent != SOURCE
        and path.name != "__init__.py"
        and not (path.parent / f"{path.parent.name}.py").exists()
        if f"`{path.parent.name}`" in (ast.get_docstring(tree_of(path)) or "")
    ]
    assert astray == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "See `Gone`, `Here.gone`, `Here.method`, `tupletree.bolts/old` and `bolts/plain`; `word` may be anybody's."
    found = missing_names(text, {"Here", "method", "word"}, {"bolts/plain", "data/old"})
    assert [*found] == ["Gone", "Here.gone", "tupletree.bolts/old"]


def test_no_word_follows_itself() -> None:
    twice = [
        f"{name_of(path)}: {found[0]!r}"
        for path in source_files()
        for found in re.finditer(r"(?<![\w.-])([A-Za-z]{2,})(?: +|\n *)\1\b", prose_of(path))
        if found[1] not in TWICE
    ]
    assert twice == []
