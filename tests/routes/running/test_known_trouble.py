"""What goes wrong with such pipelines elsewhere: batches, payloads, and what others do to queues and documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.routes.running.pipelines import Asked, Batch, Config, adapter
from tests.routes.running.simulated import World
from tests.routes.running.test_pipelines import HANG_S, RUNTIMES, Judge, Split, pipeline, route, states
from tests.until import until
from tupletree.queues import Message, connect
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes import Adapter, AdapterResult, Pipeline, PipelineContext
from tupletree.routes.document.spec import Backpressure, ErrorHandling, LineageSpec
from tupletree.routes.ledger import NewMessage
from tupletree.routes.lineage import Lineage
from tupletree.routes.payloads import decode, encode
from tupletree.routes.pipeline import PipelineRun
from tupletree.routes.running import queue_spout
from tupletree.routes.running.gates import Gates
from tupletree.routes.status import StatusReader
from tupletree.testing.simulator.faults import Faults

Runtime = Callable[[Pipeline], PipelineRun]
both = pytest.mark.parametrize("start", RUNTIMES)
ONCE = ErrorHandling(max_retries=0)


class Together(Batch):
    """One message of all members."""

    def process_batch(self, contexts: Sequence[PipelineContext]) -> AdapterResult:
        numbers = [one.message.payload["number"] for one in contexts]
        return AdapterResult(contexts[0].message.with_payload({"numbers": numbers}))


class Picky(Batch):
    """Refuses a batch with 5 in it."""

    max_age_s = 0.05

    def process_batch(self, contexts: Sequence[PipelineContext]) -> Sequence[AdapterResult]:
        if any(one.message.payload["number"] == 5 for one in contexts):
            raise ValueError("5 is refused")
        return [AdapterResult(one.message) for one in contexts]


@both
def test_an_adapter_that_rejects_number_5_of_10_lets_the_other_9_through(tmp_path: Path, start: Runtime) -> None:
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.judge",)),
        route("judge", adapter(Judge), out=("q.end",), error_handling=ONCE),
        route("end"),
    )
    with start(p) as run:
        ended = run.execute({"count": 7}, route="split").wait(HANG_S)
        assert states(run)["judge"] == {"done": 6, "dead": 1}
        assert states(run)["end"] == {"done": 6}
    assert (ended.state, ended.dead) == ("completed_with_dead_letters", 1)


@both
def test_one_refused_member_of_a_batch_of_ten_is_dead_alone(tmp_path: Path, start: Runtime) -> None:
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.batch",)),
        route("batch", adapter(Picky, size=10), out=("q.end",), at_once=16, error_handling=ONCE),
        route("end"),
    )
    with start(p) as run:
        begun = run.execute({"count": 10}, route="split")
        assert begun.wait(HANG_S).dead == 1
        assert (states(run)["batch"], states(run)["end"]) == ({"done": 9, "dead": 1}, {"done": 9})
        [dead] = run.services.ledger.messages(begun.id, state="dead")
        assert (dead.error, dead.reason) == ("ValueError", "5 is refused")


@both
def test_pieces_of_a_split_and_what_a_batch_merges_keep_all_their_parents(tmp_path: Path, start: Runtime) -> None:
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.merge",)),
        route("merge", adapter(Together, size=3), out=("q.end",), at_once=16),
        route("end", adapter(Asked)),
        lineage=LineageSpec(level="full"),
    )
    with start(p) as run:
        begun = run.execute({"count": 6}, route="split")
        assert begun.wait(HANG_S).total == 1 + 6 + 2
        ledger = run.services.ledger
        first = begun.status().init
        others = [one for one in ledger.messages(begun.id) if one.id != first]
        parents = {one.id: ledger.message(one.id).parents for one in others}  # type: ignore[union-attr]  # it is there
    pieces = {one.id for one in others if one.route == "merge"}
    merged = [one.id for one in others if one.route == "end"]
    assert all([*parents[one]] == [first] for one in pieces)
    assert sorted(parent for one in merged for parent in parents[one]) == sorted(pieces)
    assert {len(parents[one]) for one in merged} == {3}
    with Lineage.open(f"sqlite:///{tmp_path}/pipeline.lineage.db") as lineage:
        tree = lineage.tree(begun.id)
        assert sorted(child for one in pieces for child in tree.messages[one].children) == sorted(3 * merged)


def test_half_a_batch_whose_process_is_killed_is_worked_by_the_next_one(tmp_path: Path) -> None:
    p = pipeline(
        tmp_path, route("one", adapter(Together, size=10), out=("store",), at_once=16, lease_seconds=5.0)
    )  # max_age_s is 0.4
    world = World(p, 7, Faults.none())
    process = world.processes[0]
    killed: list[int] = []

    def happens(_: World, step: int) -> None:
        if step < 5:
            world.client.start(NewMessage("q.one", encode({"number": step})), f"e{step}")
        elif not killed and process.services is not None and process.services.gates.status()["one"].held == 5:
            killed.append(step)
            process.is_dead = True

    world.run(6, happens, is_over=lambda _: bool(killed) and world.client.broker("store").depth("store").ready > 0)
    try:
        [stored] = world.client.broker("store").peek("store")
        assert sorted(decode(stored.message.body)["numbers"]) == [0, 1, 2, 3, 4]
        executions = world.client.ledger.executions()
        assert [one.state for one in executions] == ["completed"] * 5
        assert process.lives == 2
    finally:
        world.close()


def test_the_ledger_says_which_messages_a_batch_holds_until_they_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_spout, "CANCEL_S", 0.02)

    class Hour(Together):
        max_age_s = 3600.0

    p = pipeline(tmp_path, route("one", adapter(Hour, size=4), out=("out",), at_once=16))
    with p.run() as run:
        begun = [run.execute({"number": number}, route="one") for number in range(3)]
        until(lambda: states(run)["one"] == {"held": 3})
        [status] = StatusReader(run.services).read()
        assert (status.held, status.in_flight) == (3, 0)
        assert {one.status().state for one in begun} == {"running"}
        begun.append(run.execute({"number": 3}, route="one"))
        assert {one.wait(HANG_S).state for one in begun} == {"completed"}


def test_a_message_that_somebody_else_takes_out_of_its_queue_keeps_its_execution_open_until_it_is_cancelled(
    tmp_path: Path,
) -> None:
    p = pipeline(tmp_path, route("one", adapter(Asked)))
    with p.open() as idle:
        lost = idle.execute({}, route="one")
        assert idle.services.broker("q.one").purge("q.one") == 1
    with p.run() as run:
        assert run.execute({}, route="one").wait(HANG_S).state == "completed"
        gone = run.execution(lost.id)
        assert (gone.status().state, gone.status().open) == ("running", 1)
        assert states(run, lost.id) == {"one": {"pending": 1}}, "it says where the message should be"
        gone.cancel("its message was removed")
        assert gone.status().state == "cancelled"


def test_a_document_that_is_changed_between_stop_and_start_works_what_waits(tmp_path: Path) -> None:
    """A route that is renamed, with other adapters, goes on with its queue; one that is gone leaves its messages."""
    slow = ErrorHandling(max_retries=3, retry_delay_seconds=0.01)
    before = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.old", "q.gone")),
        route("old", adapter(Asked, say="old"), inbound="q.old", error_handling=slow),
        route("gone", inbound="q.gone"),
    )
    before.spec = replace(before.spec, source="before")
    with before.run(only=["split"]) as run:
        begun = run.execute({"count": 2}, route="split")
        until(lambda: states(run, begun.id).get("split") == {"done": 1})
    Asked.calls.clear()
    after = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.old",)),
        route("new", adapter(Asked, say="new"), inbound="q.old", error_handling=slow),
    )
    after.spec = replace(after.spec, source="after")
    with after.run() as run:
        until(lambda: run.services.broker("q.old").depth("q.old").open == 0)
        assert [one.partition(" ")[0] for one in Asked.calls if one.startswith("new ")] == ["new", "new"]
        execution = run.execution(begun.id)
        assert (execution.status().open, execution.status().state) == (2, "running")
        document = run.services.ledger.document(begun.id)
        assert document is not None
        assert document.document == "before", "it keeps the one that it began with"
    with before.run(only=["gone"]) as run:
        assert run.execution(begun.id).wait(HANG_S).state == "completed"


def nested(depth: int) -> Any:
    made: Any = "deep"
    for number in range(depth):
        made = [made] if number % 2 else {"in": made}
    return made


class SameAsEver(Adapter[Config]):
    """Fails if its payload is not what was published."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        payload = context.message.payload
        assert math.isnan(payload["nan"])
        assert {**payload, "nan": 0} == {**ODD, "nan": 0}
        assert type(payload["bytes"]) is bytes
        return AdapterResult(context.message)


