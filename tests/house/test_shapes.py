"""Classes and constructors stay small enough to be held in mind: more than so much wants another shape, or a reason.

A record, whose fields are declared one by one and which no method of its own changes, may have any number of them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping

from tests.house.test_tidy import name_of, source_files, tree_of

MOST_ATTRIBUTES = 12
MOST_PARAMETERS = 8
REASON = f"# More than {MOST_ATTRIBUTES} attributes: "
"""The line before such a class, or before its decorators, begins so and gives the reason."""

MANY_PARAMETERS: dict[str, str] = {
    "src/tupletree/sources/jsonl_rows.py:JsonLines": "as TextLines",
    "src/tupletree/sources/text.py:TextLines": "users write it: each is a setting of the source, by keyword",
}
"""`path:class` → why its constructor may have more than MOST_PARAMETERS."""


def classes() -> Iterator[tuple[str, list[str], ast.ClassDef]]:
    """`path:class`, the lines of its file, and the class."""
    for path in source_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                yield f"{name_of(path)}:{node.name}", lines, node


def declared(node: ast.ClassDef) -> set[str]:
    """The fields that a class declares."""
    return {
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and "ClassVar" not in ast.unparse(field.annotation)
    }


def assigned(node: ast.ClassDef) -> set[str]:
    """The attributes that methods of a class set on `self`."""
    return {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for target in ast.walk(method)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def parameters(node: ast.ClassDef) -> int:
    """How many parameters a class's own constructor has."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            given = method.args
            return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
    return 0


def has_reason(lines: list[str], node: ast.ClassDef) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return lines[first - 2].startswith(REASON)


def test_a_class_with_many_attributes_says_why() -> None:
    silent = []
    stale = []
    for name, lines, node in classes():
        own = assigned(node)
        count = len(own | declared(node)) if own else 0
        if count > MOST_ATTRIBUTES and not has_reason(lines, node):
            silent.append((name, count))
        if count <= MOST_ATTRIBUTES and has_reason(lines, node):
            stale.append((name, count))
    assert silent == [], f"find another shape, or give the reason: {REASON}…"
    assert stale == [], "gives a reason without need"


def test_constructors_have_few_parameters() -> None:
    many = {name: count for name, _, node in classes() if (count := parameters(node)) > MOST_PARAMETERS}
    assert many.keys() - MANY_PARAMETERS.keys() == set(), many
    assert MANY_PARAMETERS.keys() - many.keys() == set(), "listed as an exception without need"


def named_in(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The arguments and attributes that a docstring lists."""
    listed = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
    lines = (
        re.match(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", line) for section in listed for line in section.split("\n")
    )
    return [name.strip("*") for line in lines if line for name in line[1].split(", ")]


@functools.cache
def methods_of(node: ast.ClassDef) -> dict[str, bool]:
    """Each public method of a class, and whether it says what it does; setters are documented by their properties."""
    found: dict[str, bool] = {}
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            says = method.name in named_in(node) or ast.get_docstring(method) is not None
            found.setdefault(method.name, says)
    return found


def is_documented(node: ast.ClassDef, name: str, by_name: Mapping[str, list[ast.ClassDef]]) -> bool:
    """Whether a class, or one that it is derived from, says what this method does."""
    bases = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
    return methods_of(node).get(name, False) or any(
        is_documented(other, name, by_name) for base in bases for other in by_name.get(base, ())
    )


def test_public_methods_say_what_they_do_where_they_are_first_declared() -> None:
    """What overrides a method needs a docstring only where there is more to say."""
    by_name: dict[str, list[ast.ClassDef]] = {}
    for _, _, node in classes():
        by_name.setdefault(node.name, []).append(node)
    silent = [
        f"{place}.{name}"
        for place, _, node in classes()
        if not (node.name.startswith("_") or node.col_offset)  # nor one that a function makes
        for name in methods_of(node)
        if not is_documented(node, name, by_name)
    ]
    assert silent == []


def used_in(node: ast.AST, classes_by_name: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    """Every identifier of its code and of that of its bases."""
    used: set[str] = set()
    for one in ast.walk(node):
        found = getattr(one, "arg", None) or getattr(one, "attr", None) or getattr(one, "id", None)
        used.add(found or getattr(one, "name", None) or "")
    for base in node.bases if isinstance(node, ast.ClassDef) else []:
        for other in classes_by_name.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], []):
            used |= used_in(other, classes_by_name)
    return used


def test_docstrings_list_arguments_and_attributes_that_there_are() -> None:
    by_name: dict[str, list[ast.ClassDef]] = {}
    for _, _, node in classes():
        by_name.setdefault(node.name, []).append(node)
    gone = [
        f"{name_of(path)}:{node.lineno} {name}"
        for path in source_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (names := named_in(node))
        for name in set(names) - used_in(node, by_name)
    ]
    assert gone == []


FEW = {
    "src/tupletree/tracking/acker.py: self._generations": "has as many as the settings say, three by default",
}
"""`path: dict` → why it may be a plain one."""


def names_of_firsts(tree: ast.AST) -> set[str]:
    """What `next(iter(…))` is asked for the first of, itself or its items."""
    return {
        ast.unparse(asked).removesuffix(".items()")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "next"
        for inner in node.args[:1]
        if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "iter"
        for asked in inner.args
    }


def names_of_removals(tree: ast.AST) -> set[str]:
    """What entries are removed from by their keys."""
    removed = {
        ast.unparse(target.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Delete)
        for target in node.targets
        if isinstance(target, ast.Subscript)
    }
    return removed | {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop"
    }


def test_the_oldest_of_a_dict_is_removed_from_an_ordered_one_only() -> None:
    """The first key of a plain dict is searched for from its beginning, where the removed ones were: each removal from
    100,000 took 54 µs, and takes 3 from an OrderedDict."""
    plain = {
        f"{name_of(path)}: {name}"
        for path in source_files()
        for name in names_of_firsts(tree_of(path)) & names_of_removals(tree_of(path))
        if "OrderedDict" not in path.read_text(encoding="utf-8")
    }
    assert plain == FEW.keys()
