"""Durable local runs: what a service on one machine expects of a run that it stops, kills and starts again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.local.running import HANG_S
from tests.until import until
from tupletree import KeyedState, PermanentError, Topology, bolt
from tupletree.cli.summary import open_text
from tupletree.errors import (
    CheckpointError,
    ConfigError,
    ConnectorError,
    ForeignCheckpointError,
    RuntimeUnavailableError,
)
from tupletree.queues import Message, open_queue
from tupletree.runtimes import run as api_run
from tupletree.runtimes.control import send_request
from tupletree.runtimes.deadletters import read, request_replay
from tupletree.runtimes.local.durable.journal import Commit, Journal
from tupletree.runtimes.run import why
from tupletree.sinks import foreach
from tupletree.sources import items

JOURNAL = "journal.sqlite"


class N(msgspec.Struct, frozen=True):
    number: int


class Counted(msgspec.Struct, frozen=True):
    number: int
    count: int


class Service:
    """A topology that counts numbers; what it is told to do with them may change between its runs."""

    def __init__(self, state_dir: Path, total: int = 50) -> None:
        self.state_dir = state_dir
        self.total = total
        self.bad: set[int] = set()
        self.held: set[int] = set()
        self.let_go = threading.Event()
        self.rows: list[Counted] = []

    def topology(self, name: str = "service") -> Topology:
        @bolt
        def look(number: N) -> N:
            if number.number in self.bad:
                raise PermanentError("bad")
            if number.number in self.held:
                raise ValueError("not yet")
            return number

        @bolt(state=int)
        def count(number: N, total: KeyedState[int]) -> Counted:
            total.value += 1
            return Counted(number.number, total.value)

        t = Topology(name)
        numbers = t.spout("numbers", items([N(one) for one in range(self.total)]))
        looked = t.bolt("look", look).shuffle(numbers)
        counted = t.bolt("count", count)
        t.sink("out", foreach(lambda batch: self.rows.extend(batch.rows))).shuffle(counted.fields(looked, "number"))
        return t

    def begin(self, **options: Any) -> Any:
        options = {"backoff_initial_ms": 1.0, **options}
        return api_run.run(self.topology(), runtime="local", options=options, state_dir=self.state_dir, durable=True)


def test_state_and_position_go_on_at_the_next_start(tmp_path: Path) -> None:
    @bolt(state=int)
    def count(number: N, total: KeyedState[int]) -> Counted:
        total.value += 1
        return Counted(number.number, total.value)

    rows: list[Counted] = []
    for so_far in (3, 5):  # of one list, which has grown
        t = Topology("counted")
        counted = t.bolt("count", count).fields(t.spout("numbers", items([N(7)] * so_far)), "number")
        t.sink("out", foreach(lambda batch: rows.extend(batch.rows))).shuffle(counted)
        handle = api_run.run(t, runtime="local", state_dir=tmp_path / "state", durable=True)
        assert handle.wait(HANG_S).acked == so_far
    assert rows == [Counted(7, total) for total in range(1, 6)]


def test_what_was_open_at_a_stop_goes_on_at_the_next_start_and_state_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(tmp_path / "state")
    service.held = {7, 8}
    handle = service.begin(backoff_initial_ms=700.0)
    until(lambda: handle.progress().acked == 48)
    handle.stop(0.1)
    stopped = handle.wait(HANG_S)
    assert (stopped.acked, stopped.open) == (48, 2)
    assert f"start it again with --durable --state-dir {service.state_dir}: it goes on" in open_text(stopped)
    assert "2 messages were not finished, kept for the next start" in caplog.text
    with pytest.raises(RuntimeUnavailableError, match="TARGET --runtime local --durable --state-dir"):
        send_request(service.state_dir, "pause", wait_s=0.0)
    (open_now,) = [fact for fact in why(service.state_dir, "7") if fact.note == "the next start emits it again"][-1:]
    assert open_now.what == "open"
    assert open_now.attempt == 1

    service.held = set()
    ended = service.begin().wait(HANG_S)
    assert (ended.emitted, ended.acked, ended.dead, ended.open) == (50, 50, 0, 0)
    assert Counter(row.number for row in service.rows) == Counter(range(50))


def test_state_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    for _ in range(2):  # the same messages are acked already, so the second run has none
        ended = Service(tmp_path / "state", 20).begin().wait(HANG_S)
        assert (ended.emitted, ended.acked, ended.outputs) == (20, 20, {"out": 20})
    journal = Journal(tmp_path / "state" / JOURNAL)
    assert len(journal.state()["count"]) == 20
    assert [*journal.messages()] == []
    journal.close()


def test_dead_letters_of_a_durable_run_are_replayed_while_it_runs_and_at_its_next_start(tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    service.bad, service.held = {3}, {9}
    handle = service.begin(backoff_initial_ms=50.0, max_attempts=1000)
    until(lambda: read(service.state_dir))
    service.bad = set()
    request_replay(service.state_dir, ["3"])
    until(lambda: any(row.number == 3 for row in service.rows))
    until(lambda: not read(service.state_dir))
    service.bad, service.held = {9}, set()
    first = handle.wait(HANG_S)
    assert (first.emitted, first.acked, first.dead) == (50, 49, 1)

    service.bad = set()
    request_replay(service.state_dir, None)
    second = service.begin().wait(HANG_S)
    assert (second.emitted, second.acked, second.dead, second.open) == (50, 50, 0, 0)
    assert not read(service.state_dir)


def test_a_second_run_on_the_state_directory_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    service.held = {1}
    handle = service.begin(backoff_initial_ms=700.0)
    with pytest.raises(CheckpointError, match="another run is using this state directory"):
        service.begin()
    handle.stop(0.0)
    handle.wait(HANG_S)
    service.held = set()
    assert service.begin().wait(HANG_S).acked == 50


def test_a_durable_run_refuses_what_is_not_its_own_and_says_what_to_do(tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    service.begin().wait(HANG_S)
    with pytest.raises(ForeignCheckpointError, match="the name changed from 'service' to 'other'"):
        api_run.run(service.topology("other"), runtime="local", state_dir=service.state_dir, durable=True)
    with pytest.raises(ForeignCheckpointError, match="or a durable local run with --durable"):
        api_run.run(service.topology(), runtime="local", state_dir=service.state_dir)
    plain = tmp_path / "plain"
    api_run.run(service.topology(), runtime="local", state_dir=plain).wait(HANG_S)
    with pytest.raises(ForeignCheckpointError, match="not that of a durable local run"):
        api_run.run(service.topology(), runtime="local", state_dir=plain, durable=True)
    with pytest.raises(ConfigError, match="takes no state snapshot"):
        api_run.run(
            service.topology(),
            runtime="local",
            state_dir=tmp_path / "new",
            durable=True,
            state_snapshot=tmp_path / "file",
        )


def test_the_journal_is_private_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    service = Service(tmp_path / "state")
    service.begin().wait(HANG_S)
    file = service.state_dir / JOURNAL
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(CheckpointError, match="the journal of the run is damaged") as damaged:
        service.begin()
    assert str(file) in str(damaged.value)
    assert "backup" in str(damaged.value)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link or a device"):
        service.begin()


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal._connection.execute("PRAGMA user_version = 99")
    journal.close()
    with pytest.raises(ForeignCheckpointError, match="format 99"):
        Journal(tmp_path / JOURNAL)


def test_a_full_disk_pauses_a_durable_run_until_there_is_room_and_nothing_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = threading.Event()
    commit = Journal.commit

    def refuse(self: Journal, one: Commit) -> None:
        if is_full.is_set():
            raise ConnectorError("the journal of the run cannot be written", got="no room")
        commit(self, one)

    monkeypatch.setattr(Journal, "commit", refuse)
    service = Service(tmp_path / "state", 5_000)
    service.held = {1}
    handle = service.begin(max_spout_pending=10, max_attempts=10_000, backoff_max_ms=50.0)
    is_full.set()
    until(lambda: any(outage.component == "journal" for outage in handle.progress().outages))
    assert handle.progress().state == "waiting"
    service.held = set()
    is_full.clear()
    ended = handle.wait(HANG_S)
    assert (ended.acked, ended.dead) == (5_000, 0)


def test_a_value_that_cannot_be_stored_ends_the_run_and_says_so(tmp_path: Path) -> None:
    @bolt(state=int)
    def spoil(number: N, total: KeyedState[int]) -> None:
        total.value = object()  # type: ignore[assignment]  # the fault that is meant

    t = Topology("spoiling")
    t.bolt("spoil", spoil).fields(t.spout("numbers", items([N(1)])), "number")
    handle = api_run.run(t, runtime="local", state_dir=tmp_path / "state", durable=True)
    with pytest.raises(CheckpointError, match="cannot be stored"):
        handle.wait(HANG_S)


def test_more_tasks_of_a_keyed_bolt_share_its_state(tmp_path: Path) -> None:
    def run(numbers: range, tasks: int) -> dict[int, int]:
        rows: list[Counted] = []

        @bolt(state=int)
        def count(number: N, total: KeyedState[int]) -> Counted:
            total.value += 1
            return Counted(number.number, total.value)

        t = Topology("rescaled")
        spout = items([N(one % 10) for one in range(numbers.stop)])
        counted = t.bolt("count", count, parallelism=tasks).fields(t.spout("numbers", spout), "number")
        t.sink("out", foreach(lambda batch: rows.extend(batch.rows))).shuffle(counted)
        api_run.run(t, runtime="local", state_dir=tmp_path / "state", durable=True).wait(HANG_S)
        return {row.number: row.count for row in rows}

    assert run(range(20), 2) == dict.fromkeys(range(10), 2)
    assert run(range(50), 5) == dict.fromkeys(range(10), 5)


TARGET = """
import os
import signal
import time
from pathlib import Path

