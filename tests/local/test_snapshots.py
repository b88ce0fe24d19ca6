"""A snapshot of a local run: the next run continues from the state in it, or says why it cannot."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.local.running import HANG_S
from tupletree import KeyedState, ListState, MapState, PermanentError, TaskState, Topology, bolt
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConfigError, ProcessingError, TupletreeError
from tupletree.runtimes import run as api_run
from tupletree.sinks import foreach
from tupletree.sources import items

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class Word(msgspec.Struct, frozen=True):
    word: str | None


class At(msgspec.Struct, frozen=True):
    """A key that msgpack cannot carry as it is."""

    when: dt.datetime
    number: int


class Seen(msgspec.Struct, frozen=True):
    key: str
    value: str


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Seen:
    total.value += 1
    return Seen(str(word.word), str(total.value))


@bolt
def remember(at: At, numbers: ListState[int]) -> Seen:
    numbers.append(at.number)
    return Seen(at.when.isoformat(), str([*numbers]))


@bolt
def tally(word: Word, letters: MapState[str, int]) -> Seen:
    for letter in word.word or "":
        letters[letter] = letters.get(letter, 0) + 1
    return Seen(str(word.word), str(dict(letters.items())))


@bolt(state=int)
def number(word: Word, total: TaskState[int]) -> Seen:
    total.value += 1
    return Seen(str(word.word), str(total.value))


def run(
    tmp_path: Path, body: Any, values: list[Any], field: str = "word", *, tasks: int = 3, **options: Any
) -> list[tuple[str, str]]:
    """One run with the snapshot; its result."""
    out: list[tuple[str, str]] = []
    t = Topology("remembering")
    source = t.spout("source", items(values))
    bolted = t.bolt("bolted", body, parallelism=tasks)
    worked = bolted.fields(source, field) if field else bolted.shuffle(source)
    t.sink("out", foreach(lambda batch: out.extend((seen.key, seen.value) for seen in batch.rows))).shuffle(worked)
    handle = api_run.run(
        t,
        runtime="local",
        options=Options(max_attempts=1, **options),
        state_dir=tmp_path / f"state{len([*tmp_path.glob('state*')])}",
        state_snapshot=tmp_path / "snapshot",
    )
    handle.wait(HANG_S)
    return out


@pytest.mark.parametrize(("first", "then"), [(3, 3), (3, 1), (1, 5)])
def test_counts_go_on_whatever_the_parallelism(tmp_path: Path, first: int, then: int) -> None:
    words = [Word(f"w{one % 40}" if one % 41 else None) for one in range(500)]
    run(tmp_path, count, words, tasks=first)
    out = run(tmp_path, count, words, tasks=then)
    expected = Counter(str(word.word) for word in words)
    last = {key: max(int(value) for one, value in out if one == key) for key, _ in out}
    assert last == {key: 2 * times for key, times in expected.items()}


def test_maps_lists_and_keys_of_any_kind_come_back_as_they_were(tmp_path: Path) -> None:
    run(tmp_path, tally, [Word("aab")])
    assert run(tmp_path, tally, [Word("aab")]) == [("aab", "{'a': 4, 'b': 2}")]
    (tmp_path / "snapshot").unlink()
    run(tmp_path, remember, [At(NOON, 1)], "when")
    assert run(tmp_path, remember, [At(NOON, 2)], "when") == [(NOON.isoformat(), "[1, 2]")]


def test_task_state_comes_back_to_its_task_and_to_no_other_number_of_tasks(tmp_path: Path) -> None:
    run(tmp_path, number, [Word("a")] * 4, "", tasks=2)
    out = run(tmp_path, number, [Word("a")] * 4, "", tasks=2)
    assert sorted(int(value) for _, value in out) == [3, 3, 4, 4]
    with pytest.raises(CheckpointError, match=r"bolted: task state[\s\S]*parallelism=3[\s\S]*parallelism=2"):
        run(tmp_path, number, [Word("a")], "", tasks=3)


def test_what_expired_meanwhile_is_gone_and_the_rest_keeps_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000_000.0]
    monkeypatch.setattr("tupletree.clock.SystemClock.wall", lambda _: now_s[0])
    brief = bolt(state=int, ttl_s=60.0)(_count)
    run(tmp_path, brief, [Word("old")])
    now_s[0] += 50.0
    run(tmp_path, brief, [Word("young")])
    now_s[0] += 20.0
    assert sorted(run(tmp_path, brief, [Word("old"), Word("young")])) == [("old", "1"), ("young", "2")]


def _count(word: Word, total: KeyedState[int]) -> Seen:
    total.value += 1
    return Seen(str(word.word), str(total.value))


def _text(word: Word, text: KeyedState[str]) -> Seen:
    text.value += "x"
    return Seen(str(word.word), text.value)


def _stateless(word: Word) -> Seen:
    return Seen(str(word.word), "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: run(path, bolt(state=str)(_text), [Word("a")]), "value type changed"),
        (lambda path: run(path, bolt(_stateless), [Word("a")]), "no bolt with state"),
    ],
)
def test_state_that_does_not_fit_is_refused_by_name_before_anything_starts(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    run(tmp_path, count, [Word("a")])
    before = (tmp_path / "snapshot").read_bytes()
    with pytest.raises(CheckpointError, match=words):
        change(tmp_path)
    assert (tmp_path / "snapshot").read_bytes() == before
    assert len([*tmp_path.glob("state*")]) == 1, "a start that was refused leaves no folder"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run(tmp_path, count, [Word("a")])
    data = (tmp_path / "snapshot").read_bytes()
    for damage in (data[:-3], data[:40] + b"\0" + data[41:], b""):
        (tmp_path / "snapshot").write_bytes(damage)
        with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "snapshot"))):
            run(tmp_path, count, [Word("a")])


def test_a_run_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    run(tmp_path, count, [Word("a")])
    before = (tmp_path / "snapshot").read_bytes()

    def wrong(word: Word, total: KeyedState[int]) -> Seen:
        total.value = cast("int", word)
        return Seen("", "")

    with pytest.raises((ProcessingError, TupletreeError), match="'bolted' cannot be stored"):
        run(tmp_path, bolt(state=int)(wrong), [Word("a")])
    assert (tmp_path / "snapshot").read_bytes() == before


def test_messages_that_die_do_not_keep_the_state_from_being_stored(tmp_path: Path) -> None:
    def refusing(word: Word, total: KeyedState[int]) -> Seen:
        if word.word == "bad":
            raise PermanentError("no")
        return _count(word, total)

    run(tmp_path, bolt(state=int)(refusing), [Word("a"), Word("bad"), Word("a")])
    assert run(tmp_path, bolt(state=int)(refusing), [Word("a")]) == [("a", "3")]


def test_it_is_for_the_local_runtime_and_a_folder_that_exists(tmp_path: Path) -> None:
    t = Topology("remembering")
    t.bolt("bolted", count).fields(t.spout("source", items([Word("a")])), "word").stream(Seen, unconsumed=True)
    for runtime, file in (("spark", tmp_path / "snapshot"), ("local", tmp_path / "nowhere" / "snapshot")):
        with pytest.raises(ConfigError, match="snapshot"):
            api_run.run(t, runtime=runtime, state_snapshot=file)
