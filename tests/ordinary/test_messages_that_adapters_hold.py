"""What a batch or a stateful adapter holds when its execution is cancelled, when it raises, and when the run stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.pipelines import Batch, Gathering, adapter, work
from tests.routes.running.pipelines import route as route_of
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, Split, is_holding, on_local, pipeline, route, states
from tests.routes.running.test_stateful import BATCHES, bench, bodies, values
from tests.until import until
from tupletree.data.frames import Frame
from tupletree.errors import ConnectorError
from tupletree.routes import AdapterResult, PipelineContext, Release
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running import queue_spout
from tupletree.routes.running.stateful import StatefulBolt

Start = Callable[[Pipeline], PipelineRun]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_spout, "CANCEL_S", 0.01)
    monkeypatch.setattr(Patient, "max_age_s", 3600.0)
    Batch.batches.clear()


class Patient(Batch):
    """Its batches wait until they are full."""

    max_age_s = 3600.0


class Keeping(Gathering):
    """Releases nothing, at a stop either."""

    def check(self, now_s: float) -> Sequence[Release]:
        return []

    def flush(self, now_s: float) -> Sequence[Release]:
        return []


def hold_and_cancel(run: PipelineRun, held: int = 1) -> None:
    """One message is held, and its execution is cancelled."""
    cancelled = run.execute({"number": 1})
    until(lambda: is_holding(run, held))
    cancelled.cancel()
    until(lambda: run.services.is_cancelled(cancelled.id))


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_cancelled_message_in_half_a_batch_is_not_worked_with_those_that_come_later(
    tmp_path: Path, start: Start
) -> None:
    with start(pipeline(tmp_path, route("one", adapter(Patient, size=7)))) as run:
        hold_and_cancel(run)
        Patient.max_age_s = 0.0
        second, third = run.execute({"number": 2}), run.execute({"number": 3})
        assert {second.wait(HANG_S).state, third.wait(HANG_S).state} == {"completed"}
        assert sorted(one["number"] for batch in Batch.batches for one in batch) == [2, 3]
        assert states(run)["one"] == {"done": 2, "cancelled": 1}
        until(lambda: run.services.broker("q.one").depth("q.one").open == 0)


def test_a_cancelled_message_in_half_a_batch_is_not_worked_at_the_stop(tmp_path: Path) -> None:
    p = pipeline(tmp_path, route("one", adapter(Patient, size=7)))
    with p.run() as run:
        hold_and_cancel(run)
        run.execute({"number": 2})
        until(lambda: is_holding(run, 2))
    assert Batch.batches == [[{"number": 2}]]
    with p.open() as idle:
        assert states(idle)["one"] == {"done": 1, "cancelled": 1}


def test_a_stateful_adapter_is_not_called_for_cancelled_messages_and_what_it_holds_of_them_ends() -> None:
    cancelled: set[str] = set()
    b = bench(route_of(adapter(Gathering)), StatefulBolt, is_cancelled=cancelled.__contains__)
    b.give({"number": 1})
    cancelled.add("e")
    ended = b.give({"number": 2, "do": "release"})
    assert [one.outcome for one in ended] == ["cancelled"] * 2
    assert b.task.due_s is None


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_stop_does_not_wait_for_what_an_adapter_never_releases(tmp_path: Path, start: Start) -> None:
    p = pipeline(tmp_path, route("one", adapter(Keeping)))
    with start(p) as run:
        begun = run.execute({"number": 1})
        until(lambda: is_holding(run, 1))
        stopping_s = time.monotonic()
    assert time.monotonic() - stopping_s < 15, "a drain may take 30 s"
    if start is not on_local:
        return  # there it stays held, for the next start
    with p.open() as idle:
        assert states(idle)["one"] == {"pending": 1}
        assert idle.services.broker("q.one").depth("q.one").ready == 1
        assert idle.services.ledger.messages(begun.id)[0].failures == 0, "that is no attempt"


class Raising(Gathering):
    """Its `check` raises what it is told to."""

    error: Exception | None = None

    def check(self, now_s: float) -> Sequence[Release]:
        if self.error is not None:
            raise self.error
        return super().check(now_s)


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> type[Raising]:
    monkeypatch.setattr(Raising, "error", None)
    return Raising


def test_a_check_that_raises_loses_no_result_and_fails_an_attempt_of_what_is_held(raising: type[Raising]) -> None:
    b = bench(route_of(adapter(raising)), StatefulBolt)
    b.give({"number": 1})
    raising.error = ValueError("in check")
    passed, failed = b.give({"do": "pass", "number": 2})
    assert (passed.outcome, bodies(passed)) == ("done", [{"do": "pass", "number": 2}])
    assert (failed.outcome, failed.reason, failed.permanent) == ("failed", "in check", False)
    assert b.task.due_s is None, "nothing is held any more"
    raising.error = None
    b.give({"number": 3})
    raising.error = ValueError("later")
    (later,) = b.later(5.0)
    assert (later.outcome, later.reason) == ("failed", "later")


def test_an_outage_of_a_check_loses_no_result_either_and_it_is_made_again(raising: type[Raising]) -> None:
    b = bench(route_of(adapter(raising)), StatefulBolt)
    b.give({"number": 1})
    raising.error = ConnectorError("away")
    (passed,) = b.give({"do": "pass", "number": 2})
    assert passed.outcome == "done"
    assert b.task.due_s is not None
    assert b.task.due_s <= b.place.epoch_time_s, "at once"
    assert isinstance(b.task.advance().outage, ConnectorError)
    raising.error = None
    (ended,) = values(b.task.flush())
    assert bodies(ended) == [{"numbers": [1]}]


class Flaky(Gathering):
    """Its `process` meets an outage at messages that say so, as long as the service is away; notes its calls."""

    is_away = True
    taken = -1  # the number that it takes though
    calls: list[int] = []  # noqa: RUF012 - shared on purpose

    def process(self, context: PipelineContext) -> AdapterResult:
        payload = context.message.payload
        self.calls.append(payload["number"])
        if payload.get("do") == "cancelled":
            raise asyncio.CancelledError
        if payload.get("away") and Flaky.is_away and payload["number"] != Flaky.taken:
            raise ConnectorError("away")
        return super().process(context)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    monkeypatch.setattr(Flaky, "is_away", True)
    monkeypatch.setattr(Flaky, "taken", -1)
    Flaky.calls.clear()
    return Flaky


def test_an_outage_of_process_loses_no_result_and_no_message_is_processed_twice(flaky: type[Flaky]) -> None:
    b = bench(route_of(adapter(flaky)), StatefulBolt)
    passed = b.give(
        {"number": 0, "do": "pass"},
        {"number": 1},
        {"number": 2, "do": "pass", "away": True},
        {"number": 3, "do": "pass"},
    )
    assert [bodies(one)[0]["number"] for one in passed] == [0]
    assert b.held == ["m11"]
    assert b.task.due_s is not None
    assert b.task.due_s <= b.place.epoch_time_s, "at once"
    assert isinstance(b.task.advance().outage, ConnectorError)
    assert flaky.calls == [0, 1, 2, 2]
    flaky.is_away = False
    passed = values(b.task.resume())
    assert [bodies(one)[0]["number"] for one in passed] == [2, 3]
    assert flaky.calls == [0, 1, 2, 2, 2, 3]
    (gathered,) = b.give({"number": 4, "do": "release"})
    assert bodies(gathered) == [{"numbers": [1, 4]}]


def test_an_outage_while_the_rest_is_processed_loses_no_result_either(flaky: type[Flaky]) -> None:
    b = bench(route_of(adapter(flaky)), StatefulBolt)
    away = {"number": 1, "do": "pass", "away": True}
    assert len(b.give({"number": 0, "do": "pass"}, away, {**away, "number": 2})) == 1
    flaky.taken = 1
    worked = b.task.advance()
    assert (len(values(worked)), worked.outage) == (1, None)
    assert isinstance(b.task.advance().outage, ConnectorError)
    flaky.is_away = False
    assert len(values(b.task.resume())) == 1
    assert flaky.calls == [0, 1, 1, 2, 2, 2]


def test_an_outage_of_the_first_message_is_one_of_the_call(flaky: type[Flaky]) -> None:
    b = bench(route_of(adapter(flaky)), StatefulBolt)
    works = [work({"number": number, "do": "pass", "away": True}, f"m{number}") for number in (1, 2)]
    worked = b.task.work(Frame(5, "s", "Work", works, [1, 2], [1, 2], 1))
    assert isinstance(worked.outage, ConnectorError)
    assert sorted(b.task.waiting()) == [1, 2]
    flaky.is_away = False
    assert len(values(b.task.resume())) == 2
    assert flaky.calls == [1, 1, 2]


def test_a_call_that_cancels_itself_fails_its_message_alone(flaky: type[Flaky]) -> None:
    b = bench(route_of(adapter(flaky)), StatefulBolt)
    ended = b.give({"number": 0, "do": "pass"}, {"number": 1, "do": "cancelled"}, {"number": 2, "do": "pass"})
    assert [one.outcome for one in ended] == ["done", "failed", "done"]
    assert flaky.calls == [0, 1, 2]


def test_what_an_outage_left_unprocessed_is_forgotten_cancelled_and_given_back_as_what_is_held(
    flaky: type[Flaky],
) -> None:
    cancelled: set[str] = set()
    one, two = {"number": 0, "do": "pass"}, {"number": 1, "away": True}
    b = bench(route_of(adapter(flaky)), StatefulBolt, is_cancelled=cancelled.__contains__)
    assert len(b.give(one, two)) == 1
    b.task.forget([11])
    assert b.task.due_s is None
    assert len(b.give(one, two)) == 1
    given_back = values(b.task.flush())
    assert [(each.outcome, each.messages[0].id) for each in given_back] == [("cancelled", "m21")]
    assert len(b.give(one, two)) == 1
    calls = len(flaky.calls)
    cancelled.add("e")
    assert [each.outcome for each in values(b.task.advance())] == ["cancelled"]
    assert (len(flaky.calls), b.task.due_s) == (calls, None)


class Deduping(Flaky):
    """Filters what it has seen, and meets an outage once, at the third message it sees."""

    check_interval_s = 0.05
    seen: set[int] = set()  # noqa: RUF012 - shared on purpose: a store outside

    def process(self, context: PipelineContext) -> AdapterResult | None:  # type: ignore[override]
        number = context.message.payload["number"]
        self.calls.append(number)
        if Flaky.is_away and len(self.seen) == 2:
            Flaky.is_away = False
            raise ConnectorError("away")
        if number in self.seen:
            return None
        self.seen.add(number)
        return AdapterResult(context.message)


@pytest.mark.parametrize("start", RUNTIMES)
def test_an_adapter_that_filters_duplicates_takes_no_message_for_one_of_itself_after_an_outage(
    tmp_path: Path, start: Start, flaky: type[Flaky]
) -> None:
    Deduping.seen.clear()
    p = pipeline(tmp_path, route("split", adapter(Split), out=("q.one",)), route("one", adapter(Deduping), at_once=20))
    with start(p) as run:
        begun = run.execute({"count": 12}, route="split")
        assert begun.wait(HANG_S).state == "completed"
        assert states(run, begun.id)["one"] == {"done": 12}
    assert len(flaky.calls) == 13, "only the one that met the outage twice"


def test_an_outage_after_a_full_batch_loses_no_result() -> None:
    b = bench(BATCHES)
    numbers = [{"number": number} for number in range(3)]
    ended = b.give(*numbers, {"number": 3, "do": "away"}, {"number": 4}, {"number": 5})
    assert [one.outcome for one in ended] == ["done"] * 3
    assert Batch.batches[0] == numbers
    away = b.task.advance()
    assert isinstance(away.outage, ConnectorError)
    assert [batch[0]["number"] for batch in Batch.batches] == [0, 3, 3]


def test_results_of_a_release_go_to_their_messages_also_where_one_of_them_is_over() -> None:
    class Sorting(Gathering):
        def flush(self, now_s: float) -> Sequence[Release]:
            held, self.held, self.is_ready = self.held, [], False
            return [Release([one.message.id for one in held], [AdapterResult(one.message) for one in held])]

    b = bench(route_of(adapter(Sorting)), StatefulBolt)
    b.give({"number": 1}, {"number": 2}, {"number": 3})
    b.task.forget([11])
    ended = values(b.task.flush())
    assert [(one.messages[0].id, bodies(one)) for one in ended] == [("m10", [{"number": 1}]), ("m12", [{"number": 3}])]


def test_a_batch_call_that_ignores_its_cancellation_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Batch):
        async def process_batch(self, contexts: Sequence[PipelineContext]) -> Any:
            until_s = asyncio.get_running_loop().time() + 0.3
            while asyncio.get_running_loop().time() < until_s:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.1)

    b = bench(route_of(adapter(Stubborn, size=1), timeout_seconds=0.02), grace_s=0.02)
    with caplog.at_level(logging.ERROR):
        (ended,) = b.give({"number": 0})
    assert (ended.outcome, ended.error) == ("failed", "TimeoutError")
    assert "adapter stubborn has not ended 0.02 s after its call was cancelled, and is left behind" in caplog.text
