"""Adapters that hold messages: what a batch is made of, what becomes of each member, and what outlives an instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.routes.running.pipelines import Asked, Batch, Gathering, adapter, route, work
from tupletree import ConnectorError, Topology
from tupletree.bolts.effects import TaskPlace
from tupletree.bolts.factory import holder_of
from tupletree.bolts.held import Holder
from tupletree.data.frames import Frame
from tupletree.routes import AdapterConfig, AdapterResult, BatchAdapter, PipelineContext, RouteSpec, Settlement, Work
from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.document.spec import AdapterSpec
from tupletree.routes.payloads import decode
from tupletree.routes.running.chain import AdapterSurroundings
from tupletree.routes.running.stateful import BatchBolt, StatefulBolt
from tupletree.sources import items


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    Batch.batches.clear()
    yield
    while opened:
        opened.pop().close()


opened: list[Holder] = []


@dataclass
class Bench:
    """A task of an adapter's bolt, and what it held."""

    task: Holder
    place: TaskPlace
    held: list[str]
    frames: int = 0

    def give(self, *payloads: Any, **others: Any) -> list[Any]:
        """What comes of these messages, each of a root of its own."""
        self.frames += 1
        roots = [*range(10 * self.frames, 10 * self.frames + len(payloads))]
        works = [work(one, f"m{root}") for root, one in zip(roots, payloads)]
        worked = self.task.work(Frame(5, "s", "Work", works, [*roots], [*range(1, len(works) + 1)], self.frames))
        assert not worked.failures, worked.failures
        return values(worked)

    def later(self, seconds: float) -> list[Any]:
        """What comes of time."""
        self.place.epoch_time_s += seconds
        due_s = self.task.due_s
        return values(self.task.advance()) if due_s is not None and due_s <= self.place.epoch_time_s else []


def values(worked: Any) -> list[Any]:
    return [one for output in worked.outputs if output.stream != "CallRecord" for one in output.values]


def bench(
    chain: RouteSpec, kind: type[BatchBolt | StatefulBolt] = BatchBolt, position: int = 0, **around: Any
) -> Bench:
    held: list[str] = []

    def note(messages: Sequence[str]) -> None:
        held[:] = messages

    t = Topology("t")
    factory = partial(kind, chain, position, AdapterSurroundings(**around), note)
    bolt = t.bolt("b", factory).shuffle(t.spout("s", items([work({})])))
    for cls in factory().output_types:
        bolt.stream(cls, unconsumed=True)
    place = TaskPlace("t", "b", 5, 0, 1)
    place.waits = True
    task = holder_of(t.build().components["b"], place)
    assert task is not None
    task.open()
    opened.append(task)
    return Bench(task, place, held)


def numbered(count: int, **others: Any) -> list[dict[str, Any]]:
    return [{"number": number, **others} for number in range(count)]


def bodies(settlement: Settlement) -> list[Any]:
    return [decode(one.body) for one in settlement.children]


BATCHES = route(adapter(Batch, size=3))


def test_a_full_batch_is_worked_and_its_members_end_one_by_one() -> None:
    b = bench(BATCHES)
    ended = b.give(*numbered(4))
    assert Batch.batches == [[{"number": 0}, {"number": 1}, {"number": 2}]]
    assert [(one.outcome, [m.id for m in one.messages], bodies(one)) for one in ended] == [
        ("done", [f"m1{number}"], [{"batched": number}]) for number in range(3)
    ]
    assert b.held == ["m13"], "its slot is free"


def test_a_batch_that_is_not_full_goes_out_when_its_oldest_member_has_waited_long_enough() -> None:
    b = bench(BATCHES)
    assert b.give(*numbered(1)) == []
    assert b.later(0.3) == []
    assert b.give(*numbered(1)) == []
    assert len(b.later(0.2)) == 2


def test_a_batch_that_is_not_full_goes_out_in_time_while_input_keeps_coming() -> None:
    """What comes later does not make the oldest member wait for longer."""
    b = bench(route(adapter(Batch, size=100)))
    ended: list[Any] = []
    for _ in range(4):
        assert not ended
        ended = [*b.give(*numbered(1)), *b.later(0.101)]
    assert len(ended) == 4


