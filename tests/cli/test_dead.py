"""`dead list|show|replay` on the state directory of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tupletree.runtimes import deadletters
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind

Run = Callable[..., Any]


def letter(message_id: object, error: str) -> DeadLetter:
    return DeadLetter(
        topology="orders",
        spout="incoming",
        message_id=message_id,
        payload={"text": "a;b"},
        payload_type="Order",
        failure=Failure(
            kind=FailureKind.ERROR,
            component="parse",
            task_id=3,
            error_type="ValueError",
            error=error,
            traceback="Traceback: the whole of it",
            failing_tuple="Order(text='a;b')",
        ),
        attempts=5,
        first_emitted_s=0.0,
        died_s=61.0,
    )


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The latest run below the current folder, with two dead letters."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / ".tupletree" / "orders" / "1"
    run.mkdir(parents=True)
    (run / "tupletree.json").write_text("{}")
    deadletters.write_letters(run / "dead", 4, [letter("one", "no comma"), letter(["a.txt", 7], "[odd] markup")])
    return run


@pytest.mark.usefixtures("state_dir")
def test_list_shows_a_line_for_each_letter_of_the_latest_run(run: Run) -> None:
    said = run("dead", "list")
    assert said.code == 0
    assert len(said.out.splitlines()) == 3
    for word in ("incoming/one", "parse", "ValueError"):
        assert word in said.out


@pytest.mark.usefixtures("state_dir")
def test_list_for_programs_is_a_json_object_per_line(run: Run) -> None:
    letters = [json.loads(line) for line in run("dead", "list", "--json").out.splitlines()]
    assert [one["message_id"] for one in letters] == ["one", ["a.txt", 7]]
    assert letters[0]["payload"] == {"text": "a;b"}


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize(
    "selector", ['["a.txt", 7]', 'incoming/["a.txt", 7]', '["a.txt",7]', 'incoming/[ "\\u0061.txt",7 ]']
)
def test_show_prints_everything_about_one_letter(run: Run, selector: str) -> None:
    said = run("dead", "show", selector)
    assert said.code == 0
    for word in ("[odd] markup", "Order(text='a;b')", "parse task 3", "1970-01-01 00:01:01 UTC", "the whole of it"):
        assert word in said.out


@pytest.mark.usefixtures("state_dir")
def test_an_unknown_letter_is_an_error(run: Run) -> None:
    assert run("dead", "show", "two").code == 2
    said = run("dead", "replay", "two", "one")
    assert said.code == 2
    assert "two" in said.err
    assert "tupletree dead list" in said.err


@pytest.mark.usefixtures("state_dir")
@pytest.mark.parametrize("selector", ['["a.txt",7]', 'incoming/["a.txt",7]'])
def test_replay_takes_an_id_however_its_json_is_spaced(run: Run, state_dir: Path, selector: str) -> None:
    assert run("dead", "replay", selector, '["a.txt", 7]').code == 0
    [request] = deadletters.requests(state_dir, print)
    assert len(request.letters) == 1


@pytest.mark.parametrize(
    ("typed", "stands_for"),
    [
        ("one", "one"),
        ("a/b", "a/b"),
        ("[1,2]", "[1,2]"),  # an id that is a text stays as it is
        ("[1,2]", "[1, 2]"),
        ("in/[1,2]", "in/[1, 2]"),
        ('["ü"]', '["\\u00fc"]'),
        ("7", "7"),
    ],
)
def test_an_id_is_found_as_typed_and_as_its_json_is_shown(typed: str, stands_for: str) -> None:
    assert stands_for in deadletters.spellings_of(typed)
    assert stands_for in deadletters.spellings_of(stands_for)


def test_a_json_text_is_no_second_spelling_of_a_text_id() -> None:
    assert deadletters.spellings_of('"one"') == ['"one"']


def test_replay_leaves_a_request_for_the_run(run: Run, state_dir: Path) -> None:
    said = run("dead", "replay", "incoming/one", "--state-dir", state_dir)
    assert said.code == 0
    [request] = deadletters.requests(state_dir, print)
    assert request.id in said.out
    assert "with its --set values" in said.out
    assert f"tupletree run TARGET --state-dir {state_dir}" in said.out


def test_replay_of_all_names_every_letter(run: Run, state_dir: Path) -> None:
    assert run("dead", "replay", "--all").code == 0
    [request] = deadletters.requests(state_dir, print)
    assert len(request.letters) == 2


def test_a_run_without_dead_letters_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tupletree.json").write_text("{}")
    assert run("dead", "list", "--state-dir", tmp_path).out == "no dead letters\n"
