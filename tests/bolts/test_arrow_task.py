"""Arrow bolts: which rows are anchored to which, how a bad row fails alone, and the keyed state of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.bolts.frame_bench import Count, Word, done, emitted, frame, topology_of, words
from tupletree import Anchored, KeyedBatch, Resource, TaskContext, arrow_bolt
from tupletree.bolts.arrow import ArrowTask
from tupletree.bolts.effects import ColumnOutput, TaskPlace
from tupletree.data.codec import ArrowCodec
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame
from tupletree.state.cells import ValueCell, cell_of
from tupletree.state.keys import key_functions
from tupletree.topology.streams import Schema


def task_of(bolt: Any, *, state: ValueCell[Any] | None = None, resources: dict[str, Any] | None = None) -> ArrowTask:
    spec = topology_of(bolt, keyed=state is not None, resources=resources)
    component = spec.components["bolt"]
    place = TaskPlace("bench", "bolt", 7, 0, 1, attempts={2: 3})
    keys = key_functions(spec, component) if state is not None else None
    return ArrowTask(spec, component, place, state, keys)


def texts_of(batch: pa.RecordBatch) -> list[str]:
    texts: list[Any] = batch["text"].to_pylist()
    return texts


def word_batch(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.string())})


FRAME = frame((1, words("a", "b")), ((1, 2), words("c")), (0, words("d")), (3, words("e")))


def test_as_many_rows_as_came_in_are_anchored_in_place() -> None:
    @arrow_bolt(outputs=Word)
    def shout(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pc.utf8_upper(batch["text"])], ["text"])

    worked = task_of(shout).work(FRAME)
    assert emitted(worked) == [
        (1, Word("A")), (1, Word("B")), ((1, 2), Word("C")), (0, Word("D")), (3, Word("E")),
    ]  # fmt: skip
    assert done(worked) == {99: {1, 2, 3}}
    assert isinstance(worked.outputs[0], ColumnOutput)


def test_yielded_batches_count_together() -> None:
    @arrow_bolt(outputs=Word)
    def halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.slice(0, 2)
        yield batch.slice(2, 0)
        yield batch.slice(2)

    assert emitted(task_of(halves).work(FRAME))[2:] == [((1, 2), Word("c")), (0, Word("d")), (3, Word("e"))]


@pytest.mark.parametrize(
    "rows",
    [
        [4, 0, 0],
        np.array([4, 0, 0], np.uint8),
        pa.array([4, 0, 0], pa.int32()),
        pa.chunked_array([[4], [0, 0]]),
        [[4], [0], [0, 1]],
    ],
)
def test_anchored_says_what_each_row_came_of(rows: Any) -> None:
    @arrow_bolt(outputs=Word)
    def pick(batch: pa.RecordBatch) -> Anchored:
        return Anchored(word_batch("x", "y", "z"), rows)

    worked = task_of(pick).work(FRAME)
    assert emitted(worked) == [(3, Word("x")), (1, Word("y")), (1, Word("z"))]
    assert done(worked) == {99: {1, 2, 3}}


def test_a_row_that_came_of_several_is_anchored_to_each_of_their_messages() -> None:
    @arrow_bolt(outputs=Word)
    def merge(batch: pa.RecordBatch) -> Anchored:
        return Anchored(word_batch("x", "y", "z"), pa.array([[2, 4, 0], [3], []], pa.list_(pa.int64())))

    assert emitted(task_of(merge).work(FRAME)) == [((1, 2, 3), Word("x")), (0, Word("y")), (0, Word("z"))]


@pytest.mark.parametrize("rows", [1, 7])
def test_any_other_number_of_rows_is_anchored_to_all(rows: int) -> None:
    @arrow_bolt(outputs=Word)
    def other(batch: pa.RecordBatch) -> pa.RecordBatch:
        return word_batch(*("x" * rows))

    assert emitted(task_of(other).work(FRAME)) == [((1, 2, 3), Word("x"))] * rows


def test_nothing_is_a_result_too() -> None:
    @arrow_bolt
    def look(batch: pa.RecordBatch) -> None: ...

    @arrow_bolt(outputs=Word)
    def none(batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return batch.slice(0, 0)

    for bolt in (look, none):
        worked = task_of(bolt).work(FRAME)
        assert worked.outputs == []
        assert done(worked) == {99: {1, 2, 3}}


def test_a_bad_row_fails_alone_and_what_its_message_emitted_elsewhere_goes_with_it() -> None:
    calls: list[int] = []

    @arrow_bolt(outputs=Word)
    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        if "bad" in batch["text"].to_pylist():
            raise ValueError("bad")
        return batch

    given = frame((1, words("a")), (2, words("b", "bad", "c")), (3, words(*"defgh")), (0, words("i", "bad")))
    worked = task_of(picky).work(given)
    assert emitted(worked) == [(1, Word("a")), *((3, Word(text)) for text in "defgh"), (0, Word("i"))]
    assert done(worked) == {99: {1, 3}}
    assert set(worked.failures) == {2}
    assert (worked.failures[2].error, worked.failures[2].failing_tuple) == ("bad", "Word(text='bad')")
    assert "picky" in worked.failures[2].traceback
    assert "_results" not in worked.failures[2].traceback
    assert (worked.stray_count, worked.strays[0].error) == (1, "bad")
    assert len(calls) < 20


WRONG: list[tuple[Callable[[pa.RecordBatch], Any], str]] = [
    (lambda batch: batch["text"], "pyarrow.RecordBatch"),
    (lambda batch: [1], "pyarrow.RecordBatch"),
    (lambda batch: batch.rename_columns(["other"]), "does not fit"),
    (
        lambda batch: pa.RecordBatch.from_pydict({"text": pa.array([None] * batch.num_rows, pa.string())}),
        "null in text",
    ),
    (lambda batch: pa.RecordBatch.from_pydict({"text": pa.array([[1]] * batch.num_rows)}), "does not fit"),
    (lambda batch: Anchored(batch, [0] * (batch.num_rows + 1)), "rows of an Anchored"),
    (lambda batch: Anchored(batch, [-1] * batch.num_rows), "rows of an Anchored"),
    (lambda batch: Anchored(batch, [batch.num_rows] * batch.num_rows), "rows of an Anchored"),
    (lambda batch: Anchored(batch, [0.5] * batch.num_rows), "rows of an Anchored"),
]


@pytest.mark.parametrize(("answer", "words_of_it"), WRONG)
def test_an_answer_that_is_not_right_fails_its_rows_and_says_why(
    answer: Callable[[pa.RecordBatch], Any], words_of_it: str
) -> None:
    @arrow_bolt(outputs=Word)
    def wrong(batch: pa.RecordBatch) -> pa.RecordBatch:
        return answer(batch)  # type: ignore[no-any-return]  # the point

    worked = task_of(wrong).work(frame((1, words("a")), (2, words("b"))))
    assert worked.outputs == []
    assert set(worked.failures) == {1, 2}
    assert words_of_it in worked.failures[1].error


def test_columns_may_come_in_another_order_and_width() -> None:
    @arrow_bolt(outputs=Count)
    def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        lengths = pa.array([len(text) for text in texts_of(batch)], pa.int8())
        return pa.RecordBatch.from_arrays([lengths, batch["text"].cast(pa.large_string())], ["count", "word"])

    assert emitted(task_of(narrow).work(frame((1, words("abc"))))) == [(1, Count("abc", 3))]


def test_tuples_that_no_column_can_hold_fail_alone() -> None:
    @arrow_bolt(outputs=Word)
    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    odd: list[Any] = [Word("\ud800"), Word(3)]  # type: ignore[arg-type]  # the point
    worked = task_of(same).work(frame((1, words("a")), (2, [odd[0], Word("b")]), (3, [odd[1]]), (4, words("c"))))
    assert emitted(worked) == [(1, Word("a")), (4, Word("c"))]
    assert done(worked) == {99: {1, 4}}
    assert "surrogate" in worked.failures[2].error
    assert "int" in worked.failures[3].error
    only_bad = task_of(same).work(frame((3, [odd[1]])))
    assert (only_bad.outputs, only_bad.done, set(only_bad.failures)) == ([], [], {3})


def test_columns_that_come_as_columns_are_not_made_anew() -> None:
    seen: list[pa.RecordBatch] = []

    @arrow_bolt(outputs=Word)
    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    codec = ArrowCodec.of(Schema.of(Word))
    batch = codec.to_batch(words("a", "b"))
    columns = ArrowColumns(batch, codec, Anchors.of([1, 2], [1, 2]))
    worked = task_of(look).work(ColumnFrame(7, "words", "Word", columns, 99))
    assert seen[0] is batch
    assert emitted(worked) == [(1, Word("a")), (2, Word("b"))]


def test_context_and_resources_are_handed_in() -> None:
    seen: list[Any] = []

    @arrow_bolt(outputs=Word)
    def look(batch: pa.RecordBatch, suffix: Resource[str], context: TaskContext) -> pa.RecordBatch:
        seen.append((context.task_id, context.attempt))
        return word_batch(*(text + suffix for text in texts_of(batch)))

    worked = task_of(look, resources={"suffix": "!"}).work(frame((1, words("a")), (2, words("b"))))
    assert emitted(worked) == [(1, Word("a!")), (2, Word("b!"))]
    assert seen == [(7, 3)]


@arrow_bolt(outputs=Count, state=int)
def count(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> Anchored:
    totals.values = [total + int(n) for total, n in zip(totals.values, np.bincount(totals.codes))]
    if "boom" in totals.keys:
        raise ValueError("boom")
    return totals.anchored(
        pa.RecordBatch.from_arrays([batch["text"].take(totals.first), pa.array(totals.values)], ["word", "count"])
    )


def test_keyed_state_is_one_value_per_key_and_a_row_per_key_is_anchored_to_all_of_its_rows() -> None:
    cell: ValueCell[int] = ValueCell({"b": 10}, int)
    task = task_of(count, state=cell)
    worked = task.work(frame((1, words("a", "b", "a")), (2, words("b", "c")), (0, words("a"))))
    assert emitted(worked) == [(1, Count("a", 3)), ((1, 2), Count("b", 12)), (2, Count("c", 1))]
    assert cell.changed == {"a": 3, "b": 12, "c": 1}
    assert emitted(task.work(frame((4, words("c"))))) == [(4, Count("c", 2))]


def test_a_call_that_fails_leaves_no_trace_in_the_state() -> None:
    cell: ValueCell[int] = ValueCell({}, int)
    worked = task_of(count, state=cell).work(frame((1, words("a")), (2, words("a", "boom")), (3, words("a", "b"))))
    assert set(worked.failures) == {2}
    assert cell.changed == {"a": 3, "b": 1}  # the other row of the failed message counts until the epoch runs again
    assert sum(value.count for _, value in emitted(worked) if value.word == "b") == 1


def test_values_that_are_changed_in_place_count_once_even_if_the_call_is_made_again() -> None:
    @arrow_bolt(outputs=Word, state=list)
    def gather(batch: pa.RecordBatch, seen: KeyedBatch[list[int]]) -> pa.RecordBatch:
        for key, value in zip(seen.keys, seen.values):
            value.append(len(value))
            if key == "boom":
                raise ValueError("boom")
        return batch

    cell: ValueCell[list[int]] = ValueCell({"a": [0]}, list)
    worked = task_of(gather, state=cell).work(frame((1, words("a")), (2, words("b")), (3, words("boom"))))
    assert set(worked.failures) == {3}
    assert {key: value for key, value in cell.changed.items() if value} == {"a": [0, 1], "b": [0]}


class Real(msgspec.Struct, frozen=True):
    key: float | None


def test_rows_that_differ_may_be_one_key() -> None:
    from tupletree import Topology
    from tupletree.data.frames import Frame
    from tupletree.sources import items

    @arrow_bolt(state=int)
    def tally(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> None:
        assert totals.first.tolist() == [0, 1, 3]
        totals.values = [total + int(n) for total, n in zip(totals.values, np.bincount(totals.codes))]

    topology = Topology("t")
    topology.bolt("bolt", tally).fields(topology.spout("reals", items([Real(0.0)])), "key")
    spec = topology.build()
    component = spec.components["bolt"]
    cell: ValueCell[int] = ValueCell({}, int)
    task = ArrowTask(spec, component, TaskPlace("t", "bolt", 7, 0, 1), cell, key_functions(spec, component))
    reals = [Real(0.0), Real(None), Real(-0.0), Real(math.nan), Real(-math.nan), Real(None)]
    worked = task.work(Frame(7, "reals", "Real", reals, [1], [6], 99))
    assert not worked.failures
    assert [(repr(key), total) for key, total in cell.changed.items()] == [("0.0", 2), ("None", 2), ("nan", 2)]


def test_values_must_be_as_many_as_keys() -> None:
    @arrow_bolt(state=int)
    def wrong(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> None:
        totals.values = [1, 2, 3]

    worked = task_of(wrong, state=ValueCell({}, int)).work(frame((1, words("a"))))
    assert "not as many as its keys" in worked.failures[1].error


def test_the_state_of_a_key_expires_unless_it_changes() -> None:
    @arrow_bolt(state=int, ttl_s=10.0)
    def tally(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> None:
        totals.values = [total + 1 for total in totals.values]

    state = tally.spec.state
    assert state is not None
    cell = cell_of(state)
    spec = topology_of(tally, keyed=True)
    component = spec.components["bolt"]
    place = TaskPlace("bench", "bolt", 7, 0, 1)
    task = ArrowTask(spec, component, place, cell, key_functions(spec, component))
    seen = []
    for time_s, texts in ((0.0, "a b"), (9.0, "a"), (12.0, "a b")):
        place.epoch_time_s = time_s
        assert not task.work(frame((1, words(*texts.split())))).failures
        seen.append(dict(cell.changed))
    assert seen == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 1}]
