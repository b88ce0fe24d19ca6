"""Whole pipelines on the local runtime, and on that of Spark in process: what the ledger says in the end."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.pipelines import Asked, Batch, Config, Gathering, adapter
from tests.until import until
from tupletree.config import resolve_options
from tupletree.queues import Message, connect
from tupletree.routes import Adapter, AdapterResult, BatchAdapter, Emitted, PipelineContext, PipelineSpec, RouteSpec
from tupletree.routes.document.spec import AdapterSpec, ErrorHandling, Inbound, Limits, LineageSpec
from tupletree.routes.ledger.values import Completed
from tupletree.routes.payloads import decode, encode
from tupletree.routes.pipeline import Pipeline, PipelineRun
from tupletree.routes.running.services import services
from tupletree.runtimes.api import RunRequest
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0
QUICK = ErrorHandling(max_retries=1, retry_delay_seconds=0.05)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Asked.calls.clear()
    Batch.batches.clear()


class Split(Adapter[Config]):
    """Emits as many numbers as the payload says."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(None, [Emitted({"number": number}) for number in range(context.message.payload["count"])])


class Choose(Adapter[Config]):
    """Chooses a queue by the payload, as a switch."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message, queue=context.message.payload["queue"])


class EmitAll(BatchAdapter[Config]):
    """Emits a message for each member: as results of one each, as one of all, or as two of all."""

    max_age_s = 0.2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.size = config.size

    def process_batch(self, contexts: Sequence[PipelineContext]) -> Any:
        results = [AdapterResult(None, [Emitted(one.message.payload)]) for one in contexts]
        emitted = [one.emitted[0] for one in results]
        match self.config.say:
            case "each":
                return results
            case "one":
                return AdapterResult(None, emitted)
            case _:
                return [AdapterResult(None, emitted[:1]), AdapterResult(None, emitted[1:]), AdapterResult(None, [])]


class Judge(Adapter[Config]):
    """Fails 5 at first and 7 always, and filters 9."""

    async def process(self, context: PipelineContext) -> AdapterResult | None:
        number = context.message.payload["number"]
        if (number == 5 and context.attempt == 1) or number == 7:
            raise ValueError(f"{number}")
        return None if number == 9 else AdapterResult(context.message)


class Countdown(Adapter[Config]):
    """Gives one less, until nothing is left."""

    async def process(self, context: PipelineContext) -> AdapterResult | None:
        left = context.message.payload["left"]
        return AdapterResult(context.message.with_payload({"left": left - 1})) if left else None


def route(
    name: str, *adapters: AdapterSpec, inbound: str = "", out: tuple[str, ...] = (), at_once: int = 8, **settings: Any
) -> RouteSpec:
    return RouteSpec(
        name,
        Inbound(queue=inbound or f"q.{name}", concurrency=at_once),
        adapters,
        out,
        error_handling=settings.pop("error_handling", QUICK),
        **settings,
    )


def pipeline(home: Path, *routes: RouteSpec, **settings: Any) -> Pipeline:
    spec = PipelineSpec("p", {one.name: one for one in routes}, **{"lineage": LineageSpec(level="off"), **settings})
    return Pipeline(spec, home=home)


def fan_out(home: Path, **settings: Any) -> Pipeline:
    """split → judge and batch → end."""
    return pipeline(
        home,
        route("split", adapter(Split), out=("q.judge",)),
        route("judge", adapter(Judge), adapter(Batch, size=4), out=("q.end",)),
        route("end"),
        **settings,
    )


def on_local(p: Pipeline) -> PipelineRun:
    return p.run()


def in_process_spark(p: Pipeline) -> PipelineRun:
    """The Spark runtime's driver, stages and settling, without a JVM."""
    run = p.run_spec(key=str(p.home), lease_limit=1000)
    p.home.mkdir(parents=True, exist_ok=True)
    shared = services.acquire(run)
    topology = p.topology(run, tasks=2)
    options = resolve_options(code={**topology.build().options, "epoch_min_interval_ms": 0})
    request = RunRequest(topology, options, None, p.spark_folder(run, topology), append=False, master="", redact=None)
    return PipelineRun(p.spec, run, shared, start_in_process(request, 2))


RUNTIMES: list[Callable[[Pipeline], PipelineRun]] = [on_local, in_process_spark]


def is_holding(run: PipelineRun, count: int) -> bool:
    """Whether the only route holds so many messages; on Spark they are open in the run."""
    held = run.services.gates.status()["one"].held
    return held == count or (run.handle is not None and run.handle.progress().open == count)


