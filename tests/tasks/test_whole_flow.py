from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import pytest

from tests.tasks.driving import Driver
from tests.tasks.streams import Count, Gathering, Line, Script, Word, lines
from tupletree import Collector, Emit, KeyedState, TaskContext, Topology, bolt
from tupletree.config import Options
from tupletree.data.frames import Frame
from tupletree.tracking.outcomes import FailureKind


@bolt
def split(line: Line) -> Iterator[Word]:
    for word in line.text.split():
        if word == "poison":
            raise ValueError("poison")
        yield Word(word)


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


def word_count(script: Script, sink: Gathering, parallelism: int = 2) -> Topology:
    t = Topology("words")
    words = t.bolt("split", split, parallelism=parallelism).shuffle(t.spout("lines", script))
    counts = t.bolt("count", count, parallelism=parallelism).fields(words, "word")
    t.sink("out", sink).shuffle(counts)
    return t


def assert_empty(driver: Driver) -> None:
    """Nothing is left of any message, once the memory of settled roots has rotated away."""
    driver.now_s += 1_000.0
    for _ in range(4):
        driver.settle()
        driver.now_s += 1_000.0
    assert [acker.size for acker in driver.ackers] == [0] * len(driver.ackers)
    assert [spout.pending.size for spout in driver.spouts] == [0] * len(driver.spouts)
    assert [sink.held for sink in driver.sinks] == [0] * len(driver.sinks)
    assert driver.attempts == {}


@pytest.mark.parametrize("ackers", [1, 2, 3, 4, 7])
def test_word_count_equals_counter_whatever_the_number_of_ackers(ackers: int) -> None:
    texts = [f"a b{number % 7} c{number % 3} a" for number in range(300)]
    script, sink = Script([lines(*texts)]), Gathering()
    driver = Driver(word_count(script, sink), Options(acker_tasks=ackers))
    driver.run()
    last: Counter[str] = Counter()
    for row in sink.rows:
        last[row.word] = max(last[row.word], row.count)
    assert last == Counter(" ".join(texts).split())
    assert sorted(script.acked) == list(range(300))
    assert sum(acker.counters.completed for acker in driver.ackers) == 300
    assert_empty(driver)


def test_a_poison_line_dies_after_its_attempts_and_leaves_no_row() -> None:
    script, sink = Script([lines("a b", "a poison b", "c")]), Gathering()
    driver = Driver(word_count(script, sink), Options(max_attempts=3))
    driver.run()
    assert sorted(row.word for row in sink.rows) == ["a", "b", "c"]
    assert script.acked in ([0, 2], [2, 0])
    (died,) = driver.died
    assert (died.message_id, died.attempts, died.failure.error) == (1, 3, "poison")
    assert [message_id for message_id, _ in script.failed] == [1]
    assert driver.spouts[0].pending.counters.failed == 3
    assert_empty(driver)


def test_a_flaky_line_is_retried_with_its_attempt_number_until_it_passes() -> None:
    seen: list[int] = []

    @bolt
    def flaky(line: Line, context: TaskContext) -> Word:
        seen.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError
        return Word(line.text)

    t = Topology("flaky")
    script, sink = Script(lines("a")), Gathering()
    t.sink("out", sink).shuffle(t.bolt("flaky", flaky).shuffle(t.spout("lines", script)))
    driver = Driver(t)
    driver.run()
    assert seen == [1, 2, 3]
    assert sink.rows == [Word("a")]
    assert script.acked == [0]
    assert script.failed == []
    assert_empty(driver)


def test_rows_become_visible_only_when_their_message_is_complete() -> None:
    held: list[Word] = []

    @bolt(auto_ack=False)
    def hold(word: Word, out: Collector[Word]) -> None:
        held.append(word)
        if word.word == "go":
            for one in held:
                out.ack(one)

    script, sink = Script([lines("a b"), None], ends=False), Gathering()
    t = Topology("branches")
    words = t.bolt("split", split).shuffle(t.spout("lines", script))
    t.sink("out", sink).shuffle(words)
    t.bolt("hold", hold).shuffle(words).stream(Word, unconsumed=True)
    driver = Driver(t)
    driver.settle()
    assert sink.rows == []
    assert len(held) == 2
    script.steps.append(Emit(Line("go"), "later"))
    driver.settle()
    assert [row.word for row in sink.rows] == ["a", "b", "go"]
    assert script.acked == [0, "later"]


def test_the_pending_limit_of_three_is_never_exceeded_although_the_spout_gives_a_thousand() -> None:
    script, sink = Script([lines(*(f"w{number}" for number in range(1_000)))]), Gathering()
    driver = Driver(word_count(script, sink), Options(max_spout_pending=3))
    most = 0
    spout = driver.spouts[0]
    while not spout.is_finished:
        spout.poll(driver.now, driver.out)
        driver.carry_out()
        most = max(most, spout.open_count - spout.writing)
        while driver.step():
            pass
        for one in driver.sinks:
            one.poll(driver.now, driver.out)
        driver.carry_out()
    assert most == 3
    assert script.asked == 2
    assert len(script.acked) == 1_000


