"""Pipelines whose processes die side by side, whose disk is full, whose clock steps, whose services are away."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.routes.ledger.test_kills import ROOT, Kills
from tests.routes.running.pipelines import Asked, Batch, Config, Gathering, adapter
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, Split, fan_out, on_local, pipeline, route, states
from tests.until import until
from tupletree.errors import ConnectorError
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterResult, PipelineContext, Release
from tupletree.routes.document.spec import RouteSpec
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running.services import Services

Start = Callable[[Pipeline], PipelineRun]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """What adapters note is shared by all tests of a process."""
    Asked.calls.clear()
    Batch.batches.clear()


def side_by_side(folder: Path, point: str, count: int) -> None:
    """Two processes run the pipeline, with its batch adapter; one of them is killed in the middle."""
    kills = Kills(folder, separate=True)
    kills.run("none", 0)  # its files are there
    worker = "tests.routes.ledger.kill_worker"
    command = [sys.executable, "-m", worker, str(kills.home), kills.ledger, "beside", "none", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as survivor:
        while kills.killed == 0 and kills.executions < 20:
            kills.run(point, count)
        output, _ = survivor.communicate(timeout=120)
        assert survivor.returncode == 0
    kills.told.update(line for line in output.splitlines() if line.startswith("completed"))
    kills.run("none", 0)
    kills.judge()


@pytest.mark.nightly
@pytest.mark.parametrize(("point", "count"), [("before the commit", 3), ("leased", 9), ("published", 5), ("any", 17)])
def test_of_two_processes_with_a_batch_adapter_one_is_killed_and_children_are_exact(
    tmp_path: Path, point: str, count: int
) -> None:
    side_by_side(tmp_path, point, count)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_message_with_100_000_children_is_worked_to_its_end(tmp_path: Path) -> None:
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.two",)),
        route("two", adapter(Keep), at_once=500),
    )
    with p.run() as run:
        ended = run.execute({"count": 100_000}, route="split").wait(300)
        assert (ended.state, ended.total, ended.dead) == ("completed", 100_001, 0)
        assert states(run)["two"] == {"done": 100_000}


class Keep(Adapter[Config]):
    """Gives what it gets."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message)


@pytest.mark.parametrize("start", RUNTIMES)
def test_while_its_disk_is_full_a_pipeline_waits_and_then_goes_on_without_a_loss(tmp_path: Path, start: Start) -> None:
    with start(fan_out(tmp_path)) as run:
        broker = run.services.broker("q.split")
        assert isinstance(broker, SqliteBroker)
        connection = broker._file._connection
        begun = run.execute({"count": 300}, route="split")
        until(lambda: states(run).get("split") == {"done": 1} and "end" in states(run))  # each route has looked
        with broker._file.lock:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(ConnectorError, match="SQLITE_FULL"):
            run.execute({"count": 1, "text": "x" * 2_000_000}, route="split")
        open_before = begun.status().open
        with broker._file.lock:
            connection.execute("PRAGMA max_page_count = 1000000")
        ended = begun.wait(HANG_S)
        assert (ended.total, ended.dead) == (2 * 300 - 1, 1)
        assert open_before > 0
        worked = Counter(one["number"] for batch in Batch.batches for one in batch)
        assert set(worked) == set(range(300)) - {7, 9}


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_broker_that_goes_away_before_a_route_has_had_any_message_is_waited_for(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    lease = Services.lease

    def flaky(self: Services, route: RouteSpec, limit: int) -> Any:
        calls[route.name] += 1
        if 2 <= calls[route.name] <= 3:
            raise ConnectorError("the broker is away", where=route.name)
        return lease(self, route, limit)

    monkeypatch.setattr(Services, "lease", flaky)
    with start(fan_out(tmp_path)) as run:
        until(lambda: all(calls[route] > 3 for route in ("split", "judge", "end")))
        ended = run.execute({"count": 10}, route="split").wait(HANG_S)
        assert (ended.total, ended.dead) == (2 * 10 - 1, 1)


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Steps the clock of the machine by so many seconds."""
    real, ahead = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + ahead[0])

    def step(seconds: float) -> None:
        ahead[0] += seconds

    return step


@pytest.mark.parametrize("start", RUNTIMES)
@pytest.mark.parametrize("seconds", [-7200.0, pytest.param(7200.0, marks=pytest.mark.nightly)])
def test_a_clock_that_steps_neither_delays_nor_loses_anything(
    tmp_path: Path, start: Start, seconds: float, machine_clock: Callable[[float], None]
) -> None:
    far: dict[str, Any] = {"lease_seconds": 600.0}  # what had to wait for the end of a lease would be too late
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.judge",), **far),
        route("judge", adapter(Failing), adapter(Batch, size=4), out=("q.gather",), **far),
        route("gather", adapter(Sampling), **far),
    )
    with start(p) as run:
        for _ in range(2):
            begun = run.execute({"count": 6}, route="split")
            until(lambda: "judge" in states(run, begun.id))  # noqa: B023 - called at once
            machine_clock(seconds)
            ended = begun.wait(HANG_S)
            assert (ended.state, ended.total) == ("completed", 13)


class Failing(Adapter[Config]):
    """Fails at its first attempt."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        if context.attempt == 1:
            raise ValueError("at first")
        return AdapterResult(context.message)


class Sampling(Gathering):
    """Lets messages go after a tenth of a second, by what the context says of the time at the first look at them."""

    check_interval_s = 0.05
    since_s: dict[str, float] = {}  # noqa: RUF012 - on Spark each epoch has an instance of its own

    def process(self, context: PipelineContext) -> AdapterResult:
        self.since_s.setdefault(context.message.id, context.now_s())
        return super().process(context)

    def check(self, now_s: float) -> list[Release]:
        due = [one for one in self.held if now_s - self.since_s[one.message.id] >= 0.1]
        self.held = [one for one in self.held if one not in due]
        return [Release([one.message.id], [AdapterResult(one.message)]) for one in due]


class Service(Adapter[Config]):
    """Is away until it is said to be back."""

    is_back = False
    done: Counter[int] = Counter()  # noqa: RUF012 - shared on purpose

    async def process(self, context: PipelineContext) -> AdapterResult:
        if not self.is_back:
            raise ConnectorError("the service is away")
        self.done[context.message.payload["number"]] += 1
        return AdapterResult(context.message)


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_service_is_away_and_the_document_changes_before_it_is_back(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "is_back", False)
    Service.done.clear()
    split = route("split", adapter(Split), out=("q.call",))
    first = pipeline(tmp_path, split, route("call", adapter(Service), lease_seconds=1.0))
    with first.run(options={"drain_timeout_s": 0.3}) if start is on_local else start(first) as run:
        begun = run.execute({"count": 5}, route="split")
        until(lambda: states(run, begun.id).get("call", {}).get("processing"))
    changed = pipeline(
        tmp_path,
        split,
        route("call", adapter(Asked), adapter(Service), out=("q.more",), lease_seconds=1.0),
        route("more", adapter(Batch, size=2)),
    )
    with start(changed) as run:
        until(lambda: states(run, begun.id)["call"].get("processing"))
        Service.is_back = True
        ended = run.execution(begun.id).wait(HANG_S)
        assert (ended.state, ended.total, ended.dead) == ("completed", 11, 0)
        assert run.services.ledger.counts(begun.id)[0].failed_attempts == 0, "an outage is no attempt"
        assert set(Service.done) == set(range(5))
