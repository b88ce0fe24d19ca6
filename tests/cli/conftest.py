"""A folder to write topology files in, and a run of the command line within this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tupletree.cli.main import main

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str


Run = Callable[..., Output]
WriteTarget = Callable[[str], Path]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_line(*arguments: object) -> Output:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Output(code, captured.out, captured.err)

    return run_line


@pytest.fixture
def write_target(tmp_path: Path) -> WriteTarget:
    """Writes a module under a name that no other test uses."""

    def write(text: str) -> Path:
        file = tmp_path / f"written_topology_{next(_NUMBERS)}.py"
        file.write_text(text)
        return file

    return write
