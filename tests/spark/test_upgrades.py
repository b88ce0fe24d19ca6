"""A changed topology on the state directory of the old one: what is accepted, what needs a word, what comes of it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.spark.upgrading import LONG, Feed, begin, complete, crash, decisions, module, planned, state_of
from tests.until import until
from tupletree import Topology
from tupletree.errors import CheckpointError, ConfigError
from tupletree.runtimes.deadletters import read, request_replay
from tupletree.runtimes.run import why
from tupletree.sinks import foreach, jsonl, parquet, read_rows, sql
from tupletree.sources import text_lines

V1 = """
import msgspec
from tupletree import bolt, KeyedState

class Line(msgspec.Struct, frozen=True):
    number: int
    text: str

class Count(msgspec.Struct, frozen=True):
    word: str
    count: int

class Total(msgspec.Struct):
    count: int = 0

@bolt(state=Total)
def count(line: Line, total: KeyedState[Total]) -> Count:
    if FAILS and line.number in FAILS:
        raise RuntimeError("as asked for")
    value = total.value
    value.count += 1
    total.value = value
    return Count(line.text, value.count)

FAILS = set()
"""

V2 = (
    V1.replace("    text: str\n", '    text: str\n    lang: str = "?"\n')
    .replace("    count: int\n", "    count: int\n    at: datetime | None = None\n", 1)
    .replace("    count: int = 0\n", "    count: int = 0\n    seen: datetime | None = None\n")
    .replace("import msgspec\n", "import msgspec\nfrom datetime import datetime\n")
)
"""A field more in each class; those of Total and Count change how values are written."""

V1_LINE = "    number: int\n    text: str\n"
WORDS = ["ant", "bee", "cat"]


def line(version: Any) -> Any:
    return lambda number: version.Line(number, WORDS[number % 3])


def topology(
    version: Any, place: Path, end: int, *, tasks: int = 2, waits: bool = False, grow: Any = None, **names: Any
) -> Topology:
    t = Topology("versions")
    lines = t.spout(names.get("lines", "lines"), Feed(line(version), end, waits=waits))
    counts = t.bolt(names.get("count", "count"), version.count, parallelism=tasks).fields(lines, "text")
    t.sink(names.get("out", "out"), jsonl(place / "out")).shuffle(counts)
    if grow is not None:
        grow(t, lines, counts)
    return t


def counted(place: Path, folder: str = "out") -> Counter[tuple[str, int]]:
    return Counter((row["word"], row["count"]) for row in read_rows(place / folder))


def expected(end: int) -> Counter[tuple[str, int]]:
    totals = Counter(WORDS[number % 3] for number in range(1, end + 1))
    return Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))


def refusal(t: Topology, place: Path) -> CheckpointError:
    """The error with which a start is refused; `check` comes to the same."""
    with pytest.raises(CheckpointError) as refused:
        begin(t, place)
    assert list(refused.value.findings) == planned(t, place).faults
    return refused.value


SMALL: dict[str, Any] = {"epoch_max_messages": 5}


AT_NIGHT = [
    pytest.param(point, marks=pytest.mark.nightly)
    for point in ("settle.after_log", "publish.before_output", "epoch.after_log")
]


@pytest.mark.parametrize("point", ["settle.before_log", *AT_NIGHT])
def test_sinks_branches_and_tasks_are_added_while_messages_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    v1 = module("added", V1)
    crash(topology(v1, tmp_path, 30), tmp_path, point, monkeypatch, 3, **SMALL)

    def grow(t: Topology, lines: Any, counts: Any) -> None:
        more = t.bolt("again", v1.count, parallelism=2).fields(lines, "text")
        t.sink("more", jsonl(tmp_path / "more")).shuffle(more)
        t.sink("copy", jsonl(tmp_path / "copy")).shuffle(counts)

    t = topology(v1, tmp_path, 40, tasks=3, grow=grow)
    assert decisions(planned(t, tmp_path)) == {
        "lines": {"unchanged"}, "count": {"accepted"}, "out": {"unchanged"},
        "again": {"accepted"}, "more": {"accepted"}, "copy": {"accepted"},
    }  # fmt: skip
    ended = complete(t, tmp_path, **SMALL)
    assert (ended.acked, ended.open, ended.dead) == (40, 0, 0)
    assert counted(tmp_path) == expected(40)
    new = counted(tmp_path, "copy")
    assert new <= counted(tmp_path)
    assert new.total() == counted(tmp_path, "more").total() >= 10
    assert state_of(tmp_path, "count") == {
        word: {"count": n} for word, n in Counter(WORDS[n % 3] for n in range(1, 41)).items()
    }


@pytest.mark.parametrize("point", [pytest.param("settle.after_log", marks=pytest.mark.nightly), "settle.before_log"])
def test_rows_of_old_classes_are_read_with_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Unsettled logs, a message that waits for its next attempt, and state, in a module that moved."""
    v1, v2 = module("old", V1), module("new", V2)
    v1.FAILS.add(2)
    crash(topology(v1, tmp_path, 30), tmp_path, point, monkeypatch, 3, **SMALL)
    ended = complete(topology(v2, tmp_path, 40), tmp_path, **SMALL)
    assert (ended.acked, ended.open, ended.dead) == (40, 0, 0)
    rows = counted(tmp_path)
    assert rows == expected(40)
    assert state_of(tmp_path, "count").keys() == set(WORDS)
    # And values that were written in the new form by the second run are read by a third.
    assert complete(topology(v2, tmp_path, 50, tasks=3), tmp_path, **SMALL).acked == 50
    assert counted(tmp_path) == expected(50)


