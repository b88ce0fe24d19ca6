"""README.md of this folder says which tests show what; here is shown that they are there, and that CI runs them all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import databases
from tests.docs.sentences import fault_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<tests>.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`([^`]+::[^`]+)`(?P<nightly> \*\(nightly)?")


def rows() -> list[tuple[str, list[str], list[bool]]]:
    """What must be right, its tests, and which of them are said to be nightly."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return [
        (row["what"], [one[1] for one in found], [bool(one["nightly"]) for one in found])
        for row in _ROW.finditer(text)
        if row["what"] != "What must be right"
        for found in [[*_TEST.finditer(row["tests"])]]
    ]


def is_nightly(test: str) -> bool:
    """Whether a test is marked so, or its file is."""
    path, _, name = test.partition("::")
    for node in ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return any("mark.nightly" in ast.unparse(one) for one in node.decorator_list)
    return False


def test_every_line_names_tests_that_exist() -> None:
    assert len(rows()) > 40
    faults = [
        f"{what}: {one or 'names no test'}: {fault_of(one)}"
        for what, tests, _ in rows()
        for one in tests or [""]
        if fault_of(one)
    ]
    assert not faults, "\n".join(faults)


def test_every_line_says_which_of_its_tests_make_test_leaves_out() -> None:
    wrong = [
        one for _, tests, told in rows() for one, nightly in zip(tests, told, strict=True) if is_nightly(one) != nightly
    ]
    assert not wrong


def test_ci_installs_postgresql_and_skips_no_test_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert commands.index("make servers") < commands.index(
        f"{databases.REQUIRED}=postgresql,redis,nats,rabbitmq make test"
    )
    assert re.search(r"^servers:.*\bpostgresql\b", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    monkeypatch.setattr(databases, "_programs", lambda: None)
    monkeypatch.setenv(databases.REQUIRED, "postgresql")
    with pytest.raises(pytest.fail.Exception, match=r"no PostgreSQL server: initdb.* Next: make postgresql"):
        databases.need_postgres()
    monkeypatch.delenv(databases.REQUIRED)
    with pytest.raises(pytest.skip.Exception, match=r"no PostgreSQL server: initdb.* Next: make postgresql"):
        databases.need_postgres()
