"""Commands of routes where the packages of the extra are not installed say which, and how to get them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.test_commands import DOCUMENT
from tupletree.cli import pipelines
from tupletree.cli.main import main


@pytest.mark.parametrize(
    "command",
    [
        ["run", "p.yaml", "--wait"],
        ["list"],
        ["status", "e", "--pipeline", "p.yaml"],
        ["wait", "e"],
        ["cancel", "e"],
        ["settle-lost", "e"],
        ["replay", "m", "--into", "p.yaml"],
        ["validate", "p.yaml"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("missing", ["pydantic", "sqlalchemy"])
def test_what_is_missing_is_named(
    command: list[str],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def find(name: str) -> Any:
        return None if name == missing else importlib.util.find_spec(name)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(DOCUMENT)
    monkeypatch.setattr(pipelines, "find_spec", find)
    assert main(["routes", *command]) == 1
    shown = capsys.readouterr().err
    assert "the packages of routes are not installed" in shown
    assert f"no {missing}" in shown
    assert "pip install 'tupletree[routes]'" in shown