def test_what_has_another_name_goes_on_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = module("renamed", V1)
    crash(topology(v1, tmp_path, 30), tmp_path, "settle.after_log", monkeypatch, 3, **SMALL)
    names: dict[str, Any] = {"lines": "texts", "count": "tally", "out": "rows"}
    t = topology(v1, tmp_path, 40, **names)
    with pytest.raises(CheckpointError, match="--rename count=tally") as refused:
        begin(t, tmp_path)
    assert all(f"--rename {old}={new}" in str(refused.value) for old, new in names.items())
    crash(t, tmp_path, "upgrade.written", monkeypatch, 1, renames=names, **SMALL)
    assert state_of(tmp_path, "tally").keys() == set(WORDS)  # read where it still is
    crash(t, tmp_path, "settle.before_log", monkeypatch, 1, renames=names, **SMALL)
    ended = complete(t, tmp_path, names, **SMALL)
    assert (ended.acked, ended.open, ended.dead) == (40, 0, 0)
    assert counted(tmp_path) == expected(40)
    assert state_of(tmp_path, "tally")["bee"] == {"count": 14}
    # A word that was carried out does nothing; another name of before may not be taken.
    assert complete(topology(v1, tmp_path, 45, **names), tmp_path, names).acked == 45

    def grow(t: Topology, _lines: Any, counts: Any) -> None:
        t.sink("count", jsonl(tmp_path / "taken")).shuffle(counts)

    with pytest.raises(CheckpointError, match="belonged to another component"):
        begin(topology(v1, tmp_path, 45, grow=grow, **names), tmp_path)


def test_a_kill_before_folders_have_their_new_names_is_recovered_by_a_start_that_changes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = module("moved", V1)
    assert complete(topology(version, tmp_path, 6), tmp_path).acked == 6
    t = topology(version, tmp_path, 9, count="tally")
    crash(t, tmp_path, "upgrade.written", monkeypatch, renames={"count": "tally"})
    t = topology(version, tmp_path, 9, count="totals", out="rows")
    more = {"tally": "totals", "out": "rows"}
    assert not planned(t, tmp_path, more).faults
    crash(t, tmp_path, "upgrade.written", monkeypatch, renames=more)

    def grow(t: Topology, _lines: Any, counts: Any) -> None:
        t.sink("second", jsonl(tmp_path / "second")).shuffle(counts)

    t = topology(version, tmp_path, 9, count="totals", out="rows", grow=grow)
    assert not planned(t, tmp_path).faults
    assert complete(t, tmp_path).acked == 9
    assert counted(tmp_path) == expected(9)
    assert state_of(tmp_path, "totals").keys() == set(WORDS)


