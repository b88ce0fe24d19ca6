"""Bolts that emit, anchor, ack and fail by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bolts.frame_bench import Bad, Count, Word, component_of, done, emitted, frame, task_of, words
from tupletree import Bolt, Collector, PermanentError, ProcessingError, Topology, TupleSettledError, bolt
from tupletree.sources.items import items

Step = Callable[[Word, "Collector[Word]"], None]


def by_hand(step: Step, **settings: Any) -> Any:
    """A bolt that does this with each word and its collector."""

    @bolt(**settings)
    def acts(word: Word, out: Collector[Word]) -> None:
        step(word, out)

    return acts


def test_an_emit_is_anchored_to_the_tuple_in_hand() -> None:
    worked = task_of(by_hand(lambda word, out: out.emit(Word(word.text.upper())))).work(
        frame((1, words("a")), ((2, 3), words("b")), (0, words("c")))
    )

    assert emitted(worked) == [(1, Word("A")), ((2, 3), Word("B")), (0, Word("C"))]
    assert done(worked) == {99: {1, 2, 3}}


def test_an_emit_without_anchors_is_untracked() -> None:
    worked = task_of(by_hand(lambda word, out: out.emit(word, anchors=()))).work(frame((1, words("a"))))

    assert emitted(worked) == [(0, Word("a"))]


def test_a_second_verdict_is_counted_and_changes_nothing() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        out.ack(word)
        out.fail(word, "too late")
        out.ack(word)

    worked = task_of(by_hand(step)).work(frame((1, words("a"))))

    assert done(worked) == {99: {1}}
    assert not worked.failures
    assert worked.late_verdicts == 2


def test_an_ack_after_a_fail_changes_nothing() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        out.fail(word, "no")
        out.ack(word)

    worked = task_of(by_hand(step)).work(frame((1, words("a"))))

    assert done(worked) == {}
    assert worked.failures[1].error == "no"
    assert worked.failures[1].error_type == ""
    assert worked.late_verdicts == 1


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_fail_without_a_reason_says_so(nothing: str | None) -> None:
    worked = task_of(by_hand(lambda word, out: out.fail(word, nothing))).work(frame((1, words("a"))))

    assert worked.failures[1].error == "the bolt failed the tuple"


def test_a_fail_with_an_exception_keeps_its_type_and_permanence() -> None:
    worked = task_of(by_hand(lambda word, out: out.fail(word, PermanentError("never")))).work(frame((1, words("a"))))

    assert worked.failures[1].error_type == "tupletree.errors.PermanentError"
    assert worked.failures[1].permanent


def test_a_verdict_on_a_tuple_that_was_never_handed_over_is_late() -> None:
    worked = task_of(by_hand(lambda word, out: out.ack(Word(word.text)))).work(frame((1, words("a"))))

    assert worked.late_verdicts == 1
    assert done(worked) == {99: {1}}


def test_an_emit_after_the_ack_is_an_error_for_the_bolt() -> None:
    raised = []

    def step(word: Word, out: Collector[Word]) -> None:
        out.emit(Word("before"))
        out.ack(word)
        for anchors in (None, [word]):
            with pytest.raises(TupleSettledError) as caught:
                out.emit(Word("after"), anchors=anchors)
            raised.append(caught.value)

    worked = task_of(by_hand(step)).work(frame((1, words("a"))))

    assert emitted(worked) == [(1, Word("before"))]
    assert done(worked) == {99: {1}}
    assert "Word(text='a')" in str(raised[0])


def test_an_error_after_the_ack_keeps_what_was_emitted_and_is_on_record() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        out.emit(Word("result"))
        out.ack(word)
        raise ValueError("after the fact")

    worked = task_of(by_hand(step)).work(frame((1, words("a"))))

    assert emitted(worked) == [(1, Word("result"))]
    assert done(worked) == {99: {1}}
    assert not worked.failures
    assert worked.late_verdicts == 1
    assert worked.strays[0].error == "after the fact"


def test_a_fail_takes_back_what_was_emitted_for_its_root() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        out.emit(word)
        if word.text == "b":
            out.fail(word)

    worked = task_of(by_hand(step)).work(frame((1, words("a", "b", "a")), (2, words("c"))))

    assert emitted(worked) == [(2, Word("c"))]
    assert done(worked) == {99: {2}}


def test_of_a_thousand_emits_none_leaks_when_the_call_fails_after_400() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        for number in range(1_000):
            if word.text == "b" and number == 400:
                raise ValueError
            out.emit(Word(str(number)), anchors=() if number % 10 == 0 else None)

    worked = task_of(by_hand(step)).work(frame((1, words("a")), (2, words("b")), (3, words("c"))))

    assert len(emitted(worked)) == 2_000
    assert {root for root, _ in emitted(worked)} == {0, 1, 3}


class Gather(Bolt[Word]):
    """Keeps words, and joins every third with the two before."""

    auto_ack = False

    def __init__(self) -> None:
        self.held: list[Word] = []

    def process(self, value: Word, collector: Collector[Word]) -> None:
        self.held.append(value)
        if len(self.held) == 3:
            collector.emit(Word("".join(word.text for word in self.held)), anchors=self.held)
            for word in self.held:
                collector.ack(word)
            self.held = []


def test_tuples_held_over_frames_are_done_in_the_frames_that_they_came_in() -> None:
    task = task_of(Gather)

    first = task.work(frame((1, words("a")), (2, words("b")), edge=51))
    assert (emitted(first), done(first), task.unsettled()) == ([], {}, [1, 2])

    second = task.work(frame((3, words("c", "d")), (1, words("e")), edge=52))
    assert emitted(second) == [((1, 2, 3), Word("abc"))]
    assert done(second) == {51: {1, 2}}  # root 3 has another tuple in frame 52
    assert task.unsettled() == [3, 1]

    third = task.work(frame((4, words("f")), edge=53))
    assert emitted(third) == [((3, 1, 4), Word("def"))]
    assert done(third) == {52: {3, 1}, 53: {4}}
    assert task.unsettled() == []


def test_an_object_that_is_delivered_several_times_stands_for_each_of_its_deliveries() -> None:
    same = Word("x")
    task = task_of(Gather)

    worked = task.work(frame((1, [same]), (2, [same]), (3, [same])))

    assert len(worked.outputs) == 1
    (root,) = worked.outputs[0].roots
    assert isinstance(root, tuple)
    assert set(root) == {1, 2, 3}
    assert done(worked) == {99: {1, 2, 3}}
    assert worked.late_verdicts == 0


def test_the_object_in_hand_means_the_delivery_in_hand() -> None:
    same = Word("x")

    class SettleEverySecond(Bolt[Word]):
        auto_ack = False
        calls = 0

        def process(self, value: Word, collector: Collector[Word]) -> None:
            self.calls += 1
            if self.calls == 2:
                collector.emit(Word("default"))
                collector.emit(Word("named"), anchors=[value])
                collector.ack(value)

    task = task_of(SettleEverySecond)
    worked = task.work(frame((1, [same]), (2, [same])))

    assert emitted(worked) == [(2, Word("default")), (2, Word("named"))]
    assert done(worked) == {99: {2}}
    assert task.unsettled() == [1]


def test_listing_an_anchor_twice_is_harmless_and_two_anchors_of_one_root_name_it_once() -> None:
    held: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        held.append(word)
        if word.text == "end":
            out.emit(Word("sum"), anchors=[*held, *held])

    worked = task_of(by_hand(step, auto_ack=False)).work(
        frame((1, words("a", "b")), ((1, 2), words("c")), (0, words("u")), (3, words("end")))
    )

    assert emitted(worked) == [((1, 2, 3), Word("sum"))]


def test_anchors_of_one_root_make_a_tuple_of_that_root() -> None:
    held: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        held.append(word)
        out.emit(word, anchors=held)

    worked = task_of(by_hand(step, auto_ack=False)).work(frame((1, words("a", "b"))))

    assert [root for root, _ in emitted(worked)] == [1, 1]


def test_anchors_that_are_all_untracked_make_an_untracked_tuple() -> None:
    worked = task_of(by_hand(lambda word, out: out.emit(word, anchors=[word]))).work(frame((0, words("a"))))

    assert emitted(worked) == [(0, Word("a"))]


def test_a_tuple_kept_from_an_earlier_call_can_be_failed() -> None:
    kept: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        if kept:
            out.fail(kept.pop(), "gave up")
            out.ack(word)
        else:
            kept.append(word)

    task = task_of(by_hand(step, auto_ack=False))
    task.work(frame((1, words("a")), edge=51))
    worked = task.work(frame((2, words("b")), edge=52))

    assert {root: failure.failing_tuple for root, failure in worked.failures.items()} == {1: "Word(text='a')"}
    assert done(worked) == {52: {2}}


def test_a_call_that_raises_keeps_what_it_emitted_for_tuples_whose_verdict_stands() -> None:
    held: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        if word.text != "boom":
            held.append(word)
            return
        out.emit(Word("mine"))
        out.emit(Word("nobody's"), anchors=())
        out.emit(Word("theirs"), anchors=held)
        out.emit(Word("shared"), anchors=[*held, word])
        for one in held:
            out.ack(one)
        raise ValueError

    worked = task_of(by_hand(step, auto_ack=False)).work(frame((1, words("a")), (2, words("boom"))))

    assert emitted(worked) == [(1, Word("theirs")), ((1, 2), Word("shared"))]
    assert done(worked) == {99: {1}}
    assert set(worked.failures) == {2}


def test_a_shared_output_goes_when_the_last_of_its_roots_failed() -> None:
    held: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        held.append(word)
        if word.text == "end":
            out.emit(Word("sum"), anchors=held)
            for one in held:
                out.fail(one)

    worked = task_of(by_hand(step, auto_ack=False)).work(frame((1, words("a")), (2, words("end"))))

    assert worked.outputs == []
    assert set(worked.failures) == {1, 2}


def test_tuples_of_one_root_are_done_only_when_the_last_is_settled() -> None:
    kept: list[Word] = []

    def step(word: Word, out: Collector[Word]) -> None:
        kept.append(word)
        if word.text == "end":
            for one in kept[:-1]:
                out.ack(one)

    task = task_of(by_hand(step, auto_ack=False))
    worked = task.work(frame((1, words("a")), ((1, 2), words("b")), (2, words("end"))))

    assert done(worked) == {99: {1}}
    assert task.unsettled() == [2]


def test_the_timeout_of_every_root_of_a_tuple_can_be_renewed() -> None:
    worked = task_of(by_hand(lambda word, out: out.reset_timeout(word))).work(
        frame(((1, 2), words("a")), (0, words("b")))
    )

    assert worked.extended == [1, 2]


def test_the_collector_does_nothing_outside_of_a_call_and_says_so() -> None:
    kept: list[tuple[Word, Collector[Word]]] = []
    task = task_of(by_hand(lambda word, out: kept.append((word, out)), auto_ack=False))
    task.work(frame((1, words("a"))))
    ((word, out),) = kept

    actions: list[Callable[[], None]] = [
        lambda: out.emit(word),
        lambda: out.emit(word, anchors=()),
        lambda: out.ack(word),
        lambda: out.fail(word),
        lambda: out.reset_timeout(word),
    ]
    for action in actions:
        with pytest.raises(ProcessingError, match="outside of a call"):
            action()
    assert task.unsettled() == [1]
    told = task.out_of_call()
    assert told.stray_count == len(actions)
    assert "an emit outside of a call has no effect" in told.strays[0].error
    assert not task.out_of_call().stray_count

    with pytest.raises(ProcessingError, match="outside of a call"):
        out.emit(word)
    assert task.work(frame((2, words("b")))).stray_count == 1


def test_an_emit_of_an_undeclared_class_raises_at_the_emit() -> None:
    def step(word: Word, out: Collector[Any]) -> None:
        out.emit(Count("x", 1))

    worked = task_of(by_hand(step)).work(frame((1, words("a")), (2, words("b"))))

    assert set(worked.failures) == {1, 2}
    assert "out.emit(Count" in worked.failures[1].traceback
    assert "expected: Word" in worked.failures[1].error


def test_emits_go_to_the_stream_of_their_class_or_of_the_name_asked_for() -> None:
    @bolt
    def choose(word: Word, out: Collector[Word | Bad]) -> None:
        out.emit(word, stream="loud" if word.text.isupper() else "quiet")
        out.emit(Bad(word.text))

    topology = Topology("bench")
    source = topology.spout("words", items([Word("a")]))
    handle = topology.bolt("bolt", choose).shuffle(source)
    for cls, name in ((Word, "quiet"), (Word, "loud"), (Bad, "Bad")):
        handle.stream(cls, name, unconsumed=True)
    task = task_of(None, component=topology.build().components["bolt"])

    worked = task.work(frame((1, words("a", "B", "c"))))

    assert {output.stream: [value.text for value in output.values] for output in worked.outputs} == {
        "quiet": ["a", "c"],
        "Bad": ["a", "B", "c"],
        "loud": ["B"],
    }


def test_an_emit_to_a_stream_of_another_class_raises() -> None:
    worked = task_of(by_hand(lambda word, out: out.emit(word, stream="Bad"))).work(frame((1, words("a"))))

    assert "asked: 'Bad'" in worked.failures[1].error


def test_an_ambiguous_emit_raises_instead_of_guessing() -> None:
    @bolt
    def vague(word: Word, out: Collector[Word]) -> None:
        out.emit(word)

    topology = Topology("bench")
    source = topology.spout("words", items([Word("a")]))
    handle = topology.bolt("bolt", vague).shuffle(source)
    for name in ("quiet", "loud"):
        handle.stream(Word, name, unconsumed=True)
    worked = task_of(None, component=topology.build().components["bolt"]).work(frame((1, words("a"))))

    assert "quiet" in worked.failures[1].error
    assert "loud" in worked.failures[1].error


def test_direct_emits_keep_their_task_apart_from_the_rest() -> None:
    def step(word: Word, out: Collector[Word]) -> None:
        out.emit_direct(int(word.text), word)
        out.emit(word)

    worked = task_of(by_hand(step)).work(frame((1, words("4", "5", "4"))))

    assert [(output.direct_task, [value.text for value in output.values]) for output in worked.outputs] == [
        (4, ["4", "4"]),
        (None, ["4", "5", "4"]),
        (5, ["5"]),
    ]


def test_a_bolt_may_use_both_its_return_value_and_its_collector() -> None:
    @bolt
    def both(word: Word, out: Collector[Bad]) -> Word:
        out.emit(Bad("noted"))
        return word

    worked = task_of(both).work(frame((1, words("a"))))

    assert emitted(worked) == [(1, Bad("noted")), (1, Word("a"))]


def test_a_component_may_be_tried_again_in_a_new_task() -> None:
    component = component_of(Gather)
    first, second = task_of(None, component=component), task_of(None, component=component)
    first.work(frame((1, words("a", "b"))))

    assert emitted(second.work(frame((2, words("c"))))) == []
    assert second.unsettled() == [2]
