"""`dead list|show|replay|drop` on the state directory of a run."""

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


def test_a_run_without_dead_letters_says_so_and_which_run_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tupletree.json").write_text("{}")
    said = f"no dead letters in {tmp_path}\n"
    assert run("dead", "list", "--state-dir", tmp_path).out == said
    assert run("dead", "list", "--by-error", "--state-dir", tmp_path).out == said
    assert run("dead", "list", "--json", "--state-dir", tmp_path).out == ""


@pytest.fixture
def many(state_dir: Path) -> Path:
    """Twenty thousand more, of two kinds."""
    faults = ("no comma", "no number\nand a second line")
    deadletters.write_letters(state_dir / "dead", 5, [letter(number, faults[number % 2]) for number in range(20_000)])
    return state_dir


@pytest.mark.usefixtures("many")
def test_of_many_letters_the_first_are_listed_with_how_many_there_are(run: Run) -> None:
    lines = run("dead", "list").out.splitlines()
    assert len(lines) == 1 + 100 + 2
    assert lines[101] == "100 of 20,002 dead letters"
    assert "--by-error" in lines[102]
    assert len(run("dead", "list", "--limit", 7).out.splitlines()) == 1 + 7 + 2
    assert len(run("dead", "list", "--json").out.splitlines()) == 20_002
    assert len(run("dead", "list", "--json", "--limit", 7).out.splitlines()) == 7


@pytest.mark.usefixtures("many")
def test_many_letters_are_counted_by_component_and_error(run: Run) -> None:
    heading, first, second, third = run("dead", "list", "--by-error").out.splitlines()
    assert heading.split() == ["letters", "why", "component", "error"]
    assert first.split() == ["10,001", "error", "parse", "ValueError:", "no", "comma"]
    assert second.split() == ["10,000", "error", "parse", "ValueError:", "no", "number"]
    assert third.split()[0] == "1"
    counted = [json.loads(line) for line in run("dead", "list", "--by-error", "--json").out.splitlines()]
    assert counted[0] == {"count": 10_001, "component": "parse", "why": "error", "error": "ValueError: no comma"}


@pytest.mark.usefixtures("many")
def test_letters_are_chosen_by_component_and_error_to_be_listed(run: Run) -> None:
    assert "incoming/one" in run("dead", "list", "--error", "no comma").out
    assert run("dead", "list", "--component", "other").out.startswith("no dead letters of this kind in ")
    assert len(run("dead", "list", "--error", "[odd]").out.splitlines()) == 2


def test_letters_are_chosen_by_component_and_error_to_be_replayed(run: Run, many: Path) -> None:
    assert run("dead", "replay", "--component", "parse", "--error", "no number").code == 0
    asked = deadletters.requests(many, lambda _: None)
    names = [name for one in asked for name in one.letters]
    assert len(names) == 10_000
    refused = run("dead", "replay", "--error", "no such text")
    assert refused.code == 2
    assert "--error no such text" in refused.err
    assert run("dead", "replay", "--all", "--error", "no number").code == 2


def test_letters_that_were_handled_elsewhere_are_dropped_by_id(run: Run, state_dir: Path) -> None:
    said = run("dead", "drop", "incoming/one", "--reason", "paid by hand", "--yes", "--json")
    assert said.code == 0
    assert json.loads(said.out) == {
        "dropped": 1,
        "reason": "paid by hand",
        "letters": [{"spout": "incoming", "message_id": "one"}],
    }
    assert [one["message_id"] for one in map(json.loads, run("dead", "list", "--json").out.splitlines())] == [
        ["a.txt", 7]
    ]
    assert run("dead", "show", "one").code == 2
    for again in (("drop", "one", "--yes"), ("replay", "one")):
        refused = run("dead", *again)
        assert refused.code == 2
        assert "no dead letter has this id" in refused.err
    assert run("dead", "drop", "--all", "--yes").out.splitlines() == ["dropped: 1 dead letter"]
    assert run("dead", "list").out.startswith("no dead letters in ")
    assert run("dead", "drop", "--all", "--yes").code == 2
    assert all(one.stat().st_mode & 0o077 == 0 for one in (state_dir / "dead" / "dropped").iterdir())
    for one in (state_dir / "dead" / "dropped").iterdir():
        one.unlink()
    assert len(run("dead", "list", "--json").out.splitlines()) == 2, "nothing is lost"


@pytest.mark.usefixtures("state_dir")
def test_letters_of_one_kind_are_dropped(run: Run) -> None:
    assert run("dead", "drop", "--error", "no comma", "--yes").code == 0
    assert "incoming/one" not in run("dead", "list").out


@pytest.mark.usefixtures("state_dir")
def test_nothing_is_dropped_where_nobody_said_so(run: Run) -> None:
    for words in (("--all",), ("one",), ("--yes",), ("--all", "one", "--yes"), ("--all", "--json")):
        refused = run("dead", "drop", *words)
        assert refused.code == 2, words
    assert "--yes" in run("dead", "drop", "--all").err
    assert len(run("dead", "list", "--json").out.splitlines()) == 2