def test_a_dropped_spout_that_planned_pieces_may_be_one_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    source = V1 + "\n@bolt\ndef parse(line: Raw) -> Line:\n    return Line(1, line.text)\n"
    version = module("pieces", "from tupletree.sources import Line as Raw\n" + source)

    def reading(spout: Any, replay: Any = "runtime") -> Topology:
        t = Topology("versions")
        parsed = t.bolt("parse", version.parse).shuffle(t.spout("lines", spout, replay=replay))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("count", version.count).fields(parsed, "text"))
        return t

    crash(reading(text_lines(tmp_path / "in.txt")), tmp_path, "settle.before_log", monkeypatch)
    t = reading(Feed(lambda number: version.Raw(f"x{number}"), 3), "source")
    assert not planned(t, tmp_path, drops=("lines",)).faults
    ended = complete(t, tmp_path, drops=("lines",))
    assert (ended.acked, ended.open, ended.dead) == (3, 0, 0)
    assert {word for word, _ in counted(tmp_path)} == {"x1", "x2", "x3"}


HELD = (
    V1
    + """
@batch_bolt(size=100, max_age_s=3600.0)
def gather(batch: list[Line]) -> list[Count]:
    return [Count(line.text, line.number) for line in batch]
"""
).replace("import bolt,", "import batch_bolt, bolt,")


def holding(version: Any, place: Path, end: int, heard: Counter[Any], *, waits: bool = True, **has: Any) -> Topology:
    """Lines that a batch holds, and a count with state; `has` leaves components out or names them otherwise."""
    t = Topology("holding")
    lines = t.spout("lines", Feed(line(version), end, waits=waits, heard=heard))
    more = None
    if has.get("other", True):
        more = t.spout("other", Feed(line(version), end, waits=waits, heard=heard))
    if gather := has.get("gather", "gather"):
        held = t.bolt(gather, version.gather).shuffle(lines)
        if more is not None:
            held.shuffle(more)
        t.sink("gathered", jsonl(place / "gathered")).shuffle(held)
    if more is not None:
        t.sink("raw", jsonl(place / "raw")).shuffle(more)
    counts = t.bolt("count", version.count, parallelism=2).fields(lines, "text")
    t.sink(has.get("out", "out"), jsonl(place / "out")).shuffle(counts)
    return t


def held_at_a_stop(version: Any, place: Path, end: int = 6) -> None:
    """Every line is counted, and held by the batch: all messages are open."""
    handle = begin(holding(version, place, end, Counter()), place)
    until(lambda: sum(hold.count for hold in handle.progress().holds if hold.component == "gather") == 2 * end)
    handle.stop(5.0)
    handle.wait(30.0)


def test_messages_go_on_without_what_a_dropped_bolt_held(tmp_path: Path) -> None:
    version = module("dropped", HELD)
    held_at_a_stop(version, tmp_path)
    heard: Counter[Any] = Counter()
    t = holding(version, tmp_path, 6, heard, waits=False, gather="")
    said = str(refusal(t, tmp_path))
    assert "component 'gather' was removed" in said
    assert "stored: 12 held tuples" in said
    assert "component 'gathered' was removed" in said
    plan = planned(t, tmp_path, drops=("gather", "gathered"))
    assert not plan.faults
    assert decisions(plan)["gather"] == {"dropped"}
    ended = complete(t, tmp_path, drops=("gather", "gathered"))
    assert (ended.acked, ended.open, ended.dead) == (12, 0, 0)
    assert heard == Counter({("acked", number): 2 for number in range(1, 7)})
    assert counted(tmp_path).total() == 6


