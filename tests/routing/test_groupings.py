"""Routing: who gets what, in which order, under which roots, and what happens to tuples that fit nowhere."""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupletree.config import Options
from tupletree.data.frames import Root
from tupletree.errors import ProcessingError
from tupletree.routing.groupings import MEMO_SIZE, Batch, Router
from tupletree.routing.hashing import key_group, task_of_group
from tupletree.routing.plan import Plan
from tupletree.topology.model import ComponentSpec, Grouping, InputSpec, StreamSpec, TopologySpec
from tupletree.topology.streams import Schema


class Word(msgspec.Struct, frozen=True):
    text: str | None
    number: int = 0


class Name(enum.StrEnum):
    ANN = "ann"


class Keyed(msgspec.Struct, frozen=True):
    whole: int = 0
    real: float = 0.0
    flag: bool = False
    raw: bytes = b""
    either: int | float | str | None = None
    at: datetime | None = None
    amount: Decimal | None = None
    name: Name | None = None


def plan_of(
    *consumers: tuple[str, Grouping, int],
    cls: type = Word,
    producers: int = 1,
    kind: Literal["spout", "bolt"] = "spout",
    partitions: int | None = None,
) -> Plan:
    """A producer `p` of one stream, and its consumers: (name, grouping, tasks)."""
    stream = StreamSpec("p", "out", Schema.of(cls))
    components = [ComponentSpec("p", kind, None, producers, {"out": stream})]
    components += [
        ComponentSpec(name, "bolt", None, tasks, {}, (InputSpec("p", "out", grouping),))
        for name, grouping, tasks in consumers
    ]
    return Plan.of(TopologySpec("t", {each.name: each for each in components}), Options(acker_tasks=0), partitions)


def router(*groupings: tuple[Grouping, int], cls: type = Word) -> Router:
    """Consumers' tasks are numbered from 1 (0 is the system task)."""
    plan = plan_of(*((f"c{number}", grouping, tasks) for number, (grouping, tasks) in enumerate(groupings)), cls=cls)
    return Router.of(plan, plan.task_ids_of("p")[0], "out")


def words(*texts: str | None) -> list[Word]:
    return [Word(text) for text in texts]


def flat(batch: Batch) -> list[tuple[Root, Any]]:
    """Every value with its root."""
    pairs: list[tuple[Root, Any]] = []
    start = 0
    for root, end in zip(batch.roots, batch.ends, strict=True):
        pairs += [(root, value) for value in batch.values[start:end]]
        start = end
    return pairs


def send(sender: Router, *texts: str) -> dict[int, list[str | None]]:
    batches, failures = sender.route(words(*texts), list(range(1, len(texts) + 1)), list(range(1, len(texts) + 1)))
    assert not failures
    return {batch.task: [value.text for value in batch.values] for batch in batches}


SHUFFLE = Grouping("shuffle")
BY_TEXT = Grouping("fields", ("text",))
ALL_KINDS = [
    SHUFFLE,
    BY_TEXT,
    Grouping("fields", ("text", "number")),
    Grouping("partial_key", ("text",)),
    Grouping("all"),
    Grouping("global"),
    Grouping("local_or_shuffle"),
    Grouping("none"),
    Grouping("custom", custom=lambda word, tasks: word.number % tasks),
    Grouping("custom", custom=lambda word, tasks: [index for index in range(tasks) if (word.number >> index) & 1]),
]
ROOTS: st.SearchStrategy[Root] = st.integers(0, 3) | st.sampled_from([(1, 2), (2, 3)])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Word], list[Root], list[int]]:
    """Values in segments; adjacent ones differ in their root, as producers leave them."""
    values: list[Word] = []
    roots: list[Root] = []
    ends: list[int] = []
    for root, size in draw(st.lists(st.tuples(ROOTS, st.integers(1, 12)), max_size=8)):
        if roots and roots[-1] == root:
            continue
        values += [
            Word(draw(st.sampled_from(["a", "b", "c", "d", None])), draw(st.integers(0, 9))) for _ in range(size)
        ]
        roots.append(root)
        ends.append(len(values))
    return values, roots, ends