def test_a_tuple_that_is_never_acked_times_out_between_t_and_one_and_a_half_t() -> None:
    @bolt(auto_ack=False)
    def forget(line: Line, out: Collector[Word]) -> None:
        """Neither ack nor fail."""

    script = Script(lines("a"), ends=False)
    t = Topology("forgetful")
    t.bolt("forget", forget).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    driver = Driver(t, Options(message_timeout_s=30.0, max_attempts=1))
    driver.settle()
    started_s = driver.now_s
    while not driver.died:
        driver.now_s += 0.5
        driver.settle()
    assert driver.died[0].failure.kind is FailureKind.TIMEOUT
    assert 30.0 <= driver.now_s - started_s <= 45.5
    assert driver.spouts[0].open_count == 0


def test_two_bolts_that_feed_each_other_come_to_rest() -> None:
    @bolt
    def ping(counted: Count) -> Word | None:
        return Word("x" * counted.count) if counted.count < 10 else None

    @bolt
    def pong(word: Word) -> Count:
        return Count(word.word, len(word.word) + 1)

    @bolt
    def first(line: Line) -> Count:
        return Count(line.text, 1)

    t = Topology("cycle", allow_cycle=True)
    script = Script([lines(*("x" * 40))])
    firsts = t.bolt("first", first).shuffle(t.spout("lines", script))
    pings = t.bolt("ping", ping).shuffle(firsts)
    pings.shuffle(t.bolt("pong", pong).shuffle(pings))
    driver = Driver(t)
    driver.run()
    assert len(script.acked) == 40


def test_without_ackers_messages_are_acked_on_emit_and_rows_are_written_at_once() -> None:
    script, sink = Script([lines("a b", "c")]), Gathering()
    driver = Driver(word_count(script, sink), Options(acker_tasks=0))
    driver.settle()
    assert script.acked == [0, 1]
    assert sorted(row.word for row in sink.rows) == ["a", "b", "c"]
    assert driver.spouts[0].pending.counters.emitted == 0
    assert driver.spouts[0].open_count == 0


def test_untracked_messages_never_count_as_pending() -> None:
    emits = [Emit(Line(f"w{number}")) for number in range(50)]
    script, sink = Script([emits, *lines("a")]), Gathering()
    driver = Driver(word_count(script, sink), Options(max_spout_pending=1))
    driver.run()
    assert len(sink.rows) == 51
    assert script.acked == [0]
    assert driver.spouts[0].pending.counters.untracked == 50


def test_an_untracked_tuple_that_fails_is_told_in_the_log_and_takes_nobody_along() -> None:
    script, sink = Script([[Emit(Line("poison")), *lines("a")]]), Gathering()
    driver = Driver(word_count(script, sink, parallelism=1))
    driver.run()
    assert sink.rows == [Count("a", 1)]
    assert script.acked == [0]
    assert any("poison" in note for note in driver.notes)


@pytest.mark.parametrize("kind", ["shuffle", "all", "global_", "local_or_shuffle", "none"])
def test_every_grouping_completes_its_trees(kind: str) -> None:
    got: list[int] = []

    @bolt
    def note(line: Line, context: TaskContext) -> None:
        got.append(context.task_index)

    script = Script([lines(*"abcdefghij")])
    t = Topology("groupings")
    noting = t.bolt("note", note, parallelism=3)
    getattr(noting, kind)(t.spout("lines", script))
    driver = Driver(t)
    driver.run()
    assert len(script.acked) == 10
    expected = {"all": 30}.get(kind, 10)
    assert len(got) == expected
    if kind == "global_":
        assert set(got) == {0}
    assert_empty(driver)


def test_one_task_of_six_that_fails_fails_the_message_that_all_of_them_got() -> None:
    @bolt
    def picky(line: Line, context: TaskContext) -> None:
        if context.task_index == 4:
            raise ValueError("four")

    script = Script(lines("a"))
    t = Topology("all")
    t.bolt("picky", picky, parallelism=6).all(t.spout("lines", script))
    driver = Driver(t, Options(max_attempts=2))
    driver.run()
    assert [one.failure.error for one in driver.died] == ["four"]
    assert script.acked == []
    assert_empty(driver)


