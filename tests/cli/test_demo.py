"""The demo: lines fail where it says, it checks every count, and it ends with exit code 0 on Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from tupletree.cli.demo import FLAKY, POISON, compare, example_path, typed_name

TEXTS = ["to be", "or not", "to be"]


def rows(*counts: tuple[str, int]) -> list[dict[str, str | int]]:
    return [{"word": word, "count": count} for word, count in counts]


TRUE_ROWS = rows(("to", 1), ("be", 1), ("to", 2), ("be", 2))


def lines_with(word: str) -> int:
    return sum(word in line for text in topics.values() for line in text.splitlines())


def test_a_handful_of_lines_is_poison_and_some_more_are_flaky() -> None:
    assert 1 <= lines_with(POISON) <= 20
    assert 10 <= lines_with(FLAKY) <= 100


def test_the_demo_runs_the_example_of_the_repository() -> None:
    assert example_path() == Path(__file__).resolve().parents[2] / "examples" / "word_count.py"


def test_the_commands_that_it_names_can_be_typed_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert typed_name() == "tupletree"  # no better name is known
    script = tmp_path / "bin" / "tupletree"
    script.parent.mkdir()
    script.touch(mode=0o755)
    assert typed_name() == str(Path("bin", "tupletree"))
    monkeypatch.setenv("PATH", str(script.parent))
    assert typed_name() == "tupletree"


def test_the_balance_holds_when_exactly_the_poison_is_dead_and_the_rest_is_counted_once() -> None:
    balance = compare(TEXTS, poisoned=[2], dead=[2], rows=TRUE_ROWS, still_open=0)
    assert balance.holds
    assert balance.counts == {"to": 2, "be": 2}


@pytest.mark.parametrize(
    ("fault", "dead", "written", "still_open"),
    [
        ("a line without a verdict", [2], TRUE_ROWS, 1),
        ("a line that died without being poison", [2, 3], TRUE_ROWS, 0),
        ("poison that did not die", [], TRUE_ROWS, 0),
        ("a lost update", [2], TRUE_ROWS[:-1], 0),
        ("a lost update in between", [2], TRUE_ROWS[1:], 0),
        ("an update twice", [2], [*TRUE_ROWS, *rows(("to", 1))], 0),
        ("something of a dead line", [2], [*TRUE_ROWS, *rows(("or", 1))], 0),
    ],
)
def test_any_fault_breaks_the_balance(
    fault: str, dead: list[int], written: list[dict[str, str | int]], still_open: int
) -> None:
    assert not compare(TEXTS, poisoned=[2], dead=dead, rows=written, still_open=still_open).holds, fault


@pytest.mark.spark
def test_the_demo_accounts_for_every_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tupletree", "demo"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # what the demo keeps is removed with the test's folder
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "equal to an independent count: yes" in ended.stdout
    assert ": NO" not in ended.stdout
    for part in ("Dead letters", "poisoned line", "flaky line", "tupletree dead show", "tupletree why"):
        assert part in ended.stdout
