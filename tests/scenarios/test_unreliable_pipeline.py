"""An unreliable pipeline: a spout that emits without message ids gets speed, and promises nothing.

Storm calls it "best effort". A tuple without an id belongs to no message: no tree is opened for it, it is never
pending, and if a bolt fails it, it is gone.
"""

from __future__ import annotations

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Emit, Topology, bolt


@bolt
def shout(line: Line) -> Word:
    if line.text == "bad":
        raise ValueError("it cannot be shouted")
    return Word(line.text.upper())


def pipeline(script: Script, sink: Gathering) -> Topology:
    t = Topology("unreliable")
    t.sink("out", sink).shuffle(t.bolt("shout", shout).shuffle(t.spout("lines", script)))
    return t


def test_no_tree_is_opened_for_a_tuple_without_an_id() -> None:
    script, sink = Script([Emit(Line("hello"))], ends=False), Gathering()
    story = Story(pipeline(script, sink))

    assert story.ask("lines")[-1] == "shout <- hello (edge a)"
    assert story.deliver("shout")[-1] == "out <- HELLO (edge b)"
    story.deliver("out")

    assert sink.rows == [Word("HELLO")]  # written at once: there is no tree to wait for
    story.settle()
    assert (story.ackers[0].size, story.spout.open_count) == (0, 0)  # no tree was opened
    assert script.acked == []


def test_what_a_bolt_fails_is_gone_and_the_rest_goes_on() -> None:
    script, sink = Script([[Emit(Line("bad")), Emit(Line("good"))]], ends=False), Gathering()
    story = Story(pipeline(script, sink))
    story.wait(3600.0)

    assert sink.rows == [Word("GOOD")]
    assert (script.acked, script.failed, story.died) == ([], [], [])
    (note,) = story.notes  # it is in the log, at least
    assert "it cannot be shouted" in note


def test_with_ids_and_no_ackers_the_spout_hears_ack_as_it_emits() -> None:
    """The other way to be unreliable: the spout knows its messages, and nobody keeps an account of them."""
    script, sink = Script([lines("bad", "good")], ends=False), Gathering()
    story = Story(pipeline(script, sink), acker_tasks=0)

    assert story.ask("lines") == ["shout <- bad, good (edge a)"]
    assert script.acked == [0, 1]


@pytest.mark.parametrize("limit", [1, 3])
def test_untracked_tuples_never_count_as_pending(limit: int) -> None:
    script = Script([Emit(Line(f"line {number}")) for number in range(100)], ends=False)
    story = Story(pipeline(script, Gathering()), max_spout_pending=limit)
    while script.steps:
        assert story.ask("lines")  # nothing was delivered, and the spout goes on
    assert story.spout.open_count == 0
