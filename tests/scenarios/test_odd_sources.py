"""Sources that are odd and not wrong: empty batches, ids that repeat, ids that look like nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, lines
from tupletree import Emit, Topology, bolt
from tupletree.ids import MessageId


@bolt
def repeat(line: Line) -> Line:
    return line


def topology(script: Script, sink: Gathering) -> Topology:
    t = Topology("odd")
    t.sink("out", sink).shuffle(t.bolt("repeat", repeat).shuffle(t.spout("lines", script)))
    return t


@pytest.mark.parametrize("nothing", [[], None])
def test_ten_thousand_empty_batches_are_only_that(nothing: list[Emit[Line]] | None) -> None:
    script, sink = Script([*([nothing] * 10_000), lines("at last")], ends=False), Gathering()
    story = Story(topology(script, sink))
    while not script.acked:
        story.ask("lines")
        story.settle()
    assert sink.rows == [Line("at last")]
    assert story.spout.pending.counters.emitted == 1


def test_an_id_that_repeats_while_its_message_is_open_is_the_same_message() -> None:
    script, sink = (
        Script([Emit(Line("a"), "id"), Emit(Line("a"), "id"), Emit(Line("a"), "id")], ends=False),
        Gathering(),
    )
    story = Story(topology(script, sink))
    story.ask("lines")
    story.settle()
    assert script.acked == ["id"]
    assert sink.rows == [Line("a")]
    assert story.spout.pending.counters.joined == 2


def test_an_id_that_repeats_after_its_end_is_a_new_message() -> None:
    script, sink = Script([Emit(Line("a"), 0)], ends=False), Gathering()
    story = Story(topology(script, sink))
    story.settle()
    script.steps.append(Emit(Line("b"), 0))
    story.settle()
    assert script.acked == [0, 0]
    assert sink.rows == [Line("a"), Line("b")]


def test_one_batch_that_names_an_id_twice_emits_it_once() -> None:
    script, sink = Script([[Emit(Line("a"), 7), Emit(Line("a"), 7), Emit(Line("b"), 8)]], ends=False), Gathering()
    story = Story(topology(script, sink))
    story.settle()
    assert Counter(script.acked) == {7: 1, 8: 1}


@pytest.mark.parametrize("message_id", [0, "", b"", (), -1, 2**63, ("", 0)])
def test_ids_that_look_like_nothing_are_ids(message_id: MessageId) -> None:
    script, sink = Script([Emit(Line("a"), message_id)], ends=False), Gathering()
    story = Story(topology(script, sink))
    story.settle()
    assert script.acked == [message_id]
    assert story.spout.pending.counters.untracked == 0
