"""The commands used for the first time, twice, or in the wrong place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, WriteTarget
from tupletree.cli.progress import progress_line
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import Progress
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind

TARGET = """
from pathlib import Path

import msgspec

from tupletree import Topology, bolt
from tupletree.sinks import foreach
from tupletree.sources import items, text_lines


class Number(msgspec.Struct):
    value: int


def helper(text: str) -> int:
    return len(text)


@bolt
def shout(number: Number) -> Number:
    return str(number.value) if number.value == 2 else number


def reading(paths: list[Path]) -> Topology:
    t = Topology("reading")
    t.sink("out", foreach(print)).shuffle(t.spout("lines", text_lines(paths)))
    return t


def shouting():
    t = Topology("shouting")
    shouted = t.bolt("shout", shout).shuffle(t.spout("numbers", items([Number(1), Number(2)])))
    t.sink("out", foreach(lambda row: None)).shuffle(shouted)
    return t
"""


def test_check_names_every_input_file_that_is_not_there(run: Run, write_target: WriteTarget, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("a line")
    paths = ",".join(str(tmp_path / name) for name in ("no-such", "there", "nor-this"))
    said = run("check", f"{write_target(TARGET)}:reading", "--set", f"paths={paths}")
    assert said.code == 2
    assert "reading cannot read its input" in said.err
    assert "no-such" in said.err
    assert "nor-this" in said.err
    assert "/there" not in said.err


def test_hints_name_functions_that_return_a_topology_and_no_helpers(run: Run, write_target: WriteTarget) -> None:
    said = run("check", write_target(TARGET))
    assert said.code == 2
    assert "reading" in said.err
    assert "shouting" in said.err
    assert "helper" not in said.err


@pytest.mark.parametrize("place", ["nodir", "reading"])
def test_state_says_that_a_state_directory_is_enough(run: Run, write_target: WriteTarget, place: str) -> None:
    said = run("state", place if place == "nodir" else f"{write_target(TARGET)}:reading")
    assert said.code == 2
    assert "next: tupletree state DIR, or --state-dir DIR" in said.err


def test_a_value_of_an_undeclared_type_fails_once_and_without_a_traceback_of_ours(
    run: Run, write_target: WriteTarget, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    said = run("run", f"{write_target(TARGET)}:shouting", "--runtime", "local", "--state-dir", state)
    assert said.code == 3, said.err
    (letter,) = deadletters.read(state)
    assert (letter.attempts, letter.failure.permanent, letter.failure.component) == (1, True, "shout")
    assert "the bolt emitted a value of an undeclared type" in letter.failure.error
    shown = run("dead", "show", str(letter.message_id).replace("'", '"'), "--state-dir", state).out
    assert shown.count("undeclared type") == 1
    assert "Traceback" not in shown


def test_asking_twice_for_a_replay_is_asking_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tupletree.json").write_text("{}")
    failure = Failure(kind=FailureKind.ERROR, component="parse", error="bad")
    letters = [
        DeadLetter(
            topology="t", spout="in", message_id=name, payload=1, payload_type="int", failure=failure, attempts=5,
            first_emitted_s=0.0, died_s=1.0,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    (tmp_path / "dead").mkdir()
    deadletters.write_letters(tmp_path / "dead", 0, letters)
    assert run("dead", "replay", "one", "--state-dir", tmp_path).out.startswith("requested: ")
    assert run("dead", "replay", "--all", "--state-dir", tmp_path).out.startswith("requested: ")
    again = run("dead", "replay", "--all", "--state-dir", tmp_path)
    assert again.code == 0
    assert again.out.startswith("requested before, and not accepted yet: ")
    asked = [one.letters for one in deadletters.requests(tmp_path, lambda fault: pytest.fail(str(fault)))]
    assert sorted(map(len, asked)) == [1, 1]


def test_a_run_that_starts_says_so_instead_of_showing_zeros() -> None:
    assert progress_line(Progress(seconds=4.2, state="created")) == "4.2 s  starting"
    assert "in 0" in progress_line(Progress(seconds=4.2, state="processing"))


@pytest.mark.parametrize("command", ["run", "check", "graph"])
def test_a_pipeline_in_the_place_of_a_topology_is_called_one(run: Run, command: str) -> None:
    said = run(command, "pipeline.yaml")
    assert said.code == 2
    assert "this is a pipeline of routes, and no topology" in said.err
    assert "tupletree routes run pipeline.yaml" in said.err


def test_where_only_pipelines_were_run_status_says_how_to_ask_for_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = run("status")
    assert "there is no run here" in said.err
    assert "tupletree routes list" not in said.err
    (tmp_path / ".tupletree" / "routes" / "shop").mkdir(parents=True)
    assert "tupletree routes list" in run("status").err
