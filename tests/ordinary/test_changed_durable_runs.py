"""A durable local run whose topology has changed goes on with what its journal has, by the rules of Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import HANG_S
from tests.spark.upgrading import Feed, decisions, module
from tests.until import until
from tupletree import Topology
from tupletree.config import resolve_options
from tupletree.errors import CheckpointError, ConnectorError
from tupletree.runtimes import run as api_run
from tupletree.runtimes.api import Summary
from tupletree.runtimes.deadletters import read, request_replay
from tupletree.runtimes.local.durable.journal import Journal
from tupletree.sinks import foreach
from tupletree.topology.changes.upgrades import UpgradePlan, Words

V1 = """
from datetime import datetime
import msgspec
from tupletree import KeyedState, PermanentError, TaskState, bolt

BAD, WAITING = set(), set()

class Line(msgspec.Struct, frozen=True):
    number: int
    key: int

class Count(msgspec.Struct, frozen=True):
    number: int
    count: int

class Total(msgspec.Struct):
    count: int = 0
    noted: int = 5

@bolt
def look(line: Line) -> Line:
    if line.number in BAD:
        raise PermanentError("bad")
    if line.number in WAITING:
        raise ValueError("not yet")
    return line

@bolt(state=Total)
def count(line: Line, total: KeyedState[Total]) -> Count:
    value = total.value
    value.count += 1
    total.value = value
    return Count(line.number, value.count)

@bolt(state=int)
def by_task(line: Line, total: TaskState[int]) -> Count:
    total.value += 1
    return Count(line.number, total.value)

"""
WIDER = V1.replace("    noted: int = 5\n", "    noted: int = 5\n    at: datetime | None = None\n").replace(
    "    key: int\n", '    key: int\n    lang: str = "?"\n'
)
"""The moment in it changes how values are written."""
NARROWER = WIDER.replace("    noted: int = 5\n", "")
KEYS = 3
SOON: dict[str, Any] = {"backoff_initial_ms": 1.0}
LATER: dict[str, Any] = {"backoff_initial_ms": 2_000.0, "backoff_max_ms": 2_000.0}
"""A message that failed is open when the run is stopped, and is made again soon after the next start."""


class Service:
    """A topology whose parts may have other names, or be others, and what came of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.heard: Counter[Any] = Counter()
        self.rows: list[Any] = []

    def topology(self, version: Any, end: int, *, waits: bool = False, **has: Any) -> Topology:
        def line(number: int) -> Any:
            return version.Line(number, number % KEYS)

        t = Topology("service")
        lines = t.spout(has.get("lines", "lines"), Feed(line, end, waits=waits, heard=self.heard))
        looked = t.bolt("look", version.look).shuffle(lines)
        counts = t.bolt(has.get("count", "count"), version.count, parallelism=has.get("tasks", 1)).fields(looked, "key")
        t.sink(has.get("out", "out"), foreach(lambda batch: self.rows.extend(batch.rows))).shuffle(counts)
        if "more" in has:
            has["more"](t, lines, looked)
        return t

    def begin(self, t: Topology, *, options: Any = None, **words: Any) -> Any:
        settings = resolve_options(code={**SOON, **(options or {})})
        return api_run.run(t, runtime="local", options=settings, state_dir=self.place, durable=True, **words)

    def ended(self, t: Topology, **words: Any) -> Summary:
        summary: Summary = self.begin(t, **words).wait(HANG_S)
        return summary

    def stopped(self, t: Topology, done: int, **options: Any) -> Summary:
        handle = self.begin(t, options={**LATER, **options})
        until(lambda: handle.progress().acked + handle.progress().dead == done)
        handle.stop(0.1)
        summary: Summary = handle.wait(HANG_S)
        return summary

    def planned(self, t: Topology, renames: Any = None, drops: Any = ()) -> UpgradePlan:
        words = Words(dict(renames or {}), frozenset(drops))
        return api_run.preview(t, resolve_options(), self.place, words)

    def refused(self, t: Topology) -> str:
        """Why a start is refused; `check` comes to the same."""
        with pytest.raises(CheckpointError) as refused:
            self.begin(t)
        assert list(refused.value.findings) == self.planned(t).faults
        return str(refused.value)

    def counts(self) -> list[int]:
        return sorted(row.count for row in self.rows)


def test_what_only_adds_is_accepted_and_old_values_are_read_with_the_wider_class(tmp_path: Path) -> None:
    service, old, new = Service(tmp_path / "state"), module("durable_old", V1), module("durable_new", WIDER)
    old.WAITING.add(2)
    stopped = service.stopped(service.topology(old, 6, waits=True), 5)
    assert (stopped.acked, stopped.open) == (5, 1)
    copies: list[int] = []

    def more(t: Topology, lines: Any, looked: Any) -> None:
        t.sink("copy", foreach(lambda batch: copies.extend(row.number for row in batch.rows))).shuffle(looked)

    t = service.topology(new, 9, tasks=2, more=more)
    plan = service.planned(t)
    assert not plan.faults
    assert {one.component: one.stored for one in plan.steps} == {
        "lines": "1 open message, the position of its source", "look": "nothing", "count": "3 keys of state",
        "out": "nothing", "copy": "nothing",
    }  # fmt: skip
    assert decisions(plan)["count"] == decisions(plan)["copy"] == {"accepted"}
    old.WAITING.clear()
    ended = service.ended(t)
    assert (ended.emitted, ended.acked, ended.open) == (9, 9, 0)
    assert sorted(copies) == [2, 7, 8, 9]
    assert service.counts() == sorted([1, 2, 3] * KEYS)
    service.rows.clear()
    service.ended(service.topology(new, 12, tasks=2, more=more))
    assert service.counts() == [4] * KEYS, "values in the new form are read by the next start"


