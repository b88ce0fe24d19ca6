"""One message through the adapters of a route: order, ends, failures, timeouts, and what is recorded."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.routes.running.pipelines import Asked, Plain, adapter, route, work
from tupletree.errors import ConnectorError
from tupletree.routes import CallRecord, RouteSpec, Settlement, Standing, Work
from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.ids import child_id
from tupletree.routes.payloads import canonical_hash, decode
from tupletree.routes.running.chain import AdapterSurroundings, Chain


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    Asked.calls.clear()
    Plain.running = Plain.most = 0
    yield
    Plain.stuck.set()
    Plain.stuck.clear()


def walk(
    chain: RouteSpec, *given: Any, stop: int | None = None, grace_s: float = 0.05, records: bool = True
) -> list[Any]:
    """What came of each message, all given at once."""

    async def run() -> list[Any]:
        surroundings = AdapterSurroundings(records=records, grace_s=grace_s, now_s=lambda: 7.0)
        chained = Chain(chain, 0, len(chain.adapters) if stop is None else stop, surroundings)
        await chained.open()
        try:
            works = [one if isinstance(one, Work) else work(one, f"m{number}") for number, one in enumerate(given)]
            return await asyncio.gather(*(chained.work(one) for one in works), return_exceptions=True)
        finally:
            await chained.close()

    return asyncio.run(run())


def settled(chain: RouteSpec, payload: Any, **others: Any) -> tuple[Settlement, list[CallRecord]]:
    (outcome,) = walk(chain, payload, **others)
    if isinstance(outcome, BaseException):
        raise outcome
    assert isinstance(outcome[-1], Settlement)
    return outcome[-1], outcome[:-1]


ABC = route(adapter(say="a"), adapter(say="b"), adapter(say="c"))


def test_adapters_are_called_in_order_each_with_what_the_one_before_gave() -> None:
    settlement, records = settled(ABC, {"n": 1})
    assert Asked.calls == ["open a", "open b", "open c", "a m0", "b m0", "c m0", "close", "close", "close"]
    (child,) = settlement.children
    assert (settlement.outcome, child.queue, child.headers) == ("done", "out", {"h": "1"})
    assert decode(child.body) == {"n": 1, "seen": ["a", "b", "c"]}
    assert [(one.adapter, one.position, one.status, one.attempt) for one in records] == [
        ("a", 0, "completed", 1),
        ("b", 1, "completed", 1),
        ("c", 2, "completed", 1),
    ]
    assert records[0].input_hash == canonical_hash({"n": 1})
    assert records[0].output_hash == records[1].input_hash != records[1].output_hash


def test_none_ends_the_chain_as_filtered_and_nothing_is_published() -> None:
    settlement, records = settled(ABC, {"do": {"b": "none"}})
    assert (settlement.outcome, settlement.children, settlement.adapter) == ("filtered", [], "b")
    assert [one.status for one in records] == ["completed", "filtered"]
    assert "c m0" not in Asked.calls


def test_an_adapter_may_end_the_chain_with_a_reason() -> None:
    settlement, records = settled(ABC, {"do": {"a": "stop"}})
    assert (settlement.outcome, settlement.reason) == ("filtered", "enough")
    assert records[-1].error == "enough"


def test_what_is_emitted_is_published_beside_the_message_and_before_a_filter_too() -> None:
    settlement, _ = settled(ABC, {"do": {"a": "emit"}})
    assert [decode(one.body).get("of") for one in settlement.children] == ["a", None]
    settlement, _ = settled(ABC, {"do": {"a": "emit", "b": "none"}})
    assert (settlement.outcome, [decode(one.body) for one in settlement.children]) == ("filtered", [{"of": "a"}])


def test_pieces_without_a_message_are_the_outcome() -> None:
    settlement, records = settled(ABC, {"do": {"b": "split"}})
    assert settlement.outcome == "done"
    assert [decode(one.body) for one in settlement.children] == [{"part": one} for one in range(3)]
    assert [one.status for one in records] == ["completed", "completed"]


def test_children_are_named_by_where_they_come_from_so_that_an_attempt_made_twice_gives_the_same() -> None:
    two = route(adapter(say="a"), adapter(say="b"), outbound=("out", "copy"))
    first, _ = settled(two, {"do": {"a": "emit"}})
    again, _ = settled(two, {"do": {"a": "emit"}})
    ids = [one.id for one in first.children]
    assert ids == [one.id for one in again.children]
    assert len(set(ids)) == 4, "of a and of the end, each for two queues"
    assert ids[0] == child_id(["m0"], "r", 0, 0, "out")


def test_an_adapter_that_raises_fails_the_attempt_and_nothing_is_published() -> None:
    settlement, records = settled(ABC, {"do": {"a": "emit", "b": "raise"}})
    assert (settlement.outcome, settlement.children, settlement.permanent) == ("failed", [], False)
    assert (settlement.error, settlement.reason, settlement.adapter) == ("ValueError", "b", "b")
    assert "in process" in settlement.traceback
    assert (records[-1].status, records[-1].error) == ("failed", "ValueError: b")
    (standing,) = settlement.messages
    assert decode(standing.body) == {"do": {"a": "emit", "b": "raise"}}, "what was delivered, for a dead letter"


def test_a_permanent_error_says_so_and_so_does_what_is_no_result() -> None:
    assert settled(ABC, {"do": {"a": "permanent"}})[0].permanent
    wrong, _ = settled(ABC, {"do": {"a": "wrong"}})
    assert wrong.permanent
    assert "gave what is no result" in wrong.reason


@pytest.mark.parametrize("do", ["exit", "cancel"])
def test_whatever_an_adapter_raises_fails_its_own_message_only(do: str) -> None:
    first, second = walk(ABC, {"do": {"b": do}}, {})
    assert first[-1].outcome == "failed"
    assert second[-1].outcome == "done"


def test_an_outage_is_no_attempt() -> None:
    (outcome,) = walk(ABC, {"do": {"b": "away"}})
    assert isinstance(outcome, ConnectorError)


def test_a_queue_that_is_not_outbound_is_named() -> None:
    settlement, _ = settled(route(adapter(say="a", queue="else")), {"do": {"a": "emit"}})
    assert (settlement.outcome, settlement.permanent) == ("failed", True)
    assert "'else'" in settlement.reason
    settlement, _ = settled(route(adapter(say="a"), outbound=()), {"do": {"a": "emit"}})
    assert "no outbound queue" in settlement.reason


def test_a_route_without_outbound_queues_or_adapters_is_done_with_what_comes() -> None:
    assert settled(route(adapter(say="a"), outbound=()), {})[0].children == []
    settlement, records = settled(route(), {"n": 1})
    assert (decode(settlement.children[0].body), records) == ({"n": 1}, [])


def test_a_false_condition_skips_the_adapter_and_the_message_passes_unchanged() -> None:
    only_b = Condition(field="payload.kind", operator="equals", value="b")
    settlement, records = settled(route(adapter(say="a", condition=only_b), adapter(say="b")), {"kind": "a"})
    assert decode(settlement.children[0].body) == {"kind": "a", "seen": ["b"]}
    assert [one.status for one in records] == ["skipped", "completed"]


def test_a_call_that_takes_too_long_is_cancelled_and_fails_the_attempt() -> None:
    slow = route(adapter(say="a", seconds=30.0), timeout_seconds=0.05)
    settlement, records = settled(slow, {"do": {"a": "wait"}})
    assert (settlement.outcome, settlement.error, settlement.permanent) == ("failed", "TimeoutError", False)
    assert "timeout_seconds (0.05)" in settlement.reason
    assert records[-1].status == "failed"


def test_each_call_has_the_time_for_itself() -> None:
    steps = [adapter(say=say, seconds=0.06) for say in "abcd"]
    settlement, _ = settled(route(*steps, timeout_seconds=0.2), {"do": dict.fromkeys("abcd", "wait")})
    assert settlement.outcome == "done"


def test_an_adapter_that_swallows_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    stubborn = route(adapter(say="a"), timeout_seconds=0.02)

    async def run() -> Any:
        chained = Chain(stubborn, 0, 1, AdapterSurroundings(grace_s=0.02))
        await chained.open()
        outcome = await chained.work(work({"do": {"a": "for ever"}}))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.get_coro().close()  # so that the test's loop can end
        return outcome

    loop = asyncio.new_event_loop()
    outcome = loop.run_until_complete(run())
    loop.close()
    assert outcome[-1].error == "TimeoutError"
    assert Asked.calls.count("swallowed") >= 1
    assert "left behind" in caplog.text
    gc.collect()
    assert "was destroyed" not in caplog.text, "it was told of"


def test_a_plain_function_runs_in_a_thread_one_call_at_a_time() -> None:
    outcomes = walk(route(adapter(Plain)), *({} for _ in range(8)))
    assert [one[-1].outcome for one in outcomes] == ["done"] * 8
    assert Plain.most == 1


def test_a_plain_function_that_never_returns_fails_its_message_and_blocks_no_other() -> None:
    started = time.monotonic()
    blocked, free = walk(route(adapter(Plain), timeout_seconds=0.05), {"do": "block"}, {})
    assert (blocked[-1].error, free[-1].outcome) == ("TimeoutError", "done")
    assert time.monotonic() - started < 10


def test_a_cancelled_walk_counts_as_no_attempt_whatever_the_adapter_does() -> None:
    async def run() -> bool:
        chained = Chain(route(adapter(say="a", seconds=60.0)), 0, 1, AdapterSurroundings())
        await chained.open()
        task = asyncio.create_task(chained.work(work({"do": {"a": "wait"}})))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(run())


def test_a_body_that_is_no_payload_is_dead_at_once_with_its_reason() -> None:
    standing = work({}).messages
    (outcome,) = walk(ABC, Work(messages=standing, body=b"\xff{"))
    assert (outcome[-1].outcome, outcome[-1].permanent) == ("failed", True)


def test_a_payload_that_cannot_be_published_fails_the_attempt() -> None:
    settlement, _ = settled(route(adapter(say="a")), {"do": {"a": "unpublishable"}})
    assert (settlement.outcome, settlement.permanent) == ("failed", True)


def test_before_an_adapter_that_holds_messages_the_work_goes_on_with_what_was_emitted() -> None:
    chain = route(adapter(say="a", queue="out"), adapter(say="b"))
    (outcome,) = walk(chain, {"do": {"a": "emit"}}, stop=1)
    passed = outcome[-1]
    assert isinstance(passed, Work)
    assert (passed.position, decode(passed.body)["seen"]) == (1, ["a"])
    assert [decode(one.body) for one in passed.emitted] == [{"of": "a"}]
    assert decode(passed.messages[0].body) == {"do": {"a": "emit"}}, "what was delivered, for a dead letter"


def test_nothing_is_recorded_where_lineage_is_off() -> None:
    assert settled(ABC, {}, records=False)[1] == []


def test_an_adapter_may_say_that_no_queue_takes_its_message() -> None:
    assert settled(ABC, {"do": {"b": "nowhere"}})[0].outcome == "unrouted"


def test_adapters_that_want_to_know_hear_how_their_attempts_end() -> None:
    class Told(Asked):
        def ended(self, message: str, outcome: str) -> None:
            self.calls.append(f"{message} {outcome}")

    told = route(adapter(Told, say="a"), adapter(say="b", seconds=30.0), timeout_seconds=0.05)
    walk(told, {}, {"do": {"b": "none"}}, {"do": {"b": "raise"}}, {"do": {"b": "wait"}})
    heard = [one for one in Asked.calls if one.startswith("m")]
    assert sorted(heard) == ["m0 done", "m1 filtered", "m2 failed", "m3 failed"]


def test_records_name_parents_and_executions() -> None:
    standing = Standing(id="m", route="r", queue="in", handle="h", executions=("e", "f"), attempt=2)
    (outcome,) = walk(ABC, Work(messages=[standing], body=b"{}", parents=("p", "q")))
    assert [(one.execution, one.executions, one.parents) for one in outcome[:1]] == [("e", ("e", "f"), ("p", "q"))]


def test_adapters_that_were_opened_are_closed_when_one_cannot_be_opened() -> None:
    class Broken(Asked):
        def open(self, context: Any) -> None:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        walk(route(adapter(say="a"), adapter(Broken, say="b")), {})
    assert Asked.calls == ["open a", "close"]
