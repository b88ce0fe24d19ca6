"""`tupletree routes validate|explain|schema|graph|new`, within this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.routes.document.documents import HEAD, ROUTE, written
from tests.routes.document.test_faults import FULL
from tupletree.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run_line(*arguments: object) -> tuple[int, str, str]:
        code = main(["routes", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_line


def test_validate_says_that_a_document_is_right(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, doc=FULL)
    assert run("validate", path) == (0, "document-ingest is OK: 2 routes, 3 adapters, 3 queues\n", "")
    code, out, _ = run("validate", path, "--json")
    assert code == 0
    said = json.loads(out)
    assert said["ok"]
    assert said["documents"][0]["routes"] == 2


def test_validate_tells_every_fault_of_every_document_and_ends_with_2(run: Run, tmp_path: Path) -> None:
    one = written(tmp_path, one=f"{HEAD}{ROUTE}limit: 1\n")
    two = written(tmp_path, two=f"{HEAD}{ROUTE}on_complete: 3\ninit_message: {{route: x}}\n")
    code, out, err = run("validate", one, two)
    assert (code, out) == (2, "")
    assert f"{one}:6:1: R201 unknown key (at limit)" in err
    assert f"{two}:6:14: R204" in err
    assert f"{two}:7:23: R405" in err
    assert "Traceback" not in err
    code, out, err = run("validate", one, two, "--json")
    assert (code, err) == (2, "")
    said = json.loads(out)
    assert [[fault["code"] for fault in document["faults"]] for document in said["documents"]] == [
        ["R201"],
        ["R204", "R405"],
    ]
    fault = said["documents"][0]["faults"][0]
    assert (fault["line"], fault["column"], fault["path"], fault["nearest"]) == (6, 1, "limit", "limits")


def test_a_document_that_is_not_there_is_a_fault(run: Run, tmp_path: Path) -> None:
    code, _, err = run("explain", tmp_path / "none.yaml")
    assert code == 2
    assert "R100" in err


def test_explain_prints_yaml_or_json(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, doc=FULL)
    _, out, _ = run("explain", path)
    assert "max_handlers: 20 " in out
    _, out, _ = run("explain", path, "--json")
    said = json.loads(out)
    assert said["pipeline"] == "document-ingest"
    assert {"path", "value", "origin", "file", "line", "column", "variables"} == said["values"][0].keys()


def test_graph_draws_in_three_languages(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, doc=FULL)
    assert run("graph", path)[1].startswith("pipeline document-ingest\n")
    assert run("graph", path, "--format", "dot")[1].startswith('digraph "document-ingest" {')
    assert run("graph", path, "--format", "mermaid")[1].startswith("flowchart LR\n")


def test_schema_prints_the_schema(run: Run) -> None:
    said = json.loads(run("schema", "--adapter", "tests.routes.document.steps:Convert")[1])
    assert said["properties"]["version"]
    assert run("schema", "--adapter", "nothing")[0] == 2


def test_new_makes_a_pipeline_that_is_right_and_whose_test_passes(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "hello-pipe"
    code, out, _ = run("new", folder)
    assert code == 0
    assert "next: " in out
    assert run("validate", folder / "pipeline.yaml")[:2] == (0, "hello-pipe is OK: 1 route, 1 adapter, 2 queues\n")
    code, out, _ = run("test", folder / "pipeline.yaml")
    assert (code, out.splitlines()[-1]) == (0, "2 tests, 0 failed")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert run("new", folder)[0] == 2
    assert run("new", tmp_path / "no name")[0] == 2


def test_the_command_line_answers_without_the_packages_of_routes() -> None:
    program = "import sys, tupletree.cli.main; print({'yaml', 'pydantic', 'sqlalchemy'} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.strip() == "set()"