def states(run: PipelineRun, execution: str = "") -> dict[str, dict[str, int]]:
    """Route → state → messages."""
    found = run.services.ledger.counts(execution, pipeline="" if execution else "p")
    return {one.route: {state: count for state, count in one.states.items() if count} for one in found}


@pytest.mark.parametrize("say", ["each", "one", "three"])
@pytest.mark.parametrize("start", RUNTIMES)
def test_what_a_batch_emits_goes_to_the_queue_that_was_chosen_for_all_of_it(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun], say: str
) -> None:
    one = route("one", adapter(Choose), adapter(EmitAll, say=say, size=2), out=("q.a", "q.b"))
    with start(pipeline(tmp_path, one, route("a", inbound="q.a"), route("b", inbound="q.b"))) as run:
        begun = [run.execute({"queue": "q.a", "n": number}, route="one") for number in range(2)]
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}
        found = states(run)
        assert found.keys() == {"one", "a"}
        # What two executions made together is counted in both.
        assert (found["one"], [*found["a"]]) == ({"done": 2}, ["done"])


@pytest.mark.parametrize("start", RUNTIMES)
def test_every_message_is_accounted_for_and_the_end_is_told_once(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun]
) -> None:
    told: list[str] = []
    with start(fan_out(tmp_path)) as run:
        run.on_completed(lambda one: told.append(one.execution))
        begun = run.execute({"count": 20}, route="split")
        ended = begun.wait(HANG_S)
        assert states(run, begun.id) == {
            "split": {"done": 1},
            "judge": {"done": 18, "filtered": 1, "dead": 1},
            "end": {"done": 18},
        }
    assert (ended.state, ended.total, ended.dead, ended.open) == ("completed_with_dead_letters", 39, 1, 0)
    assert told == [begun.id]


def test_the_same_pipeline_gives_the_same_ledger_on_both_runtimes(tmp_path: Path) -> None:
    """Messages, outcomes, reasons and parents, by what they are and not by when."""

    def ledger_of(start: Callable[[Pipeline], PipelineRun], home: Path) -> Counter[Any]:
        with start(fan_out(home)) as run:
            execution = run.execute({"count": 30}, route="split", execution="same").wait(HANG_S)
            assert not execution.open
            found = run.services.ledger.messages("same", limit=1000)
            accounts = [run.services.ledger.message(one.id) for one in found]
            return Counter(
                (
                    one.message.id,
                    one.message.route,
                    one.message.state,
                    one.message.failures,
                    one.message.reason,
                    *sorted(one.parents),
                )
                for one in accounts
                if one is not None
            )

    local, spark = (ledger_of(start, tmp_path / str(number)) for number, start in enumerate(RUNTIMES))
    assert local == spark
    assert sum(local.values()) == 59


@pytest.mark.parametrize("start", RUNTIMES)
def test_what_others_publish_is_an_execution_of_its_own(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun]
) -> None:
    told: list[Completed] = []
    p = fan_out(tmp_path, on_complete="q.complete")
    with start(p) as run:
        run.on_completed(told.append)
        broker = run.services.broker("q.split")
        broker.publish("q.split", [Message(id=f"m{count}", body=encode({"count": count})) for count in (1, 2, 3)])
        until(lambda: len(told) == 3)
        assert sorted(one.total for one in told) == [3, 5, 7]
        complete = run.services.broker("q.complete").lease("q.complete", 10)
        assert {decode(one.message.body)["execution"] for one in complete} == {one.execution for one in told}


def test_routes_that_feed_each_other_with_every_limit_1_do_not_wait_for_each_other(tmp_path: Path) -> None:
    p = pipeline(
        tmp_path,
        RouteSpec("a", Inbound(queue="q.a", concurrency=1, prefetch=50), (adapter(Countdown),), ("q.b",)),
        RouteSpec("b", Inbound(queue="q.b", concurrency=1, prefetch=50), (adapter(Countdown),), ("q.a",)),
        limits=Limits(max_handlers=1, max_fanout_pending=1),
    )
    with p.run() as run:
        begun = [run.execute({"left": 9}, route=name) for name in "abab"]
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_stop_works_the_batch_that_is_not_full_or_leaves_it_for_the_next_start(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun]
) -> None:
    class Hour(Batch):
        max_age_s = 3600.0

    p = pipeline(tmp_path, route("one", adapter(Hour, size=100)))
    with start(p) as run:
        begun = [run.execute({"number": number}, route="one") for number in range(7)]
        until(lambda: is_holding(run, 7))
    with p.open() as run:
        assert all(one.state in {"completed", "interrupted"} for one in (run.execution(b.id).status() for b in begun))
        worked = sum(len(batch) for batch in Batch.batches)
        assert worked in {0, 7}
        assert sum(not run.execution(b.id).status().open for b in begun) == worked


