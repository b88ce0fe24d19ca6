"""A call that raises is made again where its place says so, and nothing is left of what it did before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.bolts.frame_bench import Bad, Count, Word, done, emitted, frame, topology_of, words
from tupletree import (
    Anchored,
    Bolt,
    Collector,
    KeyedBatch,
    KeyedState,
    ListState,
    MapState,
    PermanentError,
    TaskState,
    Tick,
    arrow_bolt,
    batch_bolt,
    bolt,
    window_bolt,
)  # fmt: skip
from tupletree.bolts.arrow import ArrowTask
from tupletree.bolts.call_retry import HELD_AT_MOST
from tupletree.bolts.effects import CallsAgain, TaskPlace, Worked
from tupletree.bolts.factory import holder_of
from tupletree.bolts.plain import BoltTask
from tupletree.errors import ProcessingTimeoutError
from tupletree.state.cells import ValueCell, cell_of
from tupletree.state.keys import key_functions
from tupletree.topology.model import StateSpec


class Trip:
    """Raises the first few times that it is asked about something."""

    def __init__(self) -> None:
        self.set(0)

    def set(self, times: int, error: Callable[[], BaseException] = lambda: ConnectionError("tripped")) -> None:
        self.times, self.error = times, error
        self.met: Counter[object] = Counter()

    def __call__(self, over: object) -> None:
        self.met[over] += 1
        if self.met[over] <= self.times:
            raise self.error()


trip = Trip()


@bolt
def one(word: Word) -> Word:
    trip(id(word))
    return word


@bolt
def several(word: Word) -> Iterator[Word | Bad]:
    yield word
    trip(id(word))
    yield Bad(word.text)


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    trip(id(word))
    return Count(word.text, total.value)


@bolt(state=list)
def gather(word: Word, seen: KeyedState[list[str]]) -> Iterator[Count]:
    seen.value.append(word.text)
    yield Count(word.text, len(seen.value))
    trip(id(word))
    seen.value.append("again")


@bolt(state=dict)
def nest(word: Word, seen: KeyedState[dict[str, list[int]]]) -> Count:
    seen.value.setdefault("here", []).append(1)
    trip(id(word))
    return Count(word.text, len(seen.value["here"]))


@bolt
def note(word: Word, seen: MapState[str, int]) -> Count:
    if len(seen) > 1:
        seen.clear()
    seen[f"{len(seen)}"] = 1
    trip(id(word))
    return Count(word.text, len(seen))


@bolt
def list_up(word: Word, seen: ListState[str]) -> None:
    seen.append(word.text)
    trip(id(word))
    seen.insert(0, "first")


@bolt
def emit(word: Word, out: Collector[Word]) -> None:
    out.emit(word)
    out.emit(Word("loose"), anchors=())
    trip(id(word))
    out.emit(word, anchors=[word])
    out.ack(word)


class Tally(Bolt[Word]):
    state_default = int
    total: KeyedState[int]

    def process(self, value: Word, collector: Collector[Count]) -> Iterator[Count]:
        self.total.value += 1
        collector.emit(Count(value.text, self.total.value))
        yield Count("more", self.total.value)
        trip(id(value))
        self.total.value += 1
        collector.ack(value)


@bolt(state=int)
def enumerate_all(word: Word, number: TaskState[int]) -> Count:
    number.value += 1
    trip(id(word))
    return Count(word.text, number.value)


@batch_bolt(size=2)
def batch(rows: list[Word]) -> Iterator[Word]:
    while rows:
        yield rows.pop(0)
        trip("".join(row.text for row in rows))


@window_bolt(count=2)
def window(rows: list[Word]) -> Word:
    rows.reverse()
    trip(rows[0].text)
    return Word("".join(row.text for row in rows))


@arrow_bolt(outputs=Word)
def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    for number, text in enumerate(batch["text"].to_pylist()):
        trip((text, number))
    return batch


@arrow_bolt(outputs=Count, state=int)
def count_rows(batch: pa.RecordBatch, totals: KeyedBatch[int]) -> Anchored:
    totals.values = [value + 1 for value in totals.values]
    trip(tuple(totals.keys))
    counts = pa.RecordBatch.from_pydict({"word": pa.array(totals.keys), "count": pa.array(totals.values, pa.int64())})
    return totals.anchored(counts)


FUNCTIONS = [one, several, emit, batch, window, pass_on]
STATEFUL = [count, gather, nest, note, list_up, enumerate_all, Tally]
FRAME = frame((1, words("a", "b")), ((1, 2), words("a")), (3, words("c")), (4, words("a")), (5, words("b")))
SINGLES = frame((1, words("a")), ((2, 3), words("b")), (4, words("a")), (5, words("a")))


def task_of(what: Any, calls: int, cell: ValueCell[Any] | None = None) -> Any:
    spec = topology_of(what, keyed=what in STATEFUL or what is count_rows)
    component = spec.components["bolt"]
    place = TaskPlace("bench", "bolt", 7, 0, 1, calls=calls)
    keys = key_functions(spec, component) if cell is not None else None
    if component.body.style == "arrow":
        return ArrowTask(spec, component, place, cell, keys)
    task = holder_of(component, place) or BoltTask(component, place, cell, keys)
    task.open()
    return task


def came_of(worked: Worked) -> tuple[object, ...]:
    return emitted(worked), done(worked), set(worked.failures), worked.late_verdicts, worked.stray_count


@pytest.mark.parametrize("given", [FRAME, SINGLES], ids=["frame", "singles"])
@pytest.mark.parametrize("what", FUNCTIONS)
def test_calls_that_raise_twice_come_to_the_same_as_calls_that_never_do(what: Any, given: Any) -> None:
    trip.set(0)
    expected = came_of(task_of(what, 1).work(given))
    trip.set(2)
    task = task_of(what, 3)
    assert came_of(task.work(given)) == expected
    assert sum(trip.met.values()) >= 2 + len(trip.met)
    assert task._place.calls_again.passed


@pytest.mark.parametrize("given", [FRAME, SINGLES], ids=["frame", "singles"])
@pytest.mark.parametrize("ttl_s", [None, 60.0])
@pytest.mark.parametrize("what", STATEFUL)
def test_state_is_put_back_before_a_call_is_made_again(what: Any, ttl_s: float | None, given: Any) -> None:
    spec: StateSpec = topology_of(what, keyed=True).components["bolt"].body.state
    unbroken, broken = (cell_of(replace(spec, ttl_s=ttl_s)) for _ in range(2))
    trip.set(0)
    expected = came_of(task_of(what, 1, unbroken).work(given))
    trip.set(2)
    assert came_of(task_of(what, 3, broken).work(given)) == expected
    assert broken.delta() == unbroken.delta() != {}


def test_a_row_of_columns_is_called_for_again_until_it_comes_to_something() -> None:
    cell = ValueCell[int]({}, int)
    trip.set(2)
    worked = task_of(count_rows, 3, cell).work(FRAME)
    assert not worked.failures
    assert cell.changed == {"a": 3, "b": 2, "c": 1}


@pytest.mark.parametrize("what", [*FUNCTIONS, *STATEFUL, count_rows])
def test_what_raises_in_every_call_fails_after_as_many_as_its_place_says(what: Any) -> None:
    cell = None if what in FUNCTIONS else cell_of(topology_of(what, keyed=True).components["bolt"].body.state)
    trip.set(1_000)
    task = task_of(what, 3, cell)
    worked = task.work(frame((1, words("a")), (2, words("b"))))
    assert set(worked.failures) == {1, 2}
    assert task._place.calls_again.failed
    assert not task._place.calls_again.passed
    assert {failure.error for failure in worked.failures.values()} == {"tripped"}
    assert max(trip.met.values()) <= 6
    assert not [root for root, _ in emitted(worked) if root]
    if what is count:
        assert set(trip.met.values()) == {3}


@pytest.mark.parametrize("error", [PermanentError, ProcessingTimeoutError])
@pytest.mark.parametrize("what", [one, several, count, emit, window, pass_on])
def test_what_will_not_pass_or_takes_too_long_is_not_called_for_again(what: Any, error: Any) -> None:
    trip.set(1_000, error)
    task = task_of(what, 3, ValueCell({}, int) if what is count else None)
    worked = task.work(frame((1, words("a", "b"))))
    assert set(worked.failures) == {1}
    calls = 3 if what is pass_on else 1  # for both rows, and for each of them
    assert sum(trip.met.values()) <= calls
    assert task._place.calls_again == CallsAgain(), "no call was made again"


@pytest.mark.parametrize(("given", "calls"), [(HELD_AT_MOST - 1, 3), (HELD_AT_MOST + 1, 1)])
def test_a_giant_is_not_held_as_a_whole_and_not_insisted_on_once_it_is_one(given: int, calls: int) -> None:
    met: list[str] = []

    @bolt
    def multiply(word: Word) -> Iterator[Word]:
        met.append(word.text)
        yield from [word] * given
        raise ConnectionError

    worked = task_of(multiply, 3).work(frame((1, words("a"))))
    assert (set(worked.failures), worked.outputs, met) == ({1}, [], ["a"] * calls)


def test_an_interrupt_that_a_bolt_raises_is_a_failure_like_any_other() -> None:
    for what in (one, emit, pass_on):
        trip.set(1_000, KeyboardInterrupt)
        worked = task_of(what, 3).work(FRAME)
        assert worked.failures
        assert {one.error_type for one in worked.failures.values()} == {"KeyboardInterrupt"}


@pytest.mark.parametrize("what", [one, emit])
def test_an_untracked_tuple_is_not_insisted_on_for_no_message_fails_of_it(what: Any) -> None:
    trip.set(1)
    worked = task_of(what, 3).work(frame((0, words("a")), (1, words("b"))))
    assert (worked.stray_count, worked.failures) == (1, {})
    assert (1, Word("b")) in emitted(worked)


class Noting(Bolt[Word]):
    """Does something to the tuple before, and then raises."""

    def __init__(self) -> None:
        self.calls = 0
        self.before: Word | None = None

    def process(self, value: Word, collector: Collector[Word]) -> None:
        self.calls += 1
        before, self.before = self.before, value
        if before is not None:
            self.to_the_one_before(collector, before)
            raise ConnectionError

    def to_the_one_before(self, collector: Collector[Word], before: Word) -> None:
        """Nothing, unless a subclass does something to it."""


class Acking(Noting):
    auto_ack = False

    def to_the_one_before(self, collector: Collector[Word], before: Word) -> None:
        collector.ack(before)


class Failing(Noting):
    auto_ack = False

    def to_the_one_before(self, collector: Collector[Word], before: Word) -> None:
        collector.fail(before)


class Anchoring(Noting):
    auto_ack = False

    def to_the_one_before(self, collector: Collector[Word], before: Word) -> None:
        collector.emit(before, anchors=[before])


class Forgiving(Noting):
    """Its error fails nothing."""

    auto_fail = False


@pytest.mark.parametrize("what", [Acking, Failing, Anchoring, Forgiving])
def test_a_call_that_settled_or_passed_on_another_tuple_or_fails_none_is_not_made_again(what: type[Noting]) -> None:
    given = frame((1, words("a")), (2, words("b")))
    once, thrice = task_of(what, 1), task_of(what, 3)
    assert came_of(thrice.work(given)) == came_of(once.work(given))
    assert thrice._bolt.calls == 2


@bolt
def refuse(word: Word, out: Collector[Word]) -> None:
    trip.met[word.text] += 1
    out.fail(word, "no")
    raise ConnectionError


def test_a_tuple_that_its_bolt_failed_by_hand_stays_failed() -> None:
    trip.set(0)
    worked = task_of(refuse, 3).work(frame((1, words("a"))))
    assert worked.failures[1].error == "no"
    assert trip.met["a"] == 1


@bolt
def tick_tock(word: Word | Tick) -> None:
    trip("tick")


def test_a_tick_is_not_insisted_on() -> None:
    trip.set(1)
    task = task_of(tick_tock, 3)
    task.work(frame((1, [])))
    assert task.tick(1.0).stray_count == 1
    assert trip.met["tick"] == 1


def test_a_default_that_raises_fails_the_tuple_at_once() -> None:
    def default() -> int:
        trip("default")
        return 0

    trip.set(1)
    worked = task_of(count, 3, ValueCell({}, default)).work(frame((1, words("a")), (2, words("b"))))
    assert set(worked.failures) == {1}