def test_direct_emits_reach_the_named_task_and_a_wrong_name_fails_the_message() -> None:
    got: list[tuple[int, str]] = []

    @bolt
    def send(line: Line, out: Collector[Word]) -> None:
        out.emit_direct(int(line.text), Word(line.text))

    @bolt
    def note(word: Word, context: TaskContext) -> None:
        got.append((context.task_id, word.word))

    script = Script([])
    t = Topology("direct")
    sent = t.bolt("send", send).shuffle(t.spout("lines", script))
    t.bolt("note", note, parallelism=2).direct(sent)
    driver = Driver(t, Options(max_attempts=1))
    first, second = driver.plan.task_ids_of("note")
    script.steps.extend([lines(str(first), str(second), "0")])
    driver.run()
    assert sorted(got) == [(first, str(first)), (second, str(second))]
    assert [died.message_id for died in driver.died] == [2]


def test_a_custom_grouping_that_drops_a_copy_completes_the_message() -> None:
    @bolt
    def note(line: Line) -> None:
        """Work."""

    script = Script([lines("a", "drop", "b")])
    t = Topology("custom")
    t.bolt("note", note, parallelism=2).custom(
        t.spout("lines", script), lambda line, tasks: [] if line.text == "drop" else list(range(tasks))
    )
    driver = Driver(t)
    driver.run()
    assert sorted(script.acked) == [0, 1, 2]
    assert_empty(driver)


def test_a_grouping_that_raises_fails_the_message_alone() -> None:
    def choose(line: Line, tasks: int) -> int:
        if line.text == "bad":
            raise KeyError("no such place")
        return 0

    @bolt
    def note(line: Line) -> None:
        """Work."""

    script = Script([lines("a", "bad", "b")])
    t = Topology("custom")
    t.bolt("note", note, parallelism=2).custom(t.spout("lines", script), choose)
    driver = Driver(t, Options(max_attempts=1))
    driver.run()
    assert [died.message_id for died in driver.died] == [1]
    assert sorted(script.acked) == [0, 2]
    assert_empty(driver)


def test_an_aggregate_acks_every_third_input_with_an_output_anchored_to_all_three() -> None:
    held: list[Line] = []

    @bolt(auto_ack=False)
    def three(line: Line, out: Collector[Word]) -> None:
        held.append(line)
        if len(held) == 3:
            out.emit(Word("+".join(one.text for one in held)), anchors=held)
            for one in held:
                out.ack(one)
            held.clear()

    script, sink = Script([lines(*"abcdef")]), Gathering()
    t = Topology("aggregate")
    t.sink("out", sink).shuffle(t.bolt("three", three).shuffle(t.spout("lines", script)))
    driver = Driver(t)
    driver.run()
    assert [row.word for row in sink.rows] == ["a+b+c", "d+e+f"]
    assert sorted(script.acked) == list(range(6))
    assert_empty(driver)


def test_an_unanchored_emit_outlives_the_failure_of_its_message() -> None:
    @bolt
    def tell(line: Line, out: Collector[Word]) -> None:
        out.emit(Word("loose"), anchors=())
        if line.text == "bad":
            out.fail(line, "no")

    script, sink = Script([lines("bad")]), Gathering()
    t = Topology("loose")
    t.sink("out", sink).shuffle(t.bolt("tell", tell).shuffle(t.spout("lines", script)))
    driver = Driver(t, Options(max_attempts=1))
    driver.run()
    assert [row.word for row in sink.rows] == ["loose"]
    assert len(driver.died) == 1
    assert_empty(driver)


def test_a_renewed_timeout_outlives_two_timeouts() -> None:
    holding: list[Line] = []

    @bolt(auto_ack=False)
    def slow(line: Line, out: Collector[Word]) -> None:
        holding.append(line)
        out.reset_timeout(line)

    script = Script([lines("a"), None], ends=False)
    t = Topology("slow")
    t.bolt("slow", slow).shuffle(t.spout("lines", script)).stream(Word, unconsumed=True)
    driver = Driver(t, Options(message_timeout_s=10.0, max_attempts=1))
    driver.settle()
    root = driver.spouts[0].pending.roots_in_flight()[0]
    for _ in range(8):
        driver.now_s += 5.0
        driver.out.extend([root])
        driver.carry_out()
        driver.settle()
    assert not driver.died
    driver.now_s += 15.5
    driver.settle()
    driver.now_s += 5.0
    driver.settle()
    assert len(driver.died) == 1


def test_rows_of_an_attempt_that_was_over_before_they_came_do_not_stay_in_the_sink() -> None:
    script, sink = Script(lines("a"), ends=False), Gathering()
    driver = Driver(word_count(script, sink, parallelism=1), Options(message_timeout_s=10.0, max_attempts=1))
    spout = driver.spouts[0]
    spout.poll(driver.now, driver.out)
    driver.carry_out()
    late = [one for one in driver.queue if isinstance(one, Frame)]
    driver.queue = deque(one for one in driver.queue if not isinstance(one, Frame))
    driver.settle()
    while not driver.died:
        driver.now_s += 5.0
        driver.settle()
    driver.queue.extend(late)
    driver.settle()
    assert driver.sinks[0].held == 0
    assert sink.rows == []
    assert_empty(driver)
