"""Progress records: the numbers of a run, part by part, for listeners, a file and other processes."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tupletree import Emit, Options, Spout, Topology, bolt, window_bolt
from tupletree.cli.main import main
from tupletree.errors import EndOfInput
from tupletree.runtimes import progress, run
from tupletree.runtimes.api import Summary
from tupletree.runtimes.progress import ProgressRecord, Reporter
from tupletree.sinks import foreach
from tupletree.sources import items


def record(number: int) -> ProgressRecord:
    return ProgressRecord(
        topology="t", runtime="spark", run_id="r", epoch=number, time_s=0.0, seconds=1.0, emitted=1, acked=1,
        failed=0, retried=0, dead=0, emitted_per_s=1.0, acked_per_s=1.0,
    )  # fmt: skip


def told(file: Path | None, *listeners: Callable[[ProgressRecord], None], records: int = 3) -> Reporter:
    reporter = Reporter("t", file)
    for listener in listeners:
        reporter.add(listener)
    reporter.begin()
    for number in range(records):
        reporter.report(record(number))
    reporter.finish()
    return reporter


def test_a_listener_that_raises_is_named_in_the_log_and_the_others_get_every_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[int] = []

    def broken(_: ProgressRecord) -> None:
        raise ValueError("out of order")

    with caplog.at_level(logging.ERROR):
        told(None, broken, lambda one: heard.append(one.epoch))
    assert heard == [0, 1, 2]
    assert len(caplog.records) == 3
    assert "broken failed; the run goes on" in caplog.records[0].getMessage()


def test_records_are_appended_to_a_private_file_as_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    told(file)
    told(file, records=1)
    read = [msgspec.json.decode(line, type=ProgressRecord) for line in file.read_bytes().splitlines()]
    assert [one.epoch for one in read] == [0, 1, 2, 0]
    assert read[0] == record(0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told(tmp_path / "nowhere" / "progress.jsonl")
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["t"]
    assert "progress cannot be written" in caplog.text


def test_the_last_hundred_records_are_kept() -> None:
    assert [one.epoch for one in told(None, records=150).recent()] == list(range(50, 150))


class Reading(msgspec.Struct, frozen=True):
    at: float


def test_a_local_run_leaves_a_record_each_second_while_its_oldest_message_grows_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress.SAMPLE_EVERY_S == 1.0
    monkeypatch.setattr(progress, "SAMPLE_EVERY_S", 0.01)
    heard: list[ProgressRecord] = []
    seen = threading.Event()

    def listen(one: ProgressRecord) -> None:
        heard.append(one)
        if sum(one.pending for one in heard) >= 3:
            seen.set()

    @bolt
    def waits(reading: Reading) -> None:
        seen.wait(60.0)

    t = Topology("slow")
    t.bolt("waits", waits).shuffle(t.spout("in", items([Reading(1.0)])))
    handle = run.run(t, runtime="local", state_dir=tmp_path / "state")
    handle.on_progress(listen)
    assert handle.wait(60.0).acked == 1
    ages = [one.oldest_s for one in heard if one.pending]
    assert len(ages) >= 3
    assert ages == sorted(one for one in ages if one is not None)
    assert len(set(ages)) == len(ages)
    for one in heard:  # what only epochs have
        assert (one.runs, one.step_ms, one.state_rows_read, one.state_rows_written) == (0, {}, 0, 0)
        assert (one.state_bytes_read, one.state_bytes_written, one.positions) == (0, 0, {})


class Readings(Spout[Reading]):
    """Two readings of an early time, one of a late time, and then one that comes too late: it waits for the others."""

    def __init__(self) -> None:
        self.left = [Reading(10.0), Reading(11.0), Reading(1_000.0), Reading(12.0)]
        self.over = threading.Event()

    def next(self) -> Emit[Reading] | None:
        if not self.left:
            raise EndOfInput
        if len(self.left) == 1 and not self.over.is_set():
            return None
        reading = self.left.pop(0)
        return Emit(reading, int(reading.at))

    def ack(self, message_id: Any) -> None:
        self.over.set()  # the early window is over


@window_bolt(length_s=10, timestamp="at", extend_timeout=True, late="drop")
def last(readings: list[Reading]) -> Reading:
    return readings[-1]


@bolt
def refuse_eleven(reading: Reading) -> Reading:
    if reading.at == 11.0:
        raise ValueError("eleven")
    return reading


def run_locally(tmp_path: Path, listener: Callable[[ProgressRecord], None]) -> Summary:
    t = Topology("readings")
    checked = t.bolt("check", refuse_eleven).shuffle(t.spout("in", Readings()))
    t.sink("out", foreach(lambda row: None)).shuffle(t.bolt("last", last).global_(checked))
    options = Options(max_attempts=2, backoff_initial_ms=1.0, progress_file=str(tmp_path / "progress.jsonl"))
    handle = run.run(t, runtime="local", options=options, state_dir=tmp_path / "state")
    handle.on_progress(listener)
    return handle.wait(60.0)


def test_the_records_of_a_local_run_add_up_to_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[ProgressRecord] = []
    summary = run_locally(tmp_path, heard.append)
    for name in ("emitted", "acked", "failed", "retried", "dead"):
        assert sum(getattr(one, name) for one in heard) == getattr(summary, name), name
    assert sum(one.outputs.get("out", 0) for one in heard) == summary.outputs["out"]
    assert sum(one.late for one in heard) == 1
    assert summary.late == {"last": 1}
    final = heard[-1]
    assert (final.topology, final.runtime, final.epoch, final.pending, final.oldest_s) == (
        "readings",
        "local",
        -1,
        0,
        None,
    )
    assert max(one.watermarks.get("last", 0.0) for one in heard) == 1_000.0
    written = (tmp_path / "progress.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=ProgressRecord) for line in written] == heard

    assert main(["status", "--state-dir", str(tmp_path / "state")]) == 0
    said = capsys.readouterr().out
    assert "  late 1  " in said
    assert "  1 tuple came too late for windows or joins: last 1\n" in said
    assert main(["status", "--state-dir", str(tmp_path / "state"), "--json"]) == 0
    recent = json.loads(capsys.readouterr().out)["recent"]
    assert msgspec.convert(recent, list[ProgressRecord]) == heard
