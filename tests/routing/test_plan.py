"""Plans: task numbers, placement, stages, carried links and executors."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import msgspec
import pytest

from tests.topology.test_splits import Numbers
from tupletree.config import Options
from tupletree.routing.plan import ACKER, SYSTEM, Link, Plan
from tupletree.topology.components import Bolt, Tick
from tupletree.topology.model import (
    BoltSpec,
    ComponentSpec,
    Grouping,
    GroupingKind,
    InputSpec,
    StreamSpec,
    TopologySpec,
)
from tupletree.topology.streams import Schema


class Word(msgspec.Struct, frozen=True, gc=False):
    text: str


WORD = Schema(Word, {"text": str})


def component(
    name: str,
    kind: Literal["spout", "bolt", "sink"],
    *inputs: tuple[str, GroupingKind],
    parallelism: int | None = None,
    executors: int | None = None,
    blocking: bool = False,
) -> ComponentSpec:
    return ComponentSpec(
        name=name,
        kind=kind,
        body=BoltSpec("function", print, "nothing", blocking=blocking) if kind == "bolt" else None,
        parallelism=parallelism,
        executors=executors,
        outputs={} if kind == "sink" else {"Word": StreamSpec(name, "Word", WORD)},
        inputs=tuple(InputSpec(source, "Word", Grouping(how, ("text",) * (how == "fields"))) for source, how in inputs),
    )


def topology(*components: ComponentSpec) -> TopologySpec:
    return TopologySpec("words", {each.name: each for each in components})


def word_count() -> TopologySpec:
    return topology(
        component("lines", "spout"),
        component("out", "sink", ("count", "shuffle")),
        component("split", "bolt", ("lines", "shuffle"), parallelism=2),
        component("count", "bolt", ("split", "fields"), parallelism=2),
    )


def link(plan: Plan, producer: str, consumer: str) -> Link:
    return next(each for each in plan.links if (each.producer, each.consumer) == (producer, consumer))


def two_bolts(kind: GroupingKind, producers: int, consumers: int, partitions: int) -> Link:
    plan = Plan.of(
        topology(
            component("s", "spout"),
            component("a", "bolt", ("s", "shuffle"), parallelism=producers),
            component("b", "bolt", ("a", kind), parallelism=consumers),
        ),
        Options(),
        partitions,
    )
    return link(plan, "a", "b")


def test_tasks_are_numbered_system_ackers_bolts_sinks_spouts() -> None:
    plan = Plan.of(word_count(), Options(acker_tasks=2), partitions=2)
    assert [task.component for task in plan.tasks] == (
        [SYSTEM] + [ACKER] * 2 + ["split"] * 2 + ["count"] * 2 + ["out"] * 2 + ["lines"]
    )
    assert [task.task_id for task in plan.tasks] == list(range(10))
    assert [task.index for task in plan.tasks_of("count")] == [0, 1]
    assert list(plan.task_ids_of("count")) == [5, 6]


def test_a_sink_that_did_not_choose_is_as_wide_as_its_widest_producer_and_one_task_locally() -> None:
    spec = topology(
        component("s", "spout", parallelism=2),
        component("a", "bolt", ("s", "shuffle"), parallelism=5),
        component("open", "sink", ("s", "shuffle"), ("a", "shuffle")),
        component("fixed", "sink", ("a", "shuffle"), parallelism=1),
    )
    on_spark = Plan.of(spec, Options(), partitions=2)
    assert (on_spark.parallelism("open"), on_spark.parallelism("fixed")) == (5, 1)
    assert Plan.of(spec, Options()).parallelism("open") == 1


def test_no_ackers_leave_no_acker_tasks() -> None:
    plan = Plan.of(word_count(), Options(acker_tasks=0))
    assert plan.tasks_of(ACKER) == ()


def test_tasks_live_in_the_partition_of_their_index() -> None:
    plan = Plan.of(word_count(), Options(), partitions=2)
    assert [plan.placement(task.task_id) for task in plan.tasks_of("count")] == [0, 1]
    assert [plan.placement(task.task_id) for task in plan.tasks_of("lines")] == [0]


def test_word_count_on_spark_has_two_stages_and_one_exchange() -> None:
    plan = Plan.of(word_count(), Options(), partitions=2)
    assert [stage.components for stage in plan.stages] == [("split",), ("count", "out")]
    assert not link(plan, "split", "count").local
    assert link(plan, "count", "out").local
    assert plan.stage_of("out") == 1


def test_one_partition_needs_no_exchange() -> None:
    plan = Plan.of(word_count(), Options(), partitions=1)
    assert [stage.components for stage in plan.stages] == [("split", "count", "out")]


def test_links_from_spouts_never_push_a_consumer_to_a_later_stage() -> None:
    spec = topology(component("s", "spout", parallelism=3), component("a", "bolt", ("s", "fields"), parallelism=4))
    assert Plan.of(spec, Options(), partitions=4).stage_of("a") == 0


@pytest.mark.parametrize(
    ("kind", "producers", "consumers", "partitions", "local"),
    [
        ("shuffle", 2, 2, 2, True),
        ("shuffle", 2, 4, 2, True),
        ("shuffle", 4, 2, 2, True),
        ("shuffle", 1, 4, 4, False),  # would leave three of the four tasks without work
        ("shuffle", 4, 2, 4, False),
        ("shuffle", 2, 3, 2, False),
        ("local_or_shuffle", 1, 4, 4, True),
        ("none", 2, 3, 2, True),
        ("local_or_shuffle", 4, 2, 4, False),
        ("fields", 1, 1, 4, True),
        ("fields", 2, 2, 2, False),
        ("fields", 1, 2, 2, False),
        ("partial_key", 2, 1, 2, False),
        ("all", 1, 1, 2, True),
        ("all", 1, 2, 2, False),
        ("global", 1, 3, 2, True),
        ("global", 2, 1, 2, False),
        ("direct", 1, 2, 2, False),
        ("custom", 1, 2, 2, False),
        ("custom", 5, 7, 1, True),
    ],
)
def test_a_link_is_local_when_every_target_is_in_its_producers_partition(
    kind: GroupingKind, producers: int, consumers: int, partitions: int, local: bool
) -> None:
    assert two_bolts(kind, producers, consumers, partitions).local is local


def test_a_sink_stays_with_its_producers_even_if_one_of_them_is_narrow() -> None:
    spec = topology(
        component("s", "spout"),
        component("a", "bolt", ("s", "shuffle"), parallelism=1),
        component("b", "bolt", ("s", "shuffle"), parallelism=2),
        component("out", "sink", ("a", "shuffle"), ("b", "shuffle")),
    )
    plan = Plan.of(spec, Options(), partitions=2)
    assert [stage.components for stage in plan.stages] == [("a", "b", "out")]


def test_a_component_waits_for_its_latest_input() -> None:
    spec = topology(
        component("s", "spout"),
        component("a", "bolt", ("s", "shuffle"), parallelism=2),
        component("b", "bolt", ("a", "fields"), parallelism=2),
        component("join", "bolt", ("a", "shuffle"), ("b", "shuffle"), parallelism=2),
    )
    plan = Plan.of(spec, Options(), partitions=2)
    assert [stage.components for stage in plan.stages] == [("a",), ("b", "join")]


def test_a_cycle_is_cut_at_its_back_edge() -> None:
    spec = topology(
        component("s", "spout"),
        component("a", "bolt", ("s", "shuffle"), ("b", "fields"), parallelism=2),
        component("b", "bolt", ("a", "fields"), parallelism=2),
        component("out", "sink", ("b", "shuffle")),
    )
    plan = Plan.of(spec, Options(), partitions=2)
    assert [(each.producer, each.consumer) for each in plan.links if each.carried] == [("b", "a")]
    assert [stage.components for stage in plan.stages] == [("a",), ("b", "out")]


def test_a_bolt_that_feeds_itself_carries_its_own_link() -> None:
    spec = topology(component("s", "spout"), component("a", "bolt", ("s", "shuffle"), ("a", "shuffle")))
    plan = Plan.of(spec, Options(), partitions=2)
    assert link(plan, "a", "a").carried
    assert plan.stage_of("a") == 0


def test_a_back_edge_is_found_from_the_spout_whatever_the_order_of_declaration() -> None:
    spec = topology(
        component("b", "bolt", ("a", "shuffle")),
        component("a", "bolt", ("s", "shuffle"), ("b", "shuffle")),
        component("s", "spout"),
    )
    plan = Plan.of(spec, Options())
    assert [(each.producer, each.consumer) for each in plan.links if each.carried] == [("b", "a")]


def test_a_chain_longer_than_the_recursion_limit_is_planned() -> None:
    names = ["s", *(f"b{number}" for number in range(3000))]
    bolts = [component(name, "bolt", (before, "shuffle")) for before, name in itertools.pairwise(names)]
    plan = Plan.of(topology(component("s", "spout"), *reversed(bolts)), Options(), partitions=2)
    assert plan.stages[0].components == tuple(names[1:])


def test_executors_keep_spouts_and_ackers_apart_from_bolts() -> None:
    spec = topology(
        component("s", "spout"),
        component("slow", "bolt", ("s", "shuffle"), parallelism=2, blocking=True),
        component("quick", "bolt", ("slow", "shuffle"), parallelism=2),
        component("out", "sink", ("quick", "shuffle"), parallelism=1),
    )
    plan = Plan.of(spec, Options(acker_tasks=3, acker_executors=2))
    served = {
        executor.name: [plan.tasks[number].component for number in executor.task_ids] for executor in plan.executors
    }
    assert served == {
        "spouts": [SYSTEM, ACKER, ACKER, "s"],
        "bolts": ["quick", "quick", "out"],
        "ackers[1]": [ACKER],
        "slow[0]": ["slow"],
        "slow[1]": ["slow"],
    }
    assert sorted(number for executor in plan.executors for number in executor.task_ids) == list(range(len(plan.tasks)))


def test_tasks_that_nothing_can_tell_apart_have_a_deputy_on_their_executor() -> None:
    plan = Plan.of(word_count(), Options(), deputies=True)
    assert {*plan.deputies_of("split")} == {plan.task_ids_of("split")[0]}
    assert len(plan.deputies_of("split")) == plan.parallelism("split")
    assert "split: tasks 5..6, stage 0, worked as 5" in plan.describe()
    blocking = Plan.of(
        topology(component("s", "spout"), component("b", "bolt", ("s", "shuffle"), parallelism=3, blocking=True)),
        Options(),
        deputies=True,
    )
    assert [*blocking.deputies_of("b")] == [*blocking.task_ids_of("b")], "each has a thread of its own"
    assert [*Plan.of(word_count(), Options()).deputies_of("split")] == [*plan.task_ids_of("split")], "only on request"


def test_ackers_of_one_executor_have_a_deputy() -> None:
    plan = Plan.of(word_count(), Options(acker_tasks=3), deputies=True)
    assert [*plan.deputies_of(ACKER)] == [plan.task_ids_of(ACKER)[0]] * 3
    for apart in (
        Plan.of(word_count(), Options(acker_tasks=3)),
        Plan.of(word_count(), Options(acker_tasks=3, acker_executors=2), deputies=True),
    ):
        assert [*apart.deputies_of(ACKER)] == [*apart.task_ids_of(ACKER)]
    assert [*Plan.of(word_count(), Options(acker_tasks=0), deputies=True).deputies_of(ACKER)] == []


@pytest.mark.parametrize("style", ["function", "arrow"])
def test_functions_of_tuples_and_of_columns_may_have_a_deputy(style: Literal["function", "arrow"]) -> None:
    same = replace(component("b", "bolt", ("s", "shuffle"), parallelism=3), body=BoltSpec(style, print, "value"))
    plan = Plan.of(topology(component("s", "spout"), same), Options(), deputies=True)
    assert len({*plan.deputies_of("b")}) == 1


@pytest.mark.parametrize("kind", ["all", "partial_key", "custom", "direct"])
def test_a_task_that_may_be_meant_by_itself_has_no_deputy(kind: GroupingKind) -> None:
    spec = topology(component("s", "spout"), component("b", "bolt", ("s", "shuffle"), ("s", kind), parallelism=2))
    plan = Plan.of(spec, Options(), deputies=True)
    assert [*plan.deputies_of("b")] == [*plan.task_ids_of("b")]


@pytest.mark.parametrize(
    "body",
    [
        BoltSpec("class", Bolt, "nothing"),
        BoltSpec("batch", print, "many", batch_size=2),
        BoltSpec("function", print, "value", inject={"place": "context"}),
        BoltSpec("function", print, "nothing", inject={"out": "collector"}),
        BoltSpec("function", print, "value", input_types=(Tick,)),
        BoltSpec("function", print, "value", auto_ack=False),
        BoltSpec("function", print, "value", auto_fail=False),
        BoltSpec("function", print, "value", is_async=True),
    ],
    ids=["class", "batch", "context", "collector", "ticks", "manual ack", "manual fail", "async"],
)
def test_a_task_that_holds_something_of_its_own_has_no_deputy(body: BoltSpec) -> None:
    told_apart = replace(component("b", "bolt", ("s", "shuffle"), parallelism=2), body=body)
    plan = Plan.of(topology(component("s", "spout"), told_apart), Options(), deputies=True)
    assert [*plan.deputies_of("b")] == [*plan.task_ids_of("b")]


def test_tasks_of_a_component_that_wants_executors_are_distributed_over_them_round_robin() -> None:
    spec = topology(
        component("s", "spout", parallelism=2, executors=1),
        component("slow", "bolt", ("s", "shuffle"), parallelism=5, executors=2, blocking=True),
        component("quick", "bolt", ("slow", "shuffle")),
        component("out", "sink", ("quick", "shuffle"), parallelism=3, executors=3),
    )
    plan = Plan.of(spec, Options(acker_tasks=2))
    served = {
        executor.name: [(plan.tasks[number].component, plan.tasks[number].index) for number in executor.task_ids]
        for executor in plan.executors
    }
    assert served == {
        "spouts": [(SYSTEM, 0), (ACKER, 0), (ACKER, 1)],
        "bolts": [("quick", 0)],
        "s[0]": [("s", 0), ("s", 1)],
        "slow[0]": [("slow", 0), ("slow", 2), ("slow", 4)],
        "slow[1]": [("slow", 1), ("slow", 3)],
        "out[0]": [("out", 0)],
        "out[1]": [("out", 1)],
        "out[2]": [("out", 2)],
    }


def test_a_plan_describes_itself() -> None:
    text = Plan.of(word_count(), Options(acker_tasks=1), partitions=2).describe()
    assert text.splitlines() == [
        "words: 9 tasks, 2 partitions, 2 stages",
        "  __system: tasks 0",
        "  __acker: tasks 1",
        "  split: tasks 2..3, stage 0",
        "  count: tasks 4..5, stage 1",
        "  out: tasks 6..7, stage 1",
        "  lines: tasks 8",
        "  executor 0 spouts: tasks 0, 1, 8",
        "  executor 1 bolts: tasks 2, 3, 4, 5, 6, 7",
        "  count.Word -> out: shuffle, local",
        "  lines.Word -> split: shuffle, driver",
        "  split.Word -> count: fields(text), exchange",
    ]


@pytest.mark.parametrize(
    ("kind", "tasks", "partitions", "readers", "stage"),
    [
        ("shuffle", 4, 2, 2, 0),
        ("shuffle", 2, 4, 2, 0),
        ("shuffle", 3, 2, 2, 1),
        ("shuffle", 1, 4, 1, 0),
        ("global", 3, 4, 1, 0),
        ("fields", 1, 4, 1, 0),
        ("fields", 2, 4, 4, 1),
        ("all", 2, 2, 2, 1),
    ],
)
def test_splits_are_read_where_their_rows_can_stay_or_in_every_partition(
    kind: GroupingKind, tasks: int, partitions: int, readers: int, stage: int
) -> None:
    spout = replace(component("s", "spout"), body=Numbers(1))
    spec = topology(spout, component("a", "bolt", ("s", kind), parallelism=tasks))
    plan = Plan.of(spec, Options(), partitions)
    assert (plan.readers("s"), plan.stage_of("s"), plan.stage_of("a")) == (readers, 0, stage)
    assert Plan.of(spec, Options()).readers("s") == 0