def test_a_batch_is_a_hundred_messages_or_what_has_come_in_five_seconds() -> None:
    class Ready(BatchAdapter[AdapterConfig]):
        """With the defaults of batches."""

        def process_batch(self, contexts: Sequence[PipelineContext]) -> list[AdapterResult]:
            Batch.batches.append([one.message.payload for one in contexts])
            return [AdapterResult(one.message) for one in contexts]

    b = bench(route(AdapterSpec("ready", "ready", Ready, AdapterConfig())))
    assert len(b.give(*numbered(250))) == 200
    assert b.later(4.9) == []
    assert len(b.later(0.2)) == 50
    assert [len(batch) for batch in Batch.batches] == [100, 100, 50]


def test_it_goes_by_bytes_too() -> None:
    class Small(Batch):
        max_bytes = 40

    b = bench(route(adapter(Small, size=100)))
    b.give(*[{"number": number, "pad": "x" * 10} for number in range(3)])
    assert [len(batch) for batch in Batch.batches] == [1, 1]


def test_at_a_stop_what_there_is_goes_out() -> None:
    b = bench(BATCHES)
    b.give(*numbered(2))
    assert len(values(b.task.flush())) == 2


def test_one_result_has_all_members_as_parents() -> None:
    b = bench(BATCHES)
    (ended,) = b.give(*numbered(3, do="together"))
    assert [one.id for one in ended.messages] == ["m10", "m11", "m12"]
    assert bodies(ended) == [{"numbers": [0, 1, 2]}]


def test_another_number_of_results_is_published_for_all_together() -> None:
    b = bench(BATCHES)
    (ended,) = b.give(*numbered(3, do="two"))
    assert (len(ended.messages), bodies(ended)) == (3, [{"half": 0}, {"half": 1}])
    assert len({one.id for one in ended.children}) == 2


def test_but_not_where_another_adapter_follows() -> None:
    b = bench(route(adapter(Batch, size=3), adapter(Asked, say="a")))
    ended = b.give(*numbered(3, do="two"))
    assert {one.outcome for one in ended} == {"failed"}
    assert all("another adapter follows" in one.reason for one in ended)


def test_a_member_without_a_result_is_filtered() -> None:
    b = bench(BATCHES)
    assert [one.outcome for one in b.give(*numbered(3, do="none"))] == ["filtered"] * 3


def test_a_batch_that_fails_is_tried_member_by_member() -> None:
    b = bench(BATCHES)
    first, *others = numbered(3)
    ended = b.give({**first, "do": "raise"}, *others)
    assert sorted(one.outcome for one in ended) == ["done", "done", "failed"]
    (failed,) = [one for one in ended if one.outcome == "failed"]
    assert ([one.id for one in failed.messages], failed.error) == (["m10"], "ValueError")
    assert decode(failed.messages[0].body) == {"number": 0, "do": "raise"}
    assert [len(batch) for batch in Batch.batches] == [3, 1, 1, 1]


def test_an_outage_leaves_the_members_where_they_are() -> None:
    b = bench(BATCHES)
    roots = [1, 2, 3]
    works = [work({"number": number, "do": "away"}, f"m{number}") for number in roots]
    worked = b.task.work(Frame(5, "s", "Work", works, [*roots], [1, 2, 3], 1))
    assert isinstance(worked.outage, ConnectorError)
    assert b.task.resume().outage is not None
    assert [len(batch) for batch in Batch.batches] == [3, 3], "each member once, and no one by one"
    assert sorted(b.task.waiting()) == roots


def test_the_next_adapter_gets_what_comes_out_with_what_was_emitted_before() -> None:
    b = bench(route(adapter(Batch, size=1), adapter(Asked, say="a")))
    (passed,) = b.give({"number": 4})
    assert isinstance(passed, Work)
    assert (passed.position, decode(passed.body)) == (1, {"batched": 4})
    assert passed.batch
    assert decode(passed.messages[0].body) == {"number": 4}