import msgspec

from tupletree import KeyedState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines
{more}

class Seen(msgspec.Struct, frozen=True):
    text: str
    count: int


@bolt(state=int)
def count(line: {line}, total: KeyedState[int]) -> Seen:
    if line.text == os.environ.get("KILL_AT"):
        time.sleep(0.15)  # a checkpoint of what came before, every 50 ms in another thread of a process of its own
        os.kill(os.getpid(), signal.SIGKILL)
    total.value += 1
    return Seen(line.text, total.value)


def topology(place: Path) -> Topology:
    t = Topology("killed")
    lines = t.spout("lines", {source})
    t.sink("out", jsonl(place / "out")).shuffle(t.bolt("count", count).fields(lines, "text"))
    return t
"""


def run_killed(tmp_path: Path, source: str, kills: list[str], more: str = "") -> tuple[dict[str, Any], Counter[str]]:
    """Run a target as users do, killed at each of these lines in turn, to its end; its summary and rows by text."""
    target = tmp_path / "target.py"
    target.write_text(TARGET.format(source=source, more=more, line="Text" if more else "Line"))
    command = [sys.executable, "-m", "tupletree", "run", f"{target}:topology", "--runtime", "local", "--durable"]
    command += ["--state-dir", str(tmp_path / "state"), "--set", f"place={tmp_path}", "--summary", "json"]
    printed = ""
    for kill_at in [*kills, ""]:
        environment = {**os.environ, "KILL_AT": kill_at}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_S)
        assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stderr
        printed = done.stdout
    rows = Counter(
        json.loads(line)["text"]
        for file in (tmp_path / "out").glob("*.jsonl")
        for line in file.read_text().splitlines()
    )
    summary: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return summary, rows


def test_kill_9_loses_no_line_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("".join(f"line {number}\n" for number in range(1_500)))
    summary, rows = run_killed(tmp_path, 'text_lines([place / "input.txt"])', ["line 900"])
    assert rows.keys() == {f"line {number}" for number in range(1_500)}
    assert (summary["emitted"], summary["acked"], summary["open"]) == (1_500, 1_500, 0)


@pytest.mark.nightly
def test_kill_9_loses_no_message_of_a_queue_and_acks_only_what_is_stored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db?queue=lines"
    with open_queue(url) as queue:
        lines = [json.dumps({"text": f"line {number}"}).encode() for number in range(300)]
        queue.publish([Message(id=str(number), body=line) for number, line in enumerate(lines)])
    more = "from tupletree.sources import queue\n\nclass Text(msgspec.Struct, frozen=True):\n    text: str\n"
    source = f"queue({url!r}, Text, follow=False, lease_s=1.0, prefetch=50)"
    summary, rows = run_killed(tmp_path, source, ["line 70", "line 160"], more)
    assert rows.keys() == {f"line {number}" for number in range(300)}
    assert (summary["dead"], summary["open"]) == (0, 0)
    with open_queue(url) as queue:
        depth = queue.depth()
    assert (depth.ready, depth.leased) == (0, 0)
