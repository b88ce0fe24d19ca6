"""The file of a SQLite database is moved away or deleted under a run: it can be written, and nobody finds the rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from tests.ordinary.conftest import begin_in_process
from tests.spark.tapped import HANG_S, wait_until
from tupletree import Topology, bolt, run
from tupletree.errors import OutageLimitError
from tupletree.runtimes.api import RunHandle
from tupletree.sinks import sql
from tupletree.sources import items

ROWS = 400


class Row(msgspec.Struct, frozen=True):
    number: int


def begin(runtime: str, folder: Path, moves: Path | None, **options: float) -> RunHandle:
    """A run whose database is moved in the middle of its rows; to None: it is deleted."""

    @bolt
    def moving(row: Row) -> Row:
        if row.number == ROWS // 2 and not (folder / "moved").exists():
            (folder / "moved").touch()
            (folder / "rows.db").rename(moves) if moves is not None else (folder / "rows.db").unlink()
        return row

    t = Topology("moved")
    rows = t.bolt("moving", moving).shuffle(t.spout("rows", items([Row(number) for number in range(ROWS)])))
    t.sink("out", sql(f"sqlite:///{folder}/rows.db", "numbers")).shuffle(rows)
    options = {"max_spout_pending": 20, "epoch_max_messages": 20, **options}
    if runtime == "spark":
        return begin_in_process(t, folder / "state", **options)
    return run(t, runtime="local", state_dir=folder / "state", options={"durable": True, **options})


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_the_run_waits_until_it_is_back_and_every_row_is_there_once(runtime: str, tmp_path: Path) -> None:
    handle = begin(runtime, tmp_path, tmp_path / "away.db")
    waiting = wait_until(handle, lambda progress: progress.outages)
    assert "the database's file is not there any more" in str(waiting.outages)
    (tmp_path / "away.db").rename(tmp_path / "rows.db")
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.dead, summary.failed) == (ROWS, 0, 0)
    assert numbers(tmp_path / "rows.db") == [*range(ROWS)]


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_nothing_is_acked_whose_rows_went_into_a_deleted_file(runtime: str, tmp_path: Path) -> None:
    handle = begin(runtime, tmp_path, None, outage_limit_s=0.5)
    with pytest.raises(OutageLimitError, match="the database's file is not there"):
        handle.wait(HANG_S)
    assert not (tmp_path / "rows.db").exists()
    assert handle.progress().dead == 0
    begin(runtime, tmp_path, None).wait(HANG_S)
    assert {*numbers(tmp_path / "rows.db")} >= {*range(ROWS // 2, ROWS)}, "they wait for the next start"


def numbers(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return sorted(number for (number,) in connection.execute("select number from numbers"))