def test_a_queue_that_an_adapter_before_chose_is_kept_where_all_members_have_it() -> None:
    two = route(adapter(Batch, size=2), outbound=("left", "right"))
    b = bench(two)
    works = [msgspec.structs.replace(work({"number": number}, f"m{number}"), only="left") for number in (1, 2)]
    ended = values(b.task.work(Frame(5, "s", "Work", works, [1, 2], [1, 2], 1)))
    assert [[child.queue for child in one.children] for one in ended] == [["left"], ["left"]]
    works = [
        msgspec.structs.replace(work({"number": number, "do": "together"}, f"n{number}"), only=only)
        for number, only in ((3, "left"), (4, "right"))
    ]
    (both,) = values(b.task.work(Frame(5, "s", "Work", works, [3, 4], [1, 2], 2)))
    assert [child.queue for child in both.children] == ["left", "right"]


def test_a_false_condition_passes_by_the_batch() -> None:
    only = Condition(field="payload.number", operator="gt", value=0)
    b = bench(route(adapter(Batch, condition=only, size=2)))
    (passed,) = b.give({"number": 0})
    assert (passed.outcome, bodies(passed)) == ("done", [{"number": 0}])
    assert len(b.give({"number": 1}, {"number": 2})) == 2


def test_an_instance_that_follows_gets_what_was_held() -> None:
    b = bench(BATCHES)
    b.give(*numbered(2))
    after = bench(BATCHES)
    after.task.restore(b.task.held(), b.task.memory())
    after.frames = 5
    assert len(after.give({"number": 7})) == 3
    assert Batch.batches == [[{"number": 0}, {"number": 1}, {"number": 7}]]


def test_a_call_of_a_batch_that_takes_too_long_fails_its_members() -> None:
    class Slow(Batch):
        async def process_batch(self, contexts: Any) -> Any:
            import asyncio

            await asyncio.sleep(30)

    b = bench(route(adapter(Slow, size=1), timeout_seconds=0.02))
    (ended,) = b.give({"number": 0})
    assert (ended.outcome, ended.error) == ("failed", "TimeoutError")


GATHERS = route(adapter(Gathering))


def test_a_stateful_adapter_holds_messages_until_it_releases_them() -> None:
    b = bench(GATHERS, StatefulBolt)
    assert b.give({"number": 1}, {"number": 2}) == []
    assert sorted(b.held) == ["m10", "m11"]
    (ended,) = b.give({"number": 3, "do": "release"})
    assert (len(ended.messages), bodies(ended)) == (3, [{"numbers": [1, 2, 3]}])


def test_it_may_let_messages_pass_or_drop_them_with_a_reason() -> None:
    b = bench(GATHERS, StatefulBolt)
    (ended,) = b.give({"do": "pass"})
    assert ended.outcome == "done"
    dropped = b.give({"number": 99}, {"number": 1, "do": "release"})
    assert [(one.outcome, one.reason) for one in dropped] == [("filtered", "99 is not wanted")] * 2


def test_it_is_asked_from_time_to_time_and_at_a_stop() -> None:
    b = bench(GATHERS, StatefulBolt)
    b.give({"number": 1})
    assert b.task.due_s == b.place.epoch_time_s + 5.0
    assert b.later(5.0) == []
    assert b.task.due_s == b.place.epoch_time_s + 5.0
    (ended,) = values(b.task.flush())
    assert bodies(ended) == [{"numbers": [1]}]


def test_a_stateful_adapter_that_follows_another_instance_gets_what_was_held_again() -> None:
    b = bench(GATHERS, StatefulBolt)
    b.give({"number": 1}, {"number": 2})
    after = bench(GATHERS, StatefulBolt)
    after.task.restore(b.task.held(), b.task.memory())
    after.frames = 5
    (ended,) = after.give({"number": 3, "do": "release"})
    assert bodies(ended) == [{"numbers": [1, 2, 3]}]
