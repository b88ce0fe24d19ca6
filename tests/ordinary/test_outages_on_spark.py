"""What is away for seconds costs no message an attempt on Spark either, wherever it is met."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from tests.databases import need_postgres, postgres, query
from tests.local.running import begin as begin_locally
from tests.ordinary.conftest import HANG_S, begin_in_process
from tests.spark.conftest import RunTopology, StartTopology
from tests.spark.helpers_semantics import Feed
from tests.until import until
from tupletree import KeyedState, MapState, Topology, batch_bolt, bolt
from tupletree.errors import ConnectorError, OutageLimitError, UnusableDataError
from tupletree.runtimes.spark.settle.outages import outage_in
from tupletree.sinks import foreach, jsonl, sql
from tupletree.sinks.reader import read_rows
from tupletree.sources import items
from tupletree.testing.conformance.messages import numbered
from tupletree.testing.in_process import InProcessPlanRunner
from tupletree.topology.components import SinkBatch
from tupletree.topology.splits import Split, SplitSpout


class N(msgspec.Struct, frozen=True):
    n: int
    folder: str


class Row(msgspec.Struct, frozen=True):
    n: int
    folder: str
    seen: int


def ask(folder: str, service: str, away_s: float) -> None:
    """A service that is away for a while from its first call on, in whichever process that is made."""
    path = Path(folder) / service
    try:
        with path.open("x") as file:
            file.write(str(time.time() + away_s))
    except FileExistsError:
        pass
    if time.time() < float(path.read_text() or "inf"):
        with (Path(folder) / f"{service}.refused").open("a") as file:
            file.write("x")
        raise ConnectorError(f"{service} is away")


@bolt
def plain(value: N) -> N:
    ask(value.folder, "plain", 3.0)
    return value


@bolt(concurrency=4)
async def waits(value: N) -> N:
    ask(value.folder, "waits", 1.5)
    return value


@bolt(state=int)
def counted(value: N, total: KeyedState[int]) -> Row:
    total.value += 1
    ask(value.folder, "counted", 1.5)
    return Row(value.n, value.folder, total.value)


@bolt
def noted(value: Row, seen: MapState[str, int]) -> Row:
    seen["n"] = seen.get("n", 0) + 1
    ask(value.folder, "noted", 1.5)
    return Row(value.n, value.folder, value.seen + 10 * seen["n"])


@batch_bolt(size=8)
def together(rows: list[Row]) -> list[Row]:
    ask(rows[0].folder, "together", 1.5)
    return rows


class Away(Feed[N]):
    """Its source is away for a moment, after a first answer: nothing."""

    was_asked = False

    def next(self) -> Any:
        if not self.was_asked:
            self.was_asked = True
            return None
        if self.folder:
            ask(self.folder, "source", 1.0)
        return super().next()

    folder = ""


@pytest.mark.parametrize("made", [False, True], ids=["plain rows", "rows that say how new they are"])
def test_services_that_are_away_for_seconds_cost_no_message_an_attempt(tmp_path: Path, made: bool) -> None:
    check_away(begin_in_process, tmp_path, made)


@pytest.mark.spark
@pytest.mark.nightly
def test_services_that_are_away_for_seconds_cost_no_message_an_attempt_where_workers_call_them(
    start_topology: StartTopology, tmp_path: Path
) -> None:
    check_away(start_topology, tmp_path, made=True)


def check_away(start: StartTopology, tmp_path: Path, made: bool) -> None:
    count = 60
    written: list[Row] = []

    def write(batch: SinkBatch[Row]) -> None:
        ask(str(tmp_path), "called", 2.0)
        written.extend(batch.rows)

    t = Topology("away")
    source = Away("away", N, numbered([N(n, str(tmp_path)) for n in range(count)]), batch=20)
    source.folder = str(tmp_path)
    passed = t.bolt("waits", waits, parallelism=2).shuffle(t.bolt("plain", plain).shuffle(t.spout("source", source)))
    rows = t.bolt("noted", noted).fields(t.bolt("counted", counted, parallelism=2).fields(passed, "n"), "n")
    t.sink("files", jsonl(tmp_path / "files", made=made)).shuffle(t.bolt("together", together).shuffle(rows))
    t.sink("early", jsonl(tmp_path / "early", made=made)).shuffle(passed)
    t.sink("called", foreach(write)).shuffle(rows)
    handle = start(t, tmp_path / "state", max_attempts=1, message_timeout_s=2.0)
    seen: dict[str, str] = {}
    while True:
        progress = handle.progress()
        seen.update({one.component: progress.state for one in progress.outages})
        try:
            summary = handle.wait(0.05)
            break
        except TimeoutError:
            continue
    assert (summary.acked, summary.failed, summary.retried, summary.dead) == (count, 0, 0, 0)
    assert sorted(row.n for row in written) == list(range(count))
    assert sorted((row["n"], row["seen"]) for row in read_rows(tmp_path / "files")) == [(n, 11) for n in range(count)]
    assert sorted(row["n"] for row in read_rows(tmp_path / "early")) == list(range(count))
    assert {"source", "plain", "called"} <= seen.keys()
    assert set(seen.values()) == {"waiting"}
    assert progress.outage_counts["plain"] >= 1
    for service in ("source", "plain", "waits", "counted", "noted", "together", "called"):
        assert (tmp_path / f"{service}.refused").exists(), service
    assert handle.progress().outages == ()


def test_an_outage_on_spark_that_lasts_too_long_ends_the_run_with_open_messages(
    in_process: RunTopology, tmp_path: Path
) -> None:
    t = Topology("limit")
    source = t.spout("source", Feed("limit", N, numbered([N(n, str(tmp_path)) for n in range(10)]), batch=10))
    (tmp_path / "plain").write_text(str(time.time() + 3600))
    t.sink("files", jsonl(tmp_path / "files")).shuffle(t.bolt("plain", plain).shuffle(source))
    with pytest.raises(OutageLimitError, match="plain is away"):
        in_process(t, tmp_path / "state", outage_limit_s=1.0)
    (tmp_path / "plain").write_text("0")
    summary = in_process(t, tmp_path / "state")
    assert (summary.acked, summary.failed, summary.dead, summary.open) == (10, 0, 0, 0)


class Held(msgspec.Struct, frozen=True):
    n: int


SERVER = {"url": ""}


@bolt
def looks_up(value: N) -> Held:
    if value.n % 10 == 0:
        engine = sa.create_engine(SERVER["url"])
        try:
            with engine.connect() as connection:
                connection.execute(sa.text("select 1"))
        except sa.exc.DBAPIError as error:
            raise ConnectorError("the database is away", got=str(error)) from error
        finally:
            engine.dispose()
    return Held(value.n)


@pytest.mark.nightly
@pytest.mark.parametrize("away_s", [2.0, 20.0])
def test_a_database_that_is_stopped_and_started_again_loses_and_doubles_no_row_on_spark(
    tmp_path: Path, away_s: float
) -> None:
    """A bolt that asks it, and the SQL sink."""
    need_postgres()
    count = 600
    with postgres() as server:
        SERVER["url"] = server.url
        t = Topology("database")
        source = t.spout("source", Feed("db", N, numbered([N(n, "") for n in range(count)]), batch=20))
        t.sink("out", sql(server.url, "rows", message_type=Held)).shuffle(t.bolt("looks_up", looks_up).shuffle(source))
        handle = begin_in_process(t, tmp_path / "state", max_attempts=1, message_timeout_s=2.0, epoch_max_messages=20)
        until(lambda: handle.progress().acked)
        server.stop()
        time.sleep(away_s)  # the server is away for as long in real time: that is the test
        assert handle.progress().state == "waiting"
        assert handle.progress().outages
        server.start()
        back_s = time.monotonic()
        until(lambda: not handle.progress().outages)
        assert time.monotonic() - back_s < 5.0
        summary = handle.wait(60.0)
        assert (summary.acked, summary.failed, summary.dead) == (count, 0, 0)
        assert query(server.url, "select count(*), count(distinct n) from rows") == [(count, count)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectorError("the database is down"), "ConnectorError: the database is down"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (
            RuntimeError(
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                '  File "x.py", line 1, in y\ntupletree.errors.ConnectorError: /out/a: cannot write: No space left\n'
            ),
            "ConnectorError: /out/a: cannot write: No space left",
        ),
        (
            RuntimeError("Traceback:\nOSError: [Errno 28] No space left on device\n"),
            "OSError: [Errno 28] No space left on device",
        ),
        (
            RuntimeError("Traceback:\nPermissionError: [Errno 1] Operation not permitted: '/state/marks/1'\n"),
            "PermissionError: [Errno 1] Operation not permitted: '/state/marks/1'",
        ),
        (
            RuntimeError("Traceback:\nOSError: [Errno 24] Too many open files: '/state/marks/1'\n"),
            "OSError: [Errno 24] Too many open files: '/state/marks/1'",
        ),
        (
            RuntimeError(
                "Lost task 0.7 (localhost executor driver): java.io.IOException: No space left on device\n\tat"
            ),
            "java.io.IOException: No space left on device",
        ),
        (RuntimeError("java.io.IOException: Connection reset by peer\n"), None),
        (RuntimeError("Traceback:\nValueError: OSError: [Errno 28] is what it said\n"), None),
        (ValueError("no"), None),
        (OSError(2, "No such file"), None),
    ],
)
def test_an_outage_is_known_by_its_innermost_error(error: BaseException, expected: str | None) -> None:
    assert outage_in(error) == expected


IS_BACK, WORKS, MAY_END = threading.Event(), threading.Event(), threading.Event()


@bolt
def works_when_it_is_back(number: N) -> N:
    if not IS_BACK.is_set():
        raise ConnectorError("the service is away")
    WORKS.set()
    assert MAY_END.wait(HANG_S)
    return number


def test_an_outage_is_over_when_an_epoch_has_run_without_it(tmp_path: Path) -> None:
    for one in (IS_BACK, WORKS, MAY_END):
        one.clear()
    t = Topology("over")
    t.sink("out", foreach(lambda _: None)).shuffle(
        t.bolt("works", works_when_it_is_back).shuffle(t.spout("numbers", items([N(1, "")])))
    )
    handle = begin_in_process(t, tmp_path / "state")
    until(lambda: handle.progress().outages)
    IS_BACK.set()
    assert WORKS.wait(HANG_S)
    assert [one.component for one in handle.progress().outages] == ["works"]
    MAY_END.set()
    assert handle.wait(HANG_S).acked == 1
    assert handle.progress().outages == ()


@pytest.mark.parametrize("where", ["warm up", "epoch"])
def test_a_full_disk_of_the_jvm_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    refused: list[int] = []
    run = InProcessPlanRunner.run

    def run_or_refuse(runner: InProcessPlanRunner, slices: Any, control: Any) -> Any:
        if len(refused) < 4 and (control.epoch < 0) == (where == "warm up"):
            refused.append(control.epoch)
            raise RuntimeError(
                "Lost task 0.7 (localhost executor driver): java.io.IOException: No space left on device\n"
            )
        return run(runner, slices, control)

    monkeypatch.setattr(InProcessPlanRunner, "run", run_or_refuse)
    t = Topology("full")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("numbers", items([N(1, ""), N(2, "")])))
    handle = begin_in_process(t, tmp_path / "state", max_restarts=0, max_attempts=1)
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.failed, len(refused)) == (2, 0, 4)
    assert handle.progress().outage_counts == {"Spark's local disk": 1}
    assert handle.progress().outages == ()


class Faulty(SplitSpout[N]):
    """Its author has made a mistake in `read`."""

    message_type = N

    def plan(self, max_rows: int, max_bytes: int) -> list[Split]:
        return [Split(1, 0, "faulty")]

    def read(self, split: Split) -> list[Any]:
        raise LookupError(f"a mistake in {split.source}")

    def snapshot(self) -> int:
        return 0

    def restore(self, position: int) -> None:
        pass


@pytest.mark.parametrize("begin", [begin_in_process, begin_locally])
def test_a_mistake_in_what_reads_a_piece_ends_the_run_and_is_waited_for_by_none(tmp_path: Path, begin: Any) -> None:
    t = Topology("faulty")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("faulty", Faulty()))
    run = begin(t, tmp_path / "state", max_restarts=0)
    with pytest.raises(UnusableDataError, match="LookupError: a mistake in faulty"):
        run.wait(HANG_S)
