"""TARGET: which module it names, and the error if it names none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tupletree.cli.target import load_target
from tupletree.errors import ConfigError, TopologyError
from tupletree.topology.model import TargetRef

WriteTarget = Callable[[str], Path]

TOPOLOGY = """\
from pathlib import Path
import msgspec
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.topology.builder import Topology

class Word(msgspec.Struct):
    text: str

def topology(out: Path = Path("out"), words: list[str] = ["a"]) -> Topology:
    t = Topology("small")
    spout = t.spout("words", items([Word(word) for word in words]))
    t.sink("out", jsonl(out)).shuffle(spout)
    return t

made = topology()
number = 3

def nothing():
    return None
"""


def test_a_file_is_imported_under_its_stem_with_its_folder_on_the_path(write_target: WriteTarget) -> None:
    file = write_target(TOPOLOGY)
    topology, reference = load_target(str(file), ["out=there", "words=x,y"])
    assert topology.name == "small"
    assert reference == TargetRef(file.stem, "topology", str(file.parent), {"out": Path("there"), "words": ["x", "y"]})
    assert sys.modules[file.stem].__file__ == str(file)


def test_another_process_can_follow_the_reference(write_target: WriteTarget) -> None:
    _, reference = load_target(str(write_target(TOPOLOGY)))
    program = f"import {reference.module} as m; print(m.{reference.name}().name)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{reference.search_path}:{Path(__file__).parents[2] / 'src'}"},
    )
    assert found.stdout == "small\n"


def test_a_name_after_the_colon_may_be_a_topology(write_target: WriteTarget) -> None:
    topology, reference = load_target(f"{write_target(TOPOLOGY)}:made")
    assert (topology.name, reference.name, reference.parameters) == ("small", "made", {})


def test_a_module_is_found_from_the_current_folder(
    write_target: WriteTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = write_target(TOPOLOGY)
    package = tmp_path / f"package_{file.stem}"
    package.mkdir()
    (package / "__init__.py").touch()
    file.rename(package / "inner.py")
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    _, reference = load_target(f"{package.name}.inner:made")
    assert (reference.module, reference.search_path) == (f"{package.name}.inner", str(tmp_path))


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        (":topolgy", ["nothing named 'topolgy'", "did you mean 'topology'?"]),
        (":zzz", ["nothing named 'zzz'", "made", "nothing", "topology"]),
        (":number", ["not a topology", "3 of type int"]),
        (":nothing", ["returned no topology", "None"]),
    ],
)
def test_an_unknown_name_is_reported_with_the_known_ones(
    write_target: WriteTarget, suffix: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_target(f"{write_target(TOPOLOGY)}{suffix}")
    assert [word for word in words if word not in str(caught.value)] == []


def test_settings_for_a_topology_that_is_no_function_are_refused(write_target: WriteTarget) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load_target(f"{write_target(TOPOLOGY)}:made", ["out=x"])


@pytest.mark.parametrize("name", ["word-count.py", "3words.py", "class.py", "json.py", "pytest.py"])
def test_a_file_whose_name_is_no_module_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TOPOLOGY)
    with pytest.raises(ConfigError) as caught:
        load_target(str(tmp_path / name))
    assert "choose another name" in str(caught.value)
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("target", ["gone.py", "no.such_module", "routes.txt", "", ".", "a.py:b:c"])
def test_a_missing_file_or_invalid_target_is_reported(target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_target(target)
    assert caught.value.findings[0].expected


@pytest.mark.parametrize(
    ("text", "line", "got"),
    [
        ("x = 1\nimport no_such_module_at_all\n", 2, "No module named 'no_such_module_at_all'"),
        ("x = 1\n\ny = (\n", 3, "SyntaxError"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("raise SystemExit(3)\n", 1, "SystemExit"),
        ("def topology():\n    return 1 / 0\n", 2, "ZeroDivisionError"),
    ],
)
def test_an_error_in_the_target_shows_its_own_line(write_target: WriteTarget, text: str, line: int, got: str) -> None:
    file = write_target(text)
    with pytest.raises(ConfigError) as caught:
        load_target(str(file))
    [finding] = caught.value.findings
    assert finding.where == f"{file}:{line}"
    assert got in finding.got


def test_the_topologys_own_errors_are_raised_unchanged(write_target: WriteTarget) -> None:
    file = write_target("from tupletree.errors import TopologyError\nraise TopologyError('mine')\n")
    with pytest.raises(TopologyError, match="mine"):
        load_target(str(file))