def test_what_has_other_names_goes_on_under_them(tmp_path: Path) -> None:
    service, version = Service(tmp_path / "state"), module("durable_named", V1)
    version.BAD.add(3)
    version.WAITING.add(2)
    assert service.stopped(service.topology(version, 6, waits=True), 5).dead == 1
    version.BAD.clear()
    version.WAITING.clear()
    names: dict[str, Any] = {"lines": "texts", "count": "totals", "out": "rows"}
    t = service.topology(version, 9, **names)
    said = service.refused(t)
    assert all(f"--rename {old}={new}" in said for old, new in names.items())
    assert "1 open message, 1 dead letter, the position of its source" in said
    request_replay(service.place, None)
    ended = service.ended(t, renames=names)
    assert (ended.emitted, ended.acked, ended.dead, ended.open) == (9, 9, 0, 0)
    assert service.heard == Counter({**{("acked", number): 1 for number in range(1, 10)}, ("dead", 3): 1})
    assert service.counts() == sorted([1, 2, 3] * KEYS)
    assert read(service.place) == []
    assert "lines" in {fact.spout for fact in api_run.why(service.place, "3")}
    # A word that was carried out does nothing; another component may not take a name of before.
    assert service.ended(service.topology(version, 10, **names), renames=names).acked == 10

    def taken(t: Topology, lines: Any, looked: Any) -> None:
        t.sink("count", foreach(lambda _: None)).shuffle(looked)

    assert "belonged to another component" in service.refused(service.topology(version, 10, more=taken, **names))


def test_state_and_fields_are_dropped_on_request(tmp_path: Path) -> None:
    service, old, new = Service(tmp_path / "state"), module("durable_wide", WIDER), module("durable_thin", NARROWER)
    service.ended(service.topology(old, 6))
    t = service.topology(new, 9)
    said = service.refused(t)
    assert "Total.noted changed from int to nothing" in said
    assert "stored: 3 keys of state" in said
    service.ended(t, drops=["count.Total.noted"])
    assert service.counts() == sorted([1, 2, 3] * KEYS)
    tally = service.topology(new, 12, count="tally")
    assert "--rename count=tally or --drop count" in service.refused(tally)
    service.rows.clear()
    service.ended(tally, drops=["count"])
    assert service.counts() == [1] * KEYS


def test_a_dropped_spout_leaves_no_open_message_and_its_dead_letters_are_not_replayed(tmp_path: Path) -> None:
    service, version = Service(tmp_path / "state"), module("durable_dropped", V1)
    version.BAD.add(1)
    version.WAITING.add(2)

    def two(t: Topology, lines: Any, looked: Any) -> None:
        other = t.spout("other", Feed(lambda number: version.Line(number, 0), 3, waits=True))
        t.sink("others", foreach(lambda _: None)).shuffle(t.bolt("look2", version.look).shuffle(other))

    assert service.stopped(service.topology(version, 4, waits=True, more=two), 5).open == 2
    version.BAD.clear()
    version.WAITING.clear()
    words = ["other", "look2", "others"]
    t = service.topology(version, 4)
    assert "1 open message, 1 dead letter, the position of its source" in service.refused(t)
    request_replay(service.place, None)
    ended = service.ended(t, drops=words)
    assert (ended.acked, ended.dead, ended.open) == (4, 0, 0)
    assert [letter.spout for letter in read(service.place)] == ["other"]
    again = service.ended(service.topology(version, 4, more=two_that_end(version)))
    assert (again.acked, again.open) == (4 + 3, 0)
    assert [letter.spout for letter in read(service.place)] == ["other"], "it is not that of the new one"


def two_that_end(version: Any) -> Any:
    def more(t: Topology, lines: Any, looked: Any) -> None:
        other = t.spout("other", Feed(lambda number: version.Line(number, 0), 3))
        t.sink("others", foreach(lambda _: None)).shuffle(t.bolt("look2", version.look).shuffle(other))

    return more


def test_state_per_task_stays_with_its_tasks(tmp_path: Path) -> None:
    service, version = Service(tmp_path / "state"), module("durable_tasks", V1)

    def tasks(number: int) -> Any:
        def more(t: Topology, lines: Any, looked: Any) -> None:
            counted = t.bolt("tasks", version.by_task, parallelism=number).shuffle(looked)
            t.sink("by_task", foreach(lambda _: None)).shuffle(counted)

        return more

    service.ended(service.topology(version, 4, more=tasks(2)))
    for number in (1, 3):
        said = service.refused(service.topology(version, 4, more=tasks(number)))
        assert f"parallelism changed from 2 to {number}, and it has state per task" in said
    service.ended(service.topology(version, 5, more=tasks(3)), drops=["tasks"])