def test_an_execution_that_is_cancelled_ends_and_its_messages_are_not_worked(tmp_path: Path) -> None:
    p = pipeline(tmp_path, route("one", adapter(Asked, say="a", seconds=60.0)))
    with p.open() as idle:
        waiting = idle.execute({}, route="one")
        waiting.cancel("not needed")
    with p.run() as run:
        running = run.execute({"do": {"a": "wait"}}, route="one")
        until(lambda: any(one.startswith("a ") for one in Asked.calls))
        running.cancel()
        assert running.wait(HANG_S).state == "cancelled"
        after = run.execute({}, route="one")
        assert after.status().state in {"running", "completed"}
    assert len([one for one in Asked.calls if one.startswith("a ")]) <= 2, "the one that waited was not worked"


def test_a_dead_letter_goes_to_the_queue_that_the_route_names(tmp_path: Path) -> None:
    handling = ErrorHandling(max_retries=0, dead_letter_queue="q.dead")
    p = pipeline(tmp_path, route("one", adapter(Asked, say="a"), error_handling=handling))
    with p.run() as run:
        ended = run.execute({"do": {"a": "raise"}, "id": 4}, route="one").wait(HANG_S)
        (letter,) = run.services.broker("q.dead").lease("q.dead", 10)
    assert ended.state == "failed", "its first message is dead"
    assert decode(letter.message.body) == {"do": {"a": "raise"}, "id": 4}


class Mended(Adapter[Config]):
    """Refuses everything until it is mended."""

    is_mended = False

    async def process(self, context: PipelineContext) -> AdapterResult:
        if not Mended.is_mended:
            raise ValueError("not yet")
        return AdapterResult(context.message)


@pytest.mark.parametrize("start", RUNTIMES)
def test_what_comes_of_a_replayed_dead_letter_is_worked_by_the_routes_that_follow(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mended, "is_mended", False)
    p = pipeline(
        tmp_path,
        route("one", adapter(Mended), adapter(Countdown), inbound="q", out=("q.two", "q.one")),
        route("two", adapter(Asked), out=("q.end",)),
        route("again", adapter(Countdown), inbound="q.one", out=("q.one",)),
        route("end"),
    )
    with start(p) as run:
        begun = run.execute({"left": 3}, route="one")
        assert begun.wait(HANG_S).state == "failed"
        Mended.is_mended = True
        [dead] = run.services.ledger.messages(begun.id, state="dead")
        assert run.services.ledger.replay([dead.id])
        assert begun.wait(HANG_S).state == "completed"
        assert len(run.services.ledger.executions("p")) == 1
        assert states(run, begun.id) == {
            "one": {"done": 1},
            "two": {"done": 1},
            "again": {"done": 2, "filtered": 1},
            "end": {"done": 1},
        }


def test_an_attempt_that_is_stopped_does_not_count(tmp_path: Path) -> None:
    p = pipeline(tmp_path, route("one", adapter(Asked, say="a", seconds=60.0)))
    with p.run() as run:
        begun = run.execute({"do": {"a": "wait"}}, route="one")
        until(lambda: any(one.startswith("a ") for one in Asked.calls))
        assert run.handle is not None
        run.handle.stop(drain_timeout_s=0.1)
    with p.open() as run:
        (row,) = run.services.ledger.messages(begun.id)
        assert (row.failures, row.state) == (0, "pending")
        (delivery,) = run.services.broker("q.one").lease("q.one", 10)
        assert delivery.deliveries == 1


def test_a_child_that_waits_for_its_next_attempt_keeps_the_execution_running(tmp_path: Path) -> None:
    slow = ErrorHandling(max_retries=5, retry_delay_seconds=0.6, backoff_factor=1.0)
    p = pipeline(
        tmp_path, route("split", adapter(Split), out=("q.judge",)), route("judge", adapter(Judge), error_handling=slow)
    )
    with p.run() as run:
        begun = run.execute({"count": 6}, route="split")
        until(lambda: states(run, begun.id).get("judge", {}) == {"done": 5, "retrying": 1})
        status = begun.status()
        assert (status.state, status.open) == ("running", 1)
        assert begun.wait(HANG_S).state == "completed"


@pytest.mark.parametrize("start", RUNTIMES)
def test_pipelines_of_other_names_share_a_folder(tmp_path: Path, start: Callable[[Pipeline], PipelineRun]) -> None:
    first = fan_out(tmp_path)
    other = Pipeline(dataclasses.replace(first.spec, name="other"), home=tmp_path)
    for one in (first, other, first):
        with start(one) as run:
            assert run.execute({"count": 3}, route="split").wait(HANG_S).state == "completed"


