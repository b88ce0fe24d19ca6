"""What each sink promises after a crash: every step of settling, times every kind of sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.databases import need_postgres, postgres_server
from tests.spark.conftest import RunTopology
from tests.spark.crashing import EPOCH_LINES, LINES, OPTIONS, How, die_at
from tests.spark.deaths import Kill
from tests.spark.every_sink import CALL_POINTS, check_every_sink, topology, write_text

HOW = How(topology="tests.spark.every_sink")

SETTLE_POINTS = {
    "settle.after_run": 2,
    "settle.before_log": 2,
    "settle.after_log": 2,
    "publish.before_output": 3,
    "publish.after_output": 3,
    **CALL_POINTS,
    "publish.after_dead": 1,
    "settle.after_publish": 2,
    "callbacks.before": 2,
    "callbacks.after": 2,
}
"""Crash point → at which pass."""

HARDEST = ("publish.after_call", "publish.before_amendment", "publish.after_amendment")
ALWAYS = HARDEST[:2]
"""Those of `make test`: a batch that is there but not confirmed, and refusals that only a ledger knows of."""


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(
            Kill(f"{point}:{at}", HOW, write_text), id=point, marks=[] if point in ALWAYS else [pytest.mark.nightly]
        )
        for point, at in SETTLE_POINTS.items()
    ],
    indirect=True,
)
def test_every_sink_holds_what_it_promises_after_a_kill(killed: Path, run_topology: RunTopology) -> None:
    check_every_sink(killed, run_topology(topology(killed, EPOCH_LINES), killed / "state", **OPTIONS))


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["publish.before_call", *HARDEST])
def test_postgresql_holds_what_it_promises_after_a_kill(point: str, tmp_path: Path, run_topology: RunTopology) -> None:
    need_postgres()
    with postgres_server() as socket:
        (tmp_path / "database").write_text(f"postgresql+psycopg://postgres@/postgres?host={socket}")
        write_text(tmp_path, LINES)
        die_at(tmp_path, f"{point}:{SETTLE_POINTS[point]}", HOW)
        check_every_sink(tmp_path, run_topology(topology(tmp_path, EPOCH_LINES), tmp_path / "state", **OPTIONS))


@pytest.mark.nightly
@pytest.mark.parametrize("pass_", range(1, 7))
def test_every_sink_holds_what_it_promises_after_a_kill_at_any_of_the_calls(
    pass_: int, tmp_path: Path, run_topology: RunTopology
) -> None:
    write_text(tmp_path, LINES)
    die_at(tmp_path, f"publish.after_call:{pass_}", HOW)
    check_every_sink(tmp_path, run_topology(topology(tmp_path, EPOCH_LINES), tmp_path / "state", **OPTIONS))


@pytest.mark.nightly
@pytest.mark.parametrize("point", HARDEST)
def test_every_sink_holds_what_it_promises_after_two_kills_at_the_same_point(
    point: str, tmp_path: Path, run_topology: RunTopology
) -> None:
    write_text(tmp_path, LINES)
    die_at(tmp_path, f"{point}:{SETTLE_POINTS[point]}", HOW)
    die_at(tmp_path, point, HOW)
    check_every_sink(tmp_path, run_topology(topology(tmp_path, EPOCH_LINES), tmp_path / "state", **OPTIONS))