ODD = {
    "nan": math.nan,
    "infinite": -math.inf,
    "big": -(10**60),
    "bytes": b"\x00\xff\x80",
    "deep": nested(60),
    "text": "\x00\ud800 \U0001f40d",
    "": {"": []},
}


@both
def test_payloads_with_nan_big_integers_bytes_and_deep_nesting_come_through_unchanged(
    tmp_path: Path, start: Runtime
) -> None:
    p = pipeline(
        tmp_path,
        route("one", adapter(SameAsEver), out=("q.two",)),
        route("two", adapter(SameAsEver), out=("out",)),
        lineage=LineageSpec(level="full"),
    )
    with start(p) as run:
        assert run.execute(ODD, route="one").wait(HANG_S).state == "completed"
    with connect(f"sqlite:///{tmp_path}/pipeline.db") as broker:
        [out] = broker.peek("out")
    assert {**decode(out.message.body), "nan": 0} == {**ODD, "nan": 0}


def test_children_are_registered_before_any_of_them_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ledger in another place than the queue; in one file it is one transaction."""
    p = pipeline(
        tmp_path,
        route("split", adapter(Split), out=("q.end",)),
        route("end"),
        ledger=f"sqlite:///{tmp_path}/ledger.db",
    )
    seen: list[int] = []
    publish = SqliteBroker.publish

    def asks_first(broker: SqliteBroker, queue: str, messages: Sequence[Message]) -> int:
        ledger = run.services.ledger
        if queue == "q.end":
            known = [ledger.message(one.id) for one in messages]
            assert all(known)
            [execution] = ledger.executions()
            seen.append(execution.total)
        return publish(broker, queue, messages)

    monkeypatch.setattr(SqliteBroker, "publish", asks_first)
    with p.run() as run:
        begun = run.execute({"count": 10}, route="split")
        assert begun.wait(HANG_S).total == 11
    assert set(seen) == {11}, "all ten of them, and not those of its call only"


def test_slots_are_taken_before_a_message_is_leased_and_released_after_the_brokers_ack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def noted(cls: type, name: str) -> None:
        real = getattr(cls, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if name not in {"take", "lease"} or result:
                happened.append(name)
            return result

        monkeypatch.setattr(cls, name, call)

    noted(Gates, "take")
    noted(Gates, "release")
    noted(SqliteBroker, "lease")
    noted(SqliteBroker, "ack")
    # A ledger elsewhere: its transaction and the ack are two.
    p = pipeline(tmp_path, route("one", adapter(Asked)), ledger=f"sqlite:///{tmp_path}/ledger.db")
    with p.run() as run:
        begun = run.execute({}, route="one")
        assert begun.wait(HANG_S).state == "completed"
        until(lambda: "release" in happened)
    lease = happened.index("lease")
    assert happened[lease - 1] == "take"
    assert [one for one in happened[lease:] if one != "take"][:3] == ["lease", "ack", "release"]


def test_a_route_whose_outbound_queue_is_full_holds_no_slot_and_others_go_on(tmp_path: Path) -> None:
    p = pipeline(
        tmp_path,
        route("one", adapter(Asked), out=("full",), backpressure=Backpressure(high_water=2)),
        route("two", adapter(Asked)),
    )
    with p.run() as run:
        broker = run.services.broker("full")
        broker.publish("full", [Message(body=b"{}") for _ in range(3)])
        waits = run.execute({}, route="one")
        assert run.execute({}, route="two").wait(HANG_S).state == "completed"
        assert states(run, waits.id) == {"one": {"pending": 1}}
        assert run.services.gates.status()["one"].in_flight == 0
        broker.purge("full")
        assert waits.wait(HANG_S).state == "completed"