def test_what_a_dropped_producer_had_sent_is_dropped_where_it_is_held_and_its_open_messages_are_forgotten(
    tmp_path: Path,
) -> None:
    version = module("producer", HELD)
    held_at_a_stop(version, tmp_path)
    heard: Counter[Any] = Counter()
    t = holding(version, tmp_path, 6, heard, waits=False, other=False)
    said = str(refusal(t, tmp_path))
    assert "6 open messages, 6 tuples of Line held elsewhere, the position of its source" in said
    ended = complete(t, tmp_path, drops=("other", "raw"))
    assert (ended.acked, ended.open, ended.dead) == (6, 0, 0)
    assert heard == Counter({("acked", number): 1 for number in range(1, 7)})
    rows = [row["count"] for row in read_rows(tmp_path / "gathered")]
    assert sorted(rows) == [1, 2, 3, 4, 5, 6]
    # A spout of that name begins anew.
    again = complete(holding(version, tmp_path, 6, heard, waits=False), tmp_path)
    assert (again.acked, again.open) == (12, 0)


@pytest.mark.parametrize("kind", [pytest.param("same name", marks=pytest.mark.nightly), "renamed"])
def test_held_tuples_are_held_on_with_the_new_class(tmp_path: Path, kind: str) -> None:
    old, new = module("held_old", HELD), module("held_new", HELD.replace(V1_LINE, V1_LINE + '    lang: str = "?"\n'))
    held_at_a_stop(old, tmp_path)
    heard: Counter[Any] = Counter()
    names = {"gather": "collect"} if kind == "renamed" else {}
    t = holding(new, tmp_path, 6, heard, waits=False, **names)
    ended = complete(t, tmp_path, {"gather": "collect"} if names else None)
    assert (ended.acked, ended.open, ended.dead) == (12, 0, 0)
    assert heard == Counter({("acked", number): 2 for number in range(1, 7)})
    assert sorted(row["count"] for row in read_rows(tmp_path / "gathered")) == sorted([*range(1, 7)] * 2)
    assert counted(tmp_path).total() == 6


def test_state_that_cannot_be_read_is_named_and_dropped_on_request(tmp_path: Path) -> None:
    old = module("state_old", V1)
    new = module(
        "state_new", V1.replace("    count: int = 0\n", "    total: int = 0\n").replace("value.count", "value.total")
    )
    assert complete(topology(old, tmp_path, 9), tmp_path).acked == 9
    t = topology(new, tmp_path, 12)
    said = str(refusal(t, tmp_path))
    assert "count: state: Total.count changed from int to nothing" in said
    assert "stored: 3 keys of state" in said
    assert "--drop count.Total.count" in said
    assert complete(t, tmp_path, drops=("count.Total.count",)).acked == 12
    assert state_of(tmp_path, "count") == {word: {"total": 1} for word in WORDS}
    other = module("state_other", V1.replace("state=Total", "state=int").replace("KeyedState[Total]", "KeyedState[int]")
        .replace("value.count += 1", "value += 1").replace("value.count", "value"))  # fmt: skip
    t = topology(other, tmp_path, 15)
    assert "--drop count" in str(refusal(t, tmp_path))
    assert complete(t, tmp_path, drops=("count",)).acked == 15
    assert state_of(tmp_path, "count") == dict.fromkeys(WORDS, 1)


def test_a_changed_class_is_refused_while_tuples_of_it_are_stored_and_accepted_after_a_drain(tmp_path: Path) -> None:
    old = module("class_old", HELD)
    new = module(
        "class_new",
        HELD.replace("    number: int\n", "    number: float\n").replace(", line.number", ", int(line.number)"),
    )
    held_at_a_stop(old, tmp_path)
    said = str(refusal(holding(new, tmp_path, 6, Counter(), waits=False), tmp_path))
    assert "lines: stream 'Line': Line.number changed from int to float" in said
    assert "other: stream 'Line': Line.number changed from int to float" in said
    assert "tupletree drain" in said
    handle = begin(holding(old, tmp_path, 6, Counter()), tmp_path)
    handle.drain(20.0)
    assert handle.wait(30.0).open == 0
    t = holding(new, tmp_path, 8, Counter(), waits=False)
    assert complete(t, tmp_path).acked == 16


