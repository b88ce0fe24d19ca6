"""What happens when something dies: each test is a row of the table in docs/semantics.md, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Topology, bolt
from tupletree.tracking.outcomes import FailureKind


@bolt
def split(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


def topology(script: Script, sink: Gathering) -> Topology:
    t = Topology("dying")
    t.sink("out", sink).shuffle(t.bolt("split", split, parallelism=2).shuffle(t.spout("lines", script)))
    return t


def begin(*texts: str, **options: object) -> tuple[Story, Script, Gathering]:
    """A story whose spout has just emitted."""
    script, sink = Script([lines(*texts)], ends=False), Gathering()
    story = Story(topology(script, sink), **options)
    story.ask("lines")
    return story, script, sink


def everything_came_once(story: Story, script: Script, sink: Gathering, *texts: str) -> None:
    assert Counter(script.acked) == Counter(range(len(texts)))
    assert script.failed == []
    assert Counter(row.word for row in sink.rows) == Counter(" ".join(texts).split())
    assert story.spout.open_count == 0
    assert all(acker.open_count == 0 for acker in story.ackers)


def test_when_a_bolt_task_dies_its_tuples_time_out_and_are_tried_again() -> None:
    story, script, sink = begin("a b", "c d")
    story.kill("split", 0)
    story.wait(29.9)
    assert script.acked == [1]  # the other task's message
    assert story.spout.pending.counters.failed == 0
    story.wait(20.0)
    assert story.spout.pending.counters.failed == 1
    everything_came_once(story, script, sink, "a b", "c d")


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_when_a_sink_task_dies_every_attempt_in_flight_fails_at_once_and_is_tried_again(after: int) -> None:
    """Rows of any of them may have been in it. Those that are written stay written: their messages are acked."""
    story, script, sink = begin("a b", "c d", "e f")
    for _ in range(after):
        story.step()
    acked = len(script.acked)
    story.kill("out")
    story.wait(5.0)  # long before a timeout: the spout is told that it is another one
    assert story.spout.pending.counters.failed == 3 - acked
    everything_came_once(story, script, sink, "a b", "c d", "e f")


def test_when_an_acker_dies_the_attempts_of_its_share_fail_at_once_and_are_tried_again() -> None:
    texts = [f"w{number}" for number in range(4)]
    script, sink = Script([one for line in lines(*texts) for one in (line, None)], ends=False), Gathering()
    story = Story(topology(script, sink), acker_tasks=2, backoff_initial_ms=100.0)
    for _ in texts:
        story.ask("lines")  # the ackers take turns
    shares = Counter(root % 2 for root in story.spout.pending.roots_in_flight())
    assert set(shares) == {0, 1}
    story.kill("__acker", 0)
    assert story.spout.in_flight == shares[1]  # the others do not notice
    story.wait(5.0)
    assert story.spout.pending.counters.failed == shares[0]
    everything_came_once(story, script, sink, *texts)


def test_when_a_spout_task_dies_its_source_delivers_again_and_words_about_old_attempts_change_nothing() -> None:
    """No runtime lets a spout die alone: its fault restarts the topology, and its account is handed over. If it did,
    the account would be lost, and the source would have to deliver again what nobody acked.
    """
    story, script, sink = begin("a b")
    story.kill("lines")
    script.steps.append(lines("a b"))  # nobody acked it
    story.wait(60.0)
    assert script.acked == [0]
    assert script.failed == []
    assert story.spout.pending.counters.late_verdicts == 1
    assert {row.word for row in sink.rows} == {"a", "b"}  # at least once: the old tree completed as well


def test_when_a_frame_is_lost_between_two_tasks_its_messages_time_out_and_are_tried_again() -> None:
    story, script, sink = begin("a b", "c d")
    story.lose("split")
    story.wait(50.0)
    assert story.spout.pending.counters.failed == 2
    everything_came_once(story, script, sink, "a b", "c d")


def test_when_an_ack_is_lost_the_tree_stays_open_until_its_timeout() -> None:
    story, script, sink = begin("a b")
    story.deliver("acker")
    story.deliver("split")
    story.lose("acker")
    story.wait(50.0)
    assert story.spout.pending.counters.failed == 1
    everything_came_once(story, script, sink, "a b")


def test_when_the_opening_of_a_tree_is_lost_nobody_ever_completes_it() -> None:
    """A lost opening would keep its message open for ever, for the acker does not know it: so control mail, unlike
    data, is never dropped by a runtime. What a dead acker has lost is failed by `acker_lost`.
    """
    story, script, _ = begin("a b")
    story.lose("acker")
    story.wait(120.0)
    assert script.acked == []
    story.kill("__acker")
    story.wait(5.0)
    assert script.acked == [0]


def test_when_a_verdict_is_lost_the_runtime_restarts_and_the_message_is_tried_again() -> None:
    story, script, sink = begin("a b")
    for receiver in ("acker", "split", "acker", "out", "acker"):
        story.deliver(receiver)
    assert story.on_the_way == ["lines <- complete"]
    story.restart()
    story.wait(5.0)
    everything_came_once(story, script, sink, "a b")


def test_a_message_that_runs_out_of_attempts_because_of_it_is_dead_with_the_reason() -> None:
    story, script, _ = begin("a b", max_attempts=1)
    story.kill("__acker")
    ((_, failure),) = script.failed
    assert failure.kind is FailureKind.LOST
    assert "acker" in failure.error