def test_a_change_that_could_not_be_stored_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, version = Service(tmp_path / "state"), module("durable_full", V1)
    service.ended(service.topology(version, 3))
    t = service.topology(version, 6, lines="texts", count="totals")
    names = {"lines": "texts", "count": "totals"}
    write = Journal._write

    def full(self: Any, connection: Any, commit: Any) -> None:
        write(self, connection, commit)
        raise ConnectorError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_write", full)
        with pytest.raises(ConnectorError):
            service.begin(t, renames=names)
    assert "texts" in service.refused(t)
    assert service.ended(t, renames=names).acked == 6
    assert service.counts() == sorted([1, 2] * KEYS)


TARGET = """
import os
import signal
import time
from pathlib import Path

import msgspec

from tupletree import KeyedState, Topology, batch_bolt, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines

class Seen(msgspec.Struct, frozen=True):
    text: str
    count: int

@bolt(state=int)
def count(line: Line, total: KeyedState[int]) -> Seen:
    if line.text == os.environ.get("KILL_AT"):
        time.sleep(0.15)  # a checkpoint of what came before is made in another thread
        os.kill(os.getpid(), signal.SIGKILL)
    total.value += 1
    return Seen(line.text, total.value)

@bolt
def copy(line: Line) -> Line:
    return line

@batch_bolt(size=1000, max_age_s=1000.0)
def gather(lines: list[Line]) -> list[Seen]:
    return [Seen(line.text, 0) for line in lines]

def topology(place: Path, lines: str, counts: str) -> Topology:
    t = Topology("killed")
    read = t.spout(lines, text_lines(place / "in.txt"))
    t.sink("out", jsonl(place / "out")).shuffle(t.bolt(counts, count).fields(read, "text"))
    return t

def holding(place: Path, inputs: int) -> Topology:
    t = Topology("killed")
    read = t.spout("lines", text_lines(place / "in.txt"))
    t.sink("out", jsonl(place / "out")).shuffle(t.bolt("count", count).fields(read, "text"))
    held = t.bolt("gather", gather).shuffle(read)
    if inputs == 2:
        held.shuffle(t.bolt("copy", copy).shuffle(read))
    t.sink("held", jsonl(place / "held")).shuffle(held)
    return t
"""


def told(target: str, kill_at: str, *words: str) -> str:
    """What a run of this target prints, which is killed at a line, or else comes to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "tupletree", "run", target, "--runtime", "local", "--durable", "--summary", "json",
         *words], env={**os.environ, "KILL_AT": kill_at}, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stderr
    return done.stdout


def rows_in(folder: Path) -> Counter[str]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["text"] for line in lines)


def test_what_a_batch_held_of_an_input_that_is_gone_needs_no_word(tmp_path: Path) -> None:
    """Its messages are open after a kill, and come again, by the new topology."""
    target, texts = tmp_path / "target.py", [f"line {number}" for number in range(120)]
    target.write_text(TARGET)
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    words = ["--state-dir", str(tmp_path / "state"), "--set", f"place={tmp_path}", "--set"]
    told(f"{target}:holding", "line 110", *words, "inputs=2")
    summary = json.loads(told(f"{target}:holding", "", *words, "inputs=1", "--drop", "copy").splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["open"]) == (120, 120, 0)
    assert rows_in(tmp_path / "held") == Counter(texts)


def test_kill_9_under_one_name_after_the_other_loses_no_line(tmp_path: Path) -> None:
    target, texts = tmp_path / "target.py", [f"line {number}" for number in range(400)]
    target.write_text(TARGET)
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    names = [("lines", "counts"), ("texts", "counts"), ("texts", "totals"), ("rows", "sums")]
    state = str(tmp_path / "state")
    before, printed = names[0], ""
    for (lines, counts), kill_at in zip(names, ["line 80", "line 190", "line 300", ""], strict=True):
        words = ["--set", f"place={tmp_path}", "--set", f"lines={lines}", "--set", f"counts={counts}"]
        words += [f"--rename={old}={new}" for old, new in zip(before, (lines, counts), strict=True) if old != new]
        at = ["--state-dir", state, *words]
        if before != (lines, counts):
            check = [sys.executable, "-m", "tupletree", "check", f"{target}:topology", *at]
            plan = subprocess.run(check, capture_output=True, text=True, check=False)
            assert plan.returncode == 0, plan.stderr
            assert "renamed" in plan.stdout
        printed = told(f"{target}:topology", kill_at, *at)
        before = lines, counts
    summary = json.loads(printed.splitlines()[-1])
    assert (summary["emitted"], summary["acked"], summary["open"]) == (400, 400, 0)
    assert set(rows_in(tmp_path / "out")) == set(texts)