def test_undelivered_rows_of_a_renamed_sink_are_given_under_the_ids_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = module("undelivered", V1)
    given: list[tuple[str, list[Any]]] = []

    def with_sink(name: str, end: int) -> Topology:
        t = Topology("versions")
        lines = t.spout("lines", Feed(line(version), end))
        counts = t.bolt("count", version.count, parallelism=2).fields(lines, "text")
        t.sink(name, foreach(lambda batch: given.append((batch.id, list(batch.rows))))).shuffle(counts)
        return t

    crash(with_sink("table", 10), tmp_path, "publish.after_call", monkeypatch, 1, epoch_max_messages=10)
    assert "1 undelivered row" in str(refusal(with_sink("rows", 10), tmp_path))
    ended = complete(with_sink("rows", 12), tmp_path, {"table": "rows"})
    assert (ended.acked, ended.open) == (12, 0)
    by_id = dict(given)
    assert all("-table-" in batch for batch in by_id)
    rows = Counter((row.word, row.count) for rows in by_id.values() for row in rows)
    assert rows == expected(12)


def test_undelivered_rows_of_a_dropped_sink_are_never_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = module("unwanted", V1)
    given: list[Any] = []

    def with_sink(*, called: bool, end: int = 10) -> Topology:
        def grow(t: Topology, _lines: Any, counts: Any) -> None:
            if called:
                t.sink("table", foreach(lambda batch: given.extend(batch.rows))).shuffle(counts)

        return topology(version, tmp_path, end, grow=grow)

    crash(with_sink(called=True), tmp_path, "publish.before_call", monkeypatch, 1, epoch_max_messages=10)
    assert "1 undelivered row" in str(refusal(with_sink(called=False), tmp_path))
    assert complete(with_sink(called=False), tmp_path, drops=("table",)).acked == 10
    assert counted(tmp_path) == expected(10)
    assert complete(with_sink(called=True, end=12), tmp_path).acked == 12
    assert len(given) == 2


def test_dead_letters_are_replayed_by_the_renamed_spout_with_the_new_class(tmp_path: Path) -> None:
    old, new = module("letters_old", V1), module("letters_new", V2)
    old.FAILS.update({2, 4})
    assert complete(topology(old, tmp_path, 6), tmp_path, max_attempts=1).dead == 2
    t = topology(new, tmp_path, 6, lines="texts")
    assert "2 dead letters" in str(refusal(t, tmp_path))
    request_replay(tmp_path / "state", None)
    ended = complete(t, tmp_path, {"lines": "texts"})
    assert (ended.acked, ended.dead) == (6, 0)
    assert read(tmp_path / "state") == []
    assert {fact.spout for fact in why(tmp_path / "state", "2")} == {"texts"}


def test_everything_that_is_refused_is_named_at_once_and_nothing_is_changed(tmp_path: Path) -> None:
    version = module("refused", HELD)
    held_at_a_stop(version, tmp_path)
    before = sorted(str(one) for one in (tmp_path / "state").rglob("*"))
    t = Topology("holding")
    lines = t.spout("lines", Feed(line(version), 6), parallelism=2)
    t.sink("fresh", jsonl(tmp_path / "fresh")).shuffle(t.bolt("counts", version.count).fields(lines, "text"))
    said = str(refusal(t, tmp_path))
    for name in ("lines", "other", "gather", "gathered", "count", "out", "raw"):
        assert f"\n{name}: " in said, name
    assert "lines: parallelism changed from 1 to 2" in said
    assert sorted(str(one) for one in (tmp_path / "state").rglob("*")) == before
    faults = planned(t, tmp_path, {"cont": "counts"}, ["gahter"]).faults
    assert [one.next_step for one in faults if "did you" in one.next_step] == [
        "did you mean 'count'?",
        "did you mean 'gather'?",
    ]


def test_the_plan_of_an_unchanged_topology_changes_nothing(tmp_path: Path) -> None:
    version = module("unchanged", V1)
    assert complete(topology(version, tmp_path, 9), tmp_path).acked == 9
    plan = planned(topology(version, tmp_path, 9), tmp_path)
    assert not plan.is_change
    assert not plan.faults
    assert {step.component: step.stored for step in plan.steps} == {
        "lines": "the position of its source", "count": "3 keys of state", "out": "nothing",
    }  # fmt: skip