@given(st.lists(layouts(), max_size=4), st.integers(0, len(ALL_KINDS) - 1), st.integers(1, 5))
def test_every_grouping_keeps_values_roots_and_order(
    calls: list[tuple[list[Word], list[Root], list[int]]], which: int, tasks: int
) -> None:
    grouping = ALL_KINDS[which]
    sender = router((grouping, tasks))
    for values, roots, ends in calls:
        before = (list(values), list(roots), list(ends))
        source = flat(Batch(0, values, roots, ends))
        batches, failures = sender.route(values, roots, ends)
        assert failures == []
        assert (values, roots, ends) == before
        assert len({batch.task for batch in batches}) == len(batches)
        for batch in batches:
            assert 1 <= batch.task <= tasks
            assert batch.values
            assert batch.ends == sorted(set(batch.ends))
            assert batch.ends[-1] == len(batch.values)
            assert all(left != right for left, right in zip(batch.roots, batch.roots[1:], strict=False))
            remaining = iter(source)
            assert all(pair in remaining for pair in flat(batch)), "a subsequence, in order"
        sent = Counter(pair for batch in batches for pair in flat(batch))
        copies = Counter(source)
        if grouping.kind == "all":
            assert sent == Counter({pair: count * tasks for pair, count in copies.items()})
        elif grouping.custom is not ALL_KINDS[-1].custom:
            assert sent == copies


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 7))
def test_a_shuffle_is_even_over_any_number_of_calls(sizes: list[int], tasks: int) -> None:
    sender = router((SHUFFLE, tasks))
    loads = Counter(dict.fromkeys(range(1, tasks + 1), 0))
    for size in sizes:
        batches, _ = sender.route(words(*["a"] * size), [1] * bool(size), [size] * bool(size))
        loads.update({batch.task: len(batch.values) for batch in batches})
        assert max(loads.values()) - min(loads.values()) <= 1


def test_a_shuffle_deals_runs_so_that_roots_stay_together() -> None:
    batches, _ = router((SHUFFLE, 2)).route(words(*"abcdef"), [7, 8, 9], [2, 4, 6])
    assert [(batch.roots, batch.ends) for batch in batches] == [([7, 8], [2, 3]), ([8, 9], [1, 3])]


def test_producers_start_their_shuffles_at_different_tasks() -> None:
    plan = plan_of(("c", SHUFFLE, 2), producers=2)
    senders = [Router.of(plan, task, "out") for task in plan.task_ids_of("p")]
    assert [list(send(sender, "a")) for sender in senders] == [[1], [2]]


def test_one_task_gets_the_very_lists_that_came_in() -> None:
    values, roots, ends = words("a", "b"), [1, 2], [1, 2]
    for grouping in (SHUFFLE, BY_TEXT, Grouping("all"), Grouping("global")):
        [batch], _ = router((grouping, 1)).route(values, roots, ends)  # type: ignore[arg-type]
        assert batch.values is values
        assert batch.roots is roots
        assert batch.ends is ends


def test_fields_send_a_key_to_the_owner_of_its_key_group() -> None:
    texts = [f"w{number}" for number in range(200)]
    got = send(router((BY_TEXT, 5)), *texts)
    for task, received in got.items():
        assert {task_of_group(key_group(text), 5) for text in received} == {task - 1}
    assert sum(map(len, got.values())) == 200


def test_none_is_a_key_like_any_other() -> None:
    batches, failures = router((BY_TEXT, 3)).route([Word(None), Word("a"), Word(None)], [1, 2, 3], [1, 2, 3])
    assert not failures
    [of_none] = [batch for batch in batches if Word(None) in batch.values]
    assert of_none.values.count(Word(None)) == 2


