"""A topology restarts with backoff: what is no message's fault ends all tasks, and others take their place.

What a bolt raises fails a message. What a spout raises, or `open`, or we ourselves, is a fault: the supervisor fails
every attempt that is out, waits, and starts the tasks again; they take over the messages and the spout's position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, lines
from tupletree import Emit, Topology, bolt
from tupletree.topology.components import Reject
from tupletree.tracking.retry import RestartPolicy


class Breaking(Script):
    """A source whose connection breaks where the script says so."""

    def next(self) -> Emit[Line] | Reject | Sequence[Emit[Line] | Reject] | None:
        if self.steps and isinstance(self.steps[0], ConnectionError):
            raise self.steps.popleft()
        return super().next()


@bolt
def repeat(line: Line) -> Line:
    return line


def topology(script: Script, sink: Gathering, replay: Literal["runtime", "source"] = "runtime") -> Topology:
    t = Topology("restarting")
    t.sink("out", sink).shuffle(t.bolt("repeat", repeat).shuffle(t.spout("lines", script, replay=replay)))
    return t


def test_a_restart_fails_what_is_out_and_tries_it_again() -> None:
    script, sink = Breaking([lines("a", "b"), None, ConnectionError("gone")], ends=False), Gathering()
    story = Story(topology(script, sink), backoff_initial_ms=100.0)
    policy = RestartPolicy()
    policy.started(story.now_s)
    story.ask("lines")
    roots = story.spout.pending.roots_in_flight()
    with pytest.raises(ConnectionError):
        story.spout.poll(story.now, story.out)

    pause_s = policy.failed(story.now_s)
    assert pause_s == 2.0
    story.restart()
    assert script.life == ["open", "activate", "deactivate", "close", "open", "activate"]
    assert story.spout.open_count == 2
    assert story.spout.in_flight == 0  # both attempts failed
    story.wait(pause_s)

    assert sorted(script.acked, key=str) == [0, 1]
    assert sink.rows == [Line("a"), Line("b")]
    assert script.failed == []  # the runtime retried; the source heard nothing of it
    assert story.spout.pending.counters.failed == 2
    assert not set(roots) & set(story.spout.pending.roots_in_flight())


def test_rows_that_a_sink_held_are_neither_lost_nor_doubled_by_a_restart() -> None:
    script, sink = Script([lines("a", "b")], ends=False), Gathering()
    story = Story(topology(script, sink))
    story.ask("lines")
    for receiver in ("acker", "repeat", "acker", "out"):
        story.deliver(receiver)
    assert sink.rows == []
    story.restart()
    story.wait(5.0)
    assert sorted(row.text for row in sink.rows) == ["a", "b"]


def test_a_source_that_replays_hears_of_each_attempt_that_the_restart_failed() -> None:
    script, sink = Script([lines("a")], ends=False), Gathering()
    story = Story(topology(script, sink, replay="source"))
    story.ask("lines")
    story.restart()
    ((message_id, failure),) = script.failed
    assert (message_id, failure.permanent) == (0, False)
    script.steps.append(lines("a"))
    story.wait(1.0)
    assert script.acked == [0]


def test_messages_that_wait_for_a_retry_keep_their_attempt_and_their_time() -> None:
    attempts: list[int] = []
    script, sink = Script([lines("a")], ends=False), Gathering()
    story = Story(topology(script, sink), backoff_initial_ms=10_000.0, max_attempts=2)
    story.ask("lines")
    story.restart()  # the first attempt failed
    attempts.append(story.spout.pending.counters.failed)
    story.wait(5.0)
    story.restart()  # nothing is out
    story.wait(4.9)
    assert script.acked == []
    story.wait(0.2)
    assert script.acked == [0]
    assert attempts == [1]


def test_the_pauses_double_up_to_a_cap_and_the_sixth_fault_is_the_end() -> None:
    policy, now_s = RestartPolicy(), 0.0
    pauses_s = []
    while True:
        policy.started(now_s)
        now_s += 1.0
        pause_s = policy.failed(now_s)
        if pause_s is None:
            break
        pauses_s.append(pause_s)
        now_s += pause_s
    assert pauses_s == [2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_minute_of_health_forgives_everything() -> None:
    policy, now_s = RestartPolicy(), 0.0
    for _ in range(20):
        policy.started(now_s)
        now_s += 60.0
        assert policy.failed(now_s) == 2.0
        now_s += 2.0


def test_several_errors_at_once_are_one_restart() -> None:
    policy = RestartPolicy()
    policy.started(0.0)
    assert policy.failed(10.0) == 2.0
    assert policy.failed(10.0) == 2.0
    assert policy.failed(11.5) == 0.5  # it is being waited for already
    assert policy.restarts == 1