def test_two_runs_of_the_same_pipeline_share_its_queues_and_its_ledger(tmp_path: Path) -> None:
    p = fan_out(tmp_path)
    with p.run() as one, p.run(only=["judge"]) as two:
        ended = one.execute({"count": 40}, route="split").wait(HANG_S)
        assert (ended.total, ended.open) == (1 + 40 + 38, 0)
        assert two.handle is not None
        # The end of the execution is told within the last settlement, and the run hears of that a moment later.
        until(lambda: sum(run.handle.progress().acked for run in (one, two) if run.handle) >= ended.total)


def test_an_execution_whose_run_ends_before_it_is_interrupted_and_goes_on_with_the_next(tmp_path: Path) -> None:
    p = pipeline(tmp_path, route("one", adapter(Asked, say="a", seconds=0.3)))
    with p.run() as run:
        begun = run.execute({"do": {"a": "wait"}}, route="one")
        assert run.handle is not None
        run.handle.stop(drain_timeout_s=0.0)
    with p.open() as idle:
        assert idle.execution(begun.id).status().state == "interrupted"
    with p.run() as run:
        assert run.execution(begun.id).status().state in {"running", "completed"}
        assert run.execution(begun.id).wait(HANG_S).state == "completed"


def test_a_listener_that_raises_fails_no_message(tmp_path: Path) -> None:
    told: list[str] = []

    def broken(completed: Completed) -> None:
        told.append(completed.execution)
        raise ValueError("not this")

    with pipeline(tmp_path, route("one")).run() as run:
        run.on_completed(broken)
        begun = [run.execute({}, route="one") for _ in range(3)]
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}
        until(lambda: len(told) == 3)
        assert run.handle is not None
        assert run.handle.progress().failed == 0


@pytest.mark.spark
@pytest.mark.xdist_group("session")
def test_it_runs_on_spark(tmp_path: Path) -> None:
    with fan_out(tmp_path).run(runtime="spark") as run:
        begun = run.execute({"count": 20}, route="split")
        ended = begun.wait(HANG_S)
        assert states(run, begun.id) == {
            "split": {"done": 1},
            "judge": {"done": 18, "filtered": 1, "dead": 1},
            "end": {"done": 18},
        }
    assert ended.state == "completed_with_dead_letters"


def test_what_a_request_left_in_the_outbox_is_published_while_the_pipeline_runs(tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    p = pipeline(tmp_path / "home", route("one", adapter(Judge)), queues={"q.one": elsewhere})
    with p.run() as run:
        begun = run.execute({"number": 7}, route="one")
        assert begun.wait(HANG_S).state == "failed"
        run.services.ledger.replay([run.services.ledger.messages(begun.id)[0].id])
        until(lambda: run.services.ledger.message(begun.status().init).message.failures == 2)  # type: ignore[union-attr]  # it is there
        assert begun.wait(HANG_S).state == "failed"


def test_async_code_waits_for_the_end(tmp_path: Path) -> None:
    with fan_out(tmp_path).run() as run:
        ended = asyncio.run(run.execute({"count": 3}, route="split").completed())
    assert (ended.state, ended.total) == ("completed", 7)


@pytest.mark.parametrize("start", RUNTIMES)
def test_a_stateful_adapter_holds_messages_on_both_runtimes(
    tmp_path: Path, start: Callable[[Pipeline], PipelineRun]
) -> None:
    p = pipeline(tmp_path, route("one", adapter(Gathering), out=("q.end",), at_once=1), route("end"))
    with start(p) as run:
        begun = [run.execute({"number": number}, route="one") for number in range(3)]
        until(lambda: run.handle is not None and run.handle.progress().open == 3)
        begun.append(run.execute({"number": 3, "do": "release"}, route="one"))
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}


def test_a_queue_elsewhere_is_settled_by_the_outbox(tmp_path: Path) -> None:
    """Another file is another broker: the ledger's transaction and the broker's are two."""
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    p = fan_out(tmp_path / "home", queues={"q.judge": elsewhere, "q.end": elsewhere})
    with p.run() as run:
        ended = run.execute({"count": 20}, route="split").wait(HANG_S)
    assert (ended.total, ended.dead, ended.open) == (39, 1, 0)
    with connect(elsewhere) as broker:
        assert broker.depth("q.judge").dead == 1
        assert broker.depth("q.judge").open + broker.depth("q.end").open == 0