@pytest.mark.parametrize(
    ("field", "left", "right"),
    [
        ("whole", 1, True),
        ("real", 1.0, 1),
        ("real", 0.0, -0.0),
        ("real", float("nan"), -float("nan")),
        ("raw", b"a", bytearray(b"a")),
        ("amount", Decimal("1.0"), Decimal("1.00")),
        ("at", datetime(2026, 1, 1, tzinfo=UTC), datetime.fromisoformat("2026-01-01T01:00:00+01:00")),
        ("name", Name.ANN, "ann"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_keys_that_are_equal_once_coerced_go_to_one_task(field: str, left: Any, right: Any, order: int) -> None:
    sender = router((Grouping("fields", (field,)), 32), cls=Keyed)
    values = [Keyed(**{field: left}), Keyed(**{field: right})][::order]
    for part in ([values[0]], [values[1]], values):
        batches, failures = sender.route(part, [1], [len(part)])
        assert not failures
        assert len(batches) == 1
    assert len({sender.route([value], [1], [1])[0][0].task for value in values}) == 1


@given(st.permutations([1, 0.5, "1", None]))
def test_a_union_tells_types_apart_in_any_order(order: list[Any]) -> None:
    sender = router((Grouping("fields", ("either",)), 32), cls=Keyed)
    for key in order:
        [batch], _ = sender.route([Keyed(either=key)], [1], [1])
        assert batch.task - 1 == task_of_group(key_group(key), 32)


def test_a_wrong_type_fails_even_after_an_equal_key_of_the_right_type() -> None:
    sender = router((Grouping("fields", ("whole",)), 3), cls=Keyed)
    sender.route([Keyed(whole=1)], [1], [1])
    batches, failures = sender.route([Keyed(whole=1.0), Keyed(whole=1)], [1, 2], [1, 2])  # type: ignore[arg-type]
    assert [(batch.values, batch.roots) for batch in batches] == [([Keyed(whole=1)], [2])]
    [(position, error)] = failures
    assert position == 0
    assert isinstance(error, TypeError)
    assert "Keyed.whole" in str(error)


def test_a_memo_that_is_full_starts_again_and_changes_nothing() -> None:
    sender = router((Grouping("fields", ("whole",)), 3), cls=Keyed)
    expected = sender.route([Keyed(whole=5)], [1], [1])[0][0].task
    values = [Keyed(whole=number) for number in range(MEMO_SIZE + 10)]
    sender.route(values, [1], [len(values)])
    assert sender.route([Keyed(whole=5)], [1], [1])[0][0].task == expected


def test_partial_key_uses_two_tasks_per_key_and_balances_them() -> None:
    sender = router((Grouping("partial_key", ("text",)), 8))
    loads: Counter[int] = Counter()
    owners: dict[str | None, set[int]] = defaultdict(set)
    for text in ["hot", *(f"w{number}" for number in range(50))]:
        for task, received in send(sender, *[text] * 20).items():
            loads[task] += len(received)
            owners[text].add(task)
    assert all(len(tasks) <= 2 for tasks in owners.values())
    hot = send(router((Grouping("partial_key", ("text",)), 8)), *["hot"] * 100)
    assert sorted(map(len, hot.values())) == [50, 50]
    assert sum(loads.values()) == 51 * 20


def test_partial_key_with_one_task_gives_it_everything() -> None:
    assert send(router((Grouping("partial_key", ("text",)), 1)), "a", "b") == {1: ["a", "b"]}


def test_all_gives_every_task_a_copy_and_global_the_lowest_task() -> None:
    assert send(router((Grouping("all"), 3)), "a", "b") == {task: ["a", "b"] for task in (1, 2, 3)}
    assert send(router((Grouping("global"), 3)), "a", "b") == {1: ["a", "b"]}


def test_each_consumer_gets_its_own_copy_in_declaration_order() -> None:
    assert send(router((SHUFFLE, 1), (Grouping("all"), 2)), "a") == {1: ["a"], 2: ["a"], 3: ["a"]}


def test_no_consumers_and_no_tuples_make_no_batches() -> None:
    assert router().route(words("a"), [1], [1]) == ([], [])
    assert router((SHUFFLE, 2)).route([], [], []) == ([], [])


def custom(function: Any, tasks: int = 3) -> Router:
    return router((Grouping("custom", custom=function), tasks))


def test_a_custom_grouping_may_name_one_several_or_no_tasks() -> None:
    answers: dict[str | None, int | list[int]] = {"one": 2, "two": [2, 0, 2], "none": []}
    sender = custom(lambda word, tasks: answers[word.text])
    assert send(sender, "one", "two", "none") == {1: ["two"], 3: ["one", "two"]}
    assert send(sender, "none") == {}


@pytest.mark.parametrize("answer", [3, -1, [0, 3], None, "0", True, 1.0])
def test_a_custom_grouping_that_names_no_task_fails_its_tuple_only(answer: Any) -> None:
    sender = custom(lambda word, tasks: answer if word.text == "bad" else 1)
    batches, failures = sender.route(words("a", "bad", "b"), [7, 8], [2, 3])
    assert [(batch.task, batch.values, batch.roots, batch.ends) for batch in batches] == [
        (2, words("a", "b"), [7, 8], [1, 2])
    ]
    [(position, error)] = failures
    assert position == 1
    assert isinstance(error, ProcessingError)
    assert "expected: an index from 0 to 2" in str(error)


def test_a_tuple_that_one_consumer_cannot_place_goes_to_no_consumer() -> None:
    def odd(word: Word, tasks: int) -> int:
        if word.text == "odd":
            raise LookupError(word.text)
        return 0

    sender = router((Grouping("all"), 2), (BY_TEXT, 2), (Grouping("custom", custom=odd), 1), (SHUFFLE, 2))
    values = words("a", "odd", "\ud800", "b")
    batches, failures = sender.route(values, [1, 2], [2, 4])
    assert [(position, type(error)) for position, error in failures] == [(1, LookupError), (2, UnicodeEncodeError)]
    for batch in batches:
        assert set(flat(batch)) <= {(1, Word("a")), (2, Word("b"))}
    assert sum(len(batch.values) for batch in batches) == 2 * 2 + 2 + 2 + 2


def test_roots_that_become_adjacent_by_a_failure_are_one_segment() -> None:
    batches, failures = router((BY_TEXT, 1)).route(words("a", "\ud800", "b"), [5, 6, 5], [1, 2, 3])
    assert [position for position, _ in failures] == [1]
    assert [(batch.roots, batch.ends) for batch in batches] == [([5], [2])]


def test_a_batch_of_failures_delivers_nothing_and_moves_no_turn() -> None:
    sender = router((BY_TEXT, 1), (SHUFFLE, 2))
    assert sender.route(words("\ud800"), [1], [1])[0] == []
    assert send(sender, "a") == {1: ["a"], 2: ["a"]}


def test_a_direct_emit_reaches_the_named_task_and_no_one_else() -> None:
    sender = router((Grouping("direct"), 2), (SHUFFLE, 1))
    assert sender.route_direct(2, words("a"), [1], [1]) == Batch(2, words("a"), [1], [1])
    assert send(sender, "a") == {3: ["a"]}
    with pytest.raises(ProcessingError, match="expected: one of 1, 2"):
        sender.route_direct(3, words("a"), [1], [1])


@pytest.mark.parametrize("kind", ["local_or_shuffle", "none"])
def test_local_groupings_stay_in_their_partition(kind: Literal["local_or_shuffle", "none"]) -> None:
    plan = plan_of(("c", Grouping(kind), 4), kind="bolt", producers=2, partitions=2)
    for task in plan.task_ids_of("p"):
        got = send(Router.of(plan, task, "out"), *"abcd")
        assert {plan.placement(target) for target in got} == {plan.placement(task)}
        assert [len(received) for received in got.values()] == [2, 2]


def test_local_groupings_go_anywhere_if_no_task_is_in_the_partition() -> None:
    plan = plan_of(("c", Grouping("local_or_shuffle"), 1), kind="bolt", producers=2, partitions=2)
    [_, far] = [Router.of(plan, task, "out") for task in plan.task_ids_of("p")]
    assert [len(received) for received in send(far, "a").values()] == [1]


def test_a_shuffle_over_an_exchange_reaches_every_task_and_a_local_one_its_partition() -> None:
    wide = plan_of(("c", SHUFFLE, 4), kind="bolt", producers=1, partitions=4)
    assert len(send(Router.of(wide, wide.task_ids_of("p")[0], "out"), *"abcd")) == 4
    even = plan_of(("c", SHUFFLE, 2), kind="bolt", producers=2, partitions=2)
    assert len(send(Router.of(even, even.task_ids_of("p")[0], "out"), *"abcd")) == 1


def test_a_spout_deals_to_every_partition() -> None:
    plan = plan_of(("c", Grouping("local_or_shuffle"), 4), kind="spout", partitions=4)
    assert len(send(Router.of(plan, plan.task_ids_of("p")[0], "out"), *"abcd")) == 4


@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("text", ["a", None, "\ud800", "a", "b\udfff", ""]),
        ("whole", [1, True, 2**63, -(2**63), -(2**63) - 1, 0, "x"]),
        ("real", [0.0, -0.0, math.nan, 1, "x", math.inf]),
        ("raw", [b"", b"a", "a", bytearray(b"a")]),
        ("either", [1, 1.0, "1", None, 2**64, object()]),
        ("amount", [Decimal(1), Decimal("1.0"), None, "1"]),
    ],
)
def test_a_lone_task_is_refused_the_keys_that_several_are_refused(field: str, keys: list[Any]) -> None:
    cls: type = Word if field == "text" else Keyed
    values = [cls(**{field: key}) for key in keys]
    roots: list[Root] = [*range(1, len(keys) + 1)]
    refused = []
    for tasks in (1, 2, 3):
        for grouping in (Grouping("fields", (field,)), Grouping("partial_key", (field,))):
            batches, failures = router((grouping, tasks), cls=cls).route(values, roots, [*range(1, len(keys) + 1)])
            refused.append([(position, type(error)) for position, error in failures])
            assert sum(len(batch.values) for batch in batches) == len(keys) - len(failures)
    assert all(one == refused[0] for one in refused)


def test_a_key_goes_to_the_deputy_of_its_task() -> None:
    words_only = (Grouping("fields", ("text",)), 4)
    apart = plan_of(("c", *words_only))
    first, _, third, _ = apart.task_ids_of("c")
    served = replace(apart, _deputies={"c": (first, first, third, third)})
    texts = [f"word {number}" for number in range(100)]
    alone, together = (send(Router.of(plan, plan.task_ids_of("p")[0], "out"), *texts) for plan in (apart, served))
    assert together == {
        first: [text for text in texts if text in alone[first] + alone[first + 1]],
        third: [text for text in texts if text in alone[third] + alone[third + 1]],
    }
