"""A bolt fails: the message's tree fails at once, its rows go away, and the runtime tries it again, later and later."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Collector, PermanentError, TaskContext, Topology, bolt


class Attempt(msgspec.Struct, frozen=True):
    word: str
    number: int


@bolt
def split(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt
def check(word: Word, context: TaskContext) -> Attempt:
    if word.word == "poison":
        raise ValueError(f"attempt {context.attempt}")
    if word.word == "flaky" and context.attempt < 3:
        raise RuntimeError(f"attempt {context.attempt}")
    if word.word == "illegal":
        raise PermanentError("it will never be legal")
    return Attempt(word.word, context.attempt)


def checked(script: Script, sink: Gathering) -> Topology:
    t = Topology("checked")
    words = t.bolt("split", split).shuffle(t.spout("lines", script))
    t.sink("out", sink).shuffle(t.bolt("check", check, parallelism=2).fields(words, "word"))
    return t


def test_one_bad_tuple_fails_the_whole_tree_at_once() -> None:
    script, sink = Script([lines("good poison")], ends=False), Gathering()
    story = Story(checked(script, sink), max_attempts=1)
    story.ask("lines")
    for receiver in ("acker", "split", "acker"):
        story.deliver(receiver)
    sent = story.deliver("check") + story.deliver("check")
    assert "acker <- fail" in sent
    story.settle()
    assert sink.rows == []  # the good word's row was there, and went away
    ((message_id, failure),) = script.failed
    assert message_id == 0
    assert (failure.component, failure.error_type, failure.error) == ("check", "ValueError", "attempt 1")
    assert failure.failing_tuple == "Word(word='poison')"


def test_attempts_come_later_and_later_until_one_works() -> None:
    script, sink = Script([lines("flaky", "good")], ends=False), Gathering()
    story = Story(checked(script, sink), backoff_initial_ms=1000.0, backoff_factor=4.0)
    story.settle()
    assert script.acked == [1]
    story.wait(0.9)
    assert story.spout.in_flight == 0  # it waits for a second
    story.wait(0.2)
    assert story.spout.pending.counters.retried == 1
    story.wait(3.8)
    assert script.acked == [1]
    story.wait(0.2)  # and four more
    assert script.acked == [1, 0]
    assert sink.rows == [Attempt("good", 1), Attempt("flaky", 3)]


def test_after_the_last_attempt_it_is_dead_and_its_source_hears_of_it_once() -> None:
    script, sink = Script([lines("poison")], ends=False), Gathering()
    story = Story(checked(script, sink), max_attempts=4)
    story.wait(60.0)
    assert [(died.message_id, died.attempts, died.failure.error) for died in story.died] == [(0, 4, "attempt 4")]
    assert len(script.failed) == 1
    assert (sink.rows, story.spout.open_count, story.attempts) == ([], 0, {})


def test_a_permanent_error_is_the_last_attempt() -> None:
    script, sink = Script([lines("illegal")], ends=False), Gathering()
    story = Story(checked(script, sink))
    story.settle()
    assert [died.attempts for died in story.died] == [1]


def test_failures_out_of_order_each_find_their_own_message() -> None:
    script, sink = Script([lines("poison", "good", "illegal", "flaky", "poison")], ends=False), Gathering()
    story = Story(checked(script, sink), max_attempts=3)
    story.ask("lines")
    while story.queue:
        story.queue.rotate(story.random.randrange(len(story.queue)))
        story.step()
    story.wait(60.0)
    assert sorted(died.message_id for died in story.died) == [0, 2, 4]
    assert {died.message_id: died.failure.error_type.rpartition(".")[2] for died in story.died} == {
        0: "ValueError",
        2: "PermanentError",
        4: "ValueError",
    }
    assert sorted(script.acked, key=str) == [1, 3]


def test_a_late_word_about_an_old_attempt_does_not_touch_the_new_one() -> None:
    script, sink = Script([lines("good poison")], ends=False), Gathering()
    story = Story(checked(script, sink), max_attempts=2, backoff_initial_ms=10.0)
    story.ask("lines")
    for receiver in ("acker", "split", "acker"):
        story.deliver(receiver)
    for _ in range(2):
        story.deliver("check")
    late = [one for one in story.queue if story._receiver(one) in {"acker", "out"}]
    copies = list(late)
    story.wait(0.005)  # the first attempt has failed
    story.wait(0.01)
    assert story.spout.pending.counters.retried == 1
    story.queue += copies  # all of it comes again
    story.wait(60.0)
    assert [died.attempts for died in story.died] == [2]
    assert story.spout.pending.counters.failed == 2
    assert sink.rows == []


@bolt
def emit_many(line: Line, out: Collector[Word]) -> None:
    for number in range(1000):
        if number == 400 and line.text == "breaks":
            raise RuntimeError("after 400 of 1,000")
        out.emit(Word(f"{line.text}-{number}"))


def test_a_bolt_that_fails_after_400_of_1000_emits_has_emitted_nothing() -> None:
    script, sink = Script([lines("breaks", "works")], ends=False), Gathering()
    t = Topology("many")
    t.sink("out", sink).shuffle(t.bolt("emit", emit_many).shuffle(t.spout("lines", script)))
    story = Story(t, max_attempts=2)
    story.wait(60.0)
    assert {row.word.partition("-")[0] for row in sink.rows} == {"works"}
    assert len(sink.rows) == 1000
    assert [message_id for message_id, _ in script.failed] == [0]


def test_five_thousand_failures_in_a_row_never_wait_longer_than_the_cap() -> None:
    script = Script([lines("poison")], ends=False)
    story = Story(checked(script, Gathering()), max_attempts=5001, backoff_initial_ms=1.0, backoff_max_ms=2000.0)
    start_s = story.now_s
    failed = 0
    while not story.died:
        due_s = story.spout.next_due_s()
        if due_s is not None:
            assert due_s - story.now_s <= 2.0 + 1e-6
            story.now_s = due_s
        story.settle()
        failed += 1
    assert story.died[0].attempts == 5001
    assert story.now_s - start_s <= 5000 * 2.0