def test_dead_letters_of_a_dropped_spout_stay_and_are_not_replayed(tmp_path: Path) -> None:
    version = module("letters_left", HELD)
    version.FAILS.add(2)
    t = Topology("versions")
    lines, more = (t.spout(name, Feed(line(version), 4)) for name in ("lines", "more"))
    for name, source in (("count", lines), ("tally", more)):
        t.sink(f"{name}s", jsonl(tmp_path / name)).shuffle(t.bolt(name, version.count).fields(source, "text"))
    assert complete(t, tmp_path, max_attempts=1).dead == 2
    version.FAILS.clear()
    request_replay(tmp_path / "state", None)
    t = Topology("versions")
    lines = t.spout("lines", Feed(line(version), 4))
    t.sink("counts", jsonl(tmp_path / "count")).shuffle(t.bolt("count", version.count).fields(lines, "text"))
    assert complete(t, tmp_path, drops=("more", "tally", "tallys")).acked == 4 + 3
    assert [letter.spout for letter in read(tmp_path / "state")] == ["more"]
    assert {fact.spout for fact in why(tmp_path / "state", "1")} == {"lines", "more (dropped)"}


def test_sinks_take_rows_of_a_wider_class_beside_those_that_are_there(tmp_path: Path) -> None:
    source = V1.replace("    count: int\n\nclass Total", '    count: int\n    lang: str = "?"\n\nclass Total')
    versions = module("narrow", V1), module("wide", source)

    def with_sinks(version: Any, end: int, *, add_columns: bool) -> Topology:
        def grow(t: Topology, _lines: Any, counts: Any) -> None:
            url = f"sqlite:///{tmp_path / 'counts.db'}"
            t.sink("table", sql(url, "counts", add_columns=add_columns)).shuffle(counts)
            t.sink("columns", parquet(tmp_path / "columns")).shuffle(counts)

        return topology(version, tmp_path, end, grow=grow)

    assert complete(with_sinks(versions[0], 6, add_columns=False), tmp_path).acked == 6
    with pytest.raises(ConfigError, match="ALTER TABLE counts ADD COLUMN") as refused:
        complete(with_sinks(versions[1], 9, add_columns=False), tmp_path)
    assert "'lang'" in str(refused.value)
    assert complete(with_sinks(versions[1], 9, add_columns=True), tmp_path).acked == 9
    with closing(sqlite3.connect(tmp_path / "counts.db")) as database:
        rows = database.execute("SELECT word, count, lang FROM counts").fetchall()
    assert Counter((word, number) for word, number, _ in rows) == expected(9)
    assert Counter(lang for _, _, lang in rows) == {None: 6, "?": 3}
    read = [(row["word"], row["count"], row["lang"]) for row in read_rows(tmp_path / "columns")]
    assert sorted(read, key=str) == sorted(rows, key=str)


def test_a_spout_that_was_dropped_and_stays_begins_anew_once(tmp_path: Path) -> None:
    """Who tries again what is open has changed: what is open is dropped on request, with the position."""
    version = module("anew", V1)
    version.FAILS.add(3)

    def with_replay(replay: Any, end: int) -> Topology:
        t = Topology("versions")
        lines = t.spout("lines", Feed(line(version), end), replay=replay)
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("count", version.count).fields(lines, "text"))
        return t

    handle = begin(with_replay("runtime", 3), tmp_path, **LONG)
    until(lambda: handle.progress().acked == 2 and handle.progress().failed == 1)
    handle.stop(5.0)
    assert handle.wait(30.0).open == 1
    assert "--drop lines" in str(refusal(with_replay("source", 3), tmp_path))
    version.FAILS.clear()
    assert complete(with_replay("source", 3), tmp_path, drops=("lines",)).acked == 2 + 3
    assert complete(with_replay("source", 4), tmp_path, drops=("lines",)).acked == 2 + 4
