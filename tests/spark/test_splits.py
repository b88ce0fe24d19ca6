"""Sources that are read by executors: the count of `counting` comes out the same, whatever happens to it."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.spark import held
from tests.spark.conftest import RunTopology
from tests.spark.counting import (
    count,
    expected_rows,
    rows_of,
    split,
    stumble,
    topology,
    write_text,
)
from tests.spark.crashing import EPOCH_LINES, LINES, OPTIONS, How, check_crashed, check_ended
from tests.spark.deaths import Kill
from tupletree import SinkBatch, Topology, bolt
from tupletree.errors import SourceChangedError
from tupletree.runtimes import deadletters
from tupletree.runtimes.run import why
from tupletree.runtimes.spark.format.entries import numbered, read_epoch
from tupletree.sinks import foreach, jsonl, read_rows
from tupletree.sources import Line, delta_rows, parquet_rows, text_lines
from tupletree.tracking.message_ids import id_text

HOW = How(base_epochs=2, source="splits")

POINTS = {"epoch.after_log": 2, "settle.before_rerun": 1, "settle.after_log": 2}
"""Crash point → at which pass; `make nightly` has the others."""

RARER = {
    "epoch.before_log": 2,
    "settle.after_run": 2,
    "settle.before_log": 2,
    "publish.after_output": 2,
    "publish.after_dead": 2,
    "callbacks.before": 2,
    "callbacks.after": 2,
    "sweep.before_history": 1,
    "sweep.after_history": 1,
    "sweep.after": 1,
}


@pytest.mark.parametrize(
    "killed",
    [
        *(pytest.param(Kill(f"{point}:{at}", HOW), id=point) for point, at in POINTS.items()),
        *(pytest.param(Kill(f"{point}:{at}", HOW), id=point, marks=pytest.mark.nightly) for point, at in RARER.items()),
    ],
    indirect=True,
)
def test_everything_is_there_once_after_a_kill_and_a_restart_with_more_cores(
    killed: Path, run_topology: RunTopology
) -> None:
    before = check_crashed(killed)
    summary = run_topology(topology(killed, EPOCH_LINES, "splits"), killed / "state", **OPTIONS)
    check_ended(killed, summary, before, hears_acks=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(Kill(f"{point}:2", How(base_epochs=2, source="parquet")), id=point)
        for point in ("epoch.after_log", "settle.after_run", "settle.after_log", "publish.after_output")
    ],
    indirect=True,
)
def test_rows_of_parquet_files_are_there_once_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    summary = run_topology(topology(killed, EPOCH_LINES, "parquet"), killed / "state", **OPTIONS)
    check_ended(killed, summary, before, hears_acks=False)


@pytest.mark.parametrize(
    "killed",
    [Kill("settle.after_log:4", How(base_epochs=3, topology="tests.spark.held", source="splits"))],
    indirect=True,
)
def test_rows_whose_trees_are_open_across_epochs_survive_a_kill(killed: Path, run_topology: RunTopology) -> None:
    before = check_crashed(killed)
    summary = run_topology(held.topology(killed, EPOCH_LINES, "splits"), killed / "state", **OPTIONS)
    check_ended(killed, summary, before, hears_acks=False)


@pytest.mark.parametrize(
    "killed", [Kill("epoch.after_log:2", HOW)], indirect=True, ids=["between planning and reading"]
)
def test_a_file_that_changed_while_no_process_ran_ends_the_start_with_its_name(
    killed: Path, run_topology: RunTopology
) -> None:
    text = killed / "text"
    content = text.read_bytes()
    text.write_bytes(content.replace(b"plain", b"other"))
    with pytest.raises(SourceChangedError) as raised:
        run_topology(topology(killed, EPOCH_LINES, "splits"), killed / "state", **OPTIONS)
    assert re.search(rf"spout 'source', {text}, lines \d+ to \d+: a file has changed", str(raised.value))
    text.write_bytes(content)
    summary = run_topology(topology(killed, EPOCH_LINES, "splits"), killed / "state", **OPTIONS)
    check_ended(killed, summary, hears_acks=False)


class Sold(msgspec.Struct, frozen=True):
    text: str
    number: int


UNDECODABLE, REFUSED = 9, 5


def refuse_one(batch: SinkBatch[Line]) -> None:
    if any(line.number == REFUSED for line in batch.rows):
        raise ValueError("this line is refused")


def small(folder: Path, tasks: int) -> Topology:
    """Its lines need no exchange before `split` if that has two tasks, as many as there are cores.

    One of the two tasks of its spout has no file.
    """
    t = Topology("small")
    lines = t.spout("source", text_lines([folder / "text"]), parallelism=2)
    words = t.bolt("split", split, parallelism=tasks).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    t.sink("lines", jsonl(folder / "lines")).shuffle(t.bolt("stumble", stumble).shuffle(counts))
    t.sink("raw", foreach(refuse_one)).shuffle(lines)
    return t


def test_each_row_has_a_verdict_of_its_own_under_its_file_and_number(tmp_path: Path, run_topology: RunTopology) -> None:
    write_text(tmp_path, LINES)
    path, state = tmp_path / "text", tmp_path / "state"
    lines = path.read_bytes().splitlines()
    lines[UNDECODABLE - 1] = b"\xff\xfe"
    path.write_bytes(b"\n".join(lines))
    texts = {number: line.decode("latin-1") for number, line in enumerate(lines, 1) if number != UNDECODABLE}
    poisoned = {number for number, text in texts.items() if "poison" in text}
    summary = run_topology(small(tmp_path, 2), state, **OPTIONS)
    dead = {*poisoned, UNDECODABLE, REFUSED}
    assert (summary.emitted, summary.acked, summary.dead, summary.open) == (LINES, LINES - len(dead), len(dead), 0)
    good = [text for number, text in texts.items() if number not in poisoned]
    assert rows_of(tmp_path, "lines") == expected_rows(good)
    letters = {letter.message_id[1]: letter for letter in deadletters.read(state)}
    assert letters.keys() == dead
    assert {letter.message_id[0] for letter in letters.values()} == {str(path)}
    assert letters[UNDECODABLE].failure.error.startswith(f"{path}, line {UNDECODABLE}, byte ")
    assert letters[REFUSED].payload["text"] == texts[REFUSED]
    assert letters[min(poisoned)].attempts == OPTIONS["max_attempts"]
    headers = [read_epoch(state / "epochs", epoch)[0] for epoch in numbered(state / "epochs", ".epoch")]
    sizes = [header.messages + sum(planned.split.rows for planned in header.splits) for header in headers]
    assert max(sizes) <= EPOCH_LINES
    flaky = next(number for number, text in texts.items() if "flaky" in text)
    told = [(event.attempt, event.what) for event in why(state, f'["{path}",{flaky}]')]
    assert told == [(1, "failed"), (2, "acked")]
    assert [(event.attempt, event.what) for event in why(state, f'["{path}",1]')] == [(1, "acked")]

    (tmp_path / "mended").touch()
    deadletters.request_replay(state, [f"source/{id_text(letters[one].message_id)}" for one in poisoned])
    summary = run_topology(small(tmp_path, 3), state, **OPTIONS)
    assert (summary.acked, summary.dead, summary.open) == (LINES - 2, 2, 0)
    assert rows_of(tmp_path, "lines") == expected_rows([*texts.values()])


def test_rows_need_no_tracking(tmp_path: Path, run_topology: RunTopology) -> None:
    write_text(tmp_path, LINES)
    (tmp_path / "mended").touch()
    run_topology(small(tmp_path, 3), tmp_path / "state", acker_tasks=0)
    texts = [text for text in (tmp_path / "text").read_text().splitlines() if "flaky" not in text]
    assert Counter(word for word, _ in rows_of(tmp_path, "lines")).keys() == {
        w for text in texts for w in text.split()
    } - {"stumble"}


@bolt
def survive(line: Line) -> Line:
    if "killer" in line.text:
        os._exit(7)
    return line


@pytest.mark.nightly
def test_a_row_that_crashes_its_worker_dies_alone_and_its_letter_shows_it(
    tmp_path: Path, run_topology: RunTopology
) -> None:
    texts = [f"line {number}" for number in range(60)]
    texts[33] = "the killer"
    (tmp_path / "text").write_text("\n".join(texts))
    t = Topology("killer")
    lines = t.spout("source", text_lines([tmp_path / "text"]))
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.bolt("survive", survive, parallelism=2).shuffle(lines))
    summary = run_topology(t, tmp_path / "state", epoch_max_messages=20, max_attempts=2)
    assert (summary.acked, summary.dead, summary.open) == (59, 1, 0)
    assert {row["number"] for row in read_rows(tmp_path / "out")} == {*range(1, 61)} - {34}
    (letter,) = deadletters.read(tmp_path / "state")
    assert letter.message_id == [str(tmp_path / "text"), 34]
    assert letter.payload["text"] == "the killer"
    assert "the killer" in letter.failure.failing_tuple


def test_rows_of_a_delta_table_are_read_by_executors(tmp_path: Path, run_topology: RunTopology) -> None:
    table = tmp_path / "table"
    for start in (0, 40):
        rows = {"text": [f"w{number}" for number in range(start, start + 40)], "number": [*range(start, start + 40)]}
        write_deltalake(table, pa.table(rows), mode="append")

    def copy() -> Topology:
        t = Topology("copy")
        rows = t.spout("rows", delta_rows(table, message_type=Sold))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(rows)
        return t

    summary = run_topology(copy(), tmp_path / "state", epoch_max_messages=25)
    assert (summary.acked, summary.dead, summary.open) == (80, 0, 0)
    write_deltalake(table, pa.table({"text": ["late"], "number": [80]}), mode="append")
    assert run_topology(copy(), tmp_path / "state").acked == 81
    assert Counter(row["number"] for row in read_rows(tmp_path / "out")) == Counter(range(81))


def test_rows_of_parquet_files_are_read_by_executors(tmp_path: Path, run_topology: RunTopology) -> None:
    files = tmp_path / "rows"
    files.mkdir()

    def write(name: str, *numbers: int) -> None:
        table = pa.table({"text": [f"w{number}" for number in numbers], "number": [*numbers]})
        pq.write_table(table, files / name, row_group_size=16)

    def copy() -> Topology:
        t = Topology("copy")
        rows = t.spout("rows", parquet_rows(files, message_type=Sold))
        t.sink("out", jsonl(tmp_path / "out")).shuffle(rows)
        return t

    write("a.parquet", *range(40))
    write("b.parquet", *range(40, 80))
    (files / "torn.parquet").write_bytes(b"PAR1 and no end")
    summary = run_topology(copy(), tmp_path / "state", epoch_max_messages=25)
    assert (summary.acked, summary.dead, summary.open) == (80, 1, 0)
    write("c.parquet", 80)
    (files / "a.parquet").unlink()
    assert run_topology(copy(), tmp_path / "state").acked == 81
    assert Counter(row["number"] for row in read_rows(tmp_path / "out")) == Counter(range(81))
    (letter,) = deadletters.read(tmp_path / "state")
    assert "torn.parquet cannot be read as Parquet" in letter.failure.error
