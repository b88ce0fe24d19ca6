"""Which task gets which tuple, from a spout and from a bolt, for every grouping and several widths."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.conftest import SPARK_NIGHTLY, RunTopology
from tests.spark.helpers_semantics import HEARD, Feed, Result, finish
from tupletree import Collector, Resource, TaskContext, Topology, bolt
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.sinks import jsonl, parquet
from tupletree.testing.conformance.messages import numbered

COUNT = 60
GROUPINGS = ("shuffle", "none", "local_or_shuffle", "fields", "partial_key", "all", "global", "custom")


class Item(msgspec.Struct, frozen=True):
    number: int
    key: int
    via: str


class Seen(msgspec.Struct, frozen=True):
    grouping: str
    task_index: int
    number: int
    key: int
    via: str


class Odd(msgspec.Struct, frozen=True):
    number: int


class Letter(msgspec.Struct, frozen=True):
    letter: str


class Tasks(msgspec.Struct, frozen=True):
    ids: list[int]


@bolt
def relay(item: Item) -> Item:
    return Item(item.number, item.key, "bolt")


@bolt
def see(item: Item, context: TaskContext) -> Seen:
    return Seen(context.component, context.task_index, item.number, item.key, item.via)


@bolt
def see_and_tell_odd(item: Item, context: TaskContext, out: Collector[Seen | Odd]) -> None:
    out.emit(Seen("direct", context.task_index, item.number, item.key, item.via))
    if item.number % 2:
        out.emit(Odd(item.number))


@bolt
def direct(item: Item, tasks: Resource[Tasks], out: Collector[Item]) -> None:
    out.emit_direct(tasks.ids[item.number % len(tasks.ids)], item)


@bolt
def swallow(item: Item) -> None:
    """Emits nothing; the message completes all the same."""


@bolt
def swallow_most(item: Item) -> Item | None:
    return item if item.number == 7 else None


def choose(item: Item, tasks: int) -> int | list[int]:
    """Drop a third, send a third to one task, and a third to every task."""
    return [[], item.number % tasks, list(range(tasks))][item.number % 3]  # type: ignore[return-value]


def topology(name: str, out: Path, width: int, direct_tasks: list[int]) -> Topology:
    t = Topology(name)
    items = [Item(number, number % 5, "spout") for number in range(COUNT)]
    source = t.spout("source", Feed(name, Item, numbered(items)), parallelism=2)
    letters = t.spout("letters", Feed(f"{name}-letters", Letter, numbered([Letter(letter) for letter in "abc"])))
    relayed = t.bolt("relay", relay, parallelism=2).shuffle(source)
    seen = t.sink("seen", jsonl(out / "seen"), parallelism=width)
    for grouping in GROUPINGS:
        seer = t.bolt(grouping, see, parallelism=width)
        for producer in (source, relayed):
            if grouping in {"fields", "partial_key"}:
                getattr(seer, grouping)(producer, "key")
            elif grouping == "custom":
                seer.custom(producer, choose)
            else:
                getattr(seer, "global_" if grouping == "global" else grouping)(producer)
        seen.shuffle(seer)
    chooser = t.bolt("chooser", direct, parallelism=2, resources={"tasks": Tasks(direct_tasks)}).shuffle(source)
    chosen = t.bolt("direct", see_and_tell_odd, parallelism=width).direct(chooser)
    chosen.stream(Odd, unconsumed=True)
    seen.shuffle(chosen.stream(Seen))
    t.bolt("swallow", swallow, parallelism=width).fields(source, "number")
    t.sink("seventh", parquet(out / "seventh")).shuffle(
        t.bolt("most", swallow_most, parallelism=width).shuffle(relayed)
    )
    t.sink("copies", parquet(out / "copies"), parallelism=width).all(relayed)
    t.sink("letters-out", jsonl(out / "letters"), parallelism=1).shuffle(letters)
    return t


@SPARK_NIGHTLY
@pytest.mark.parametrize("width", [1, 2, 3])
def test_every_grouping_delivers_to_the_right_tasks_and_every_copy_is_accounted_for(
    run_topology: RunTopology, tmp_path: Path, width: int
) -> None:
    name = f"groupings-{width}"
    spec = topology(name, tmp_path, width, []).build()
    direct_tasks = list(Plan.of(spec, Options(), 2).task_ids_of("direct"))
    result = finish(run_topology, topology(name, tmp_path, width, direct_tasks), tmp_path, epoch_max_messages=40)
    assert (result.summary.acked, result.summary.failed) == (COUNT + 3, 0)
    assert Counter(HEARD[name].acked) == Counter(range(COUNT))
    assert Counter(HEARD[f"{name}-letters"].acked) == Counter(range(3))
    seen = deliveries(result)
    once = Counter((number, via) for number in range(COUNT) for via in ("spout", "bolt"))
    for grouping in ("shuffle", "none", "local_or_shuffle", "fields", "partial_key", "global"):
        assert Counter((number, via) for _, number, _, via in seen[grouping].elements()) == once, grouping
    for grouping in ("shuffle", "none", "local_or_shuffle", "all", "custom", "direct"):
        assert {task for task, *_ in seen[grouping]} == set(range(width)), grouping
    assert {task for task, *_ in seen["global"]} == {0}
    assert max(Counter(tasks_of_keys(seen["fields"])).values()) == 1
    assert max(Counter(tasks_of_keys(seen["partial_key"])).values()) <= 2
    assert seen["all"] == Counter((task, number, number % 5, via) for number, via in once for task in range(width))
    assert seen["custom"] == Counter(
        (task, number, number % 5, via)
        for number, via in once
        for task in [[], [number % width], range(width)][number % 3]
    )
    assert seen["direct"] == Counter((number % width, number, number % 5, "spout") for number in range(COUNT))
    assert result.tally("seventh", "number") == {7: 1}
    assert result.tally("copies", "number") == Counter(dict.fromkeys(range(COUNT), width))
    assert result.tally("letters", "letter") == Counter("abc")


def deliveries(result: Result) -> dict[str, Counter[tuple[int, int, int, str]]]:
    """Grouping → how often (task index, number, key, via) was delivered."""
    found: dict[str, Counter[Any]] = defaultdict(Counter)
    for row in result.rows("seen"):
        found[row["grouping"]][row["task_index"], row["number"], row["key"], row["via"]] += 1
    return found


def tasks_of_keys(seen: Counter[tuple[int, int, int, str]]) -> list[int]:
    """Each key as often as there are tasks that saw it."""
    return [key for key, _ in {(key, task) for task, _, key, _ in seen}]
