"""A reliable round trip: from `next` to `ack`, with every step of the XOR.

An acker keeps one number for each tuple tree. Every delivered copy, an edge of the tree, has a random id, and is XORed
into that number twice: once by whoever sends it, once by whoever has worked on it. So the number is zero exactly when
every copy that was sent was worked on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.story import Story
from tests.tasks.streams import Gathering, Line, Script, Word, lines
from tupletree import Topology, bolt


@bolt
def split(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt
def read(word: Word) -> None:
    """A terminating bolt: no output, only an ack."""


def two_readers(script: Script) -> Topology:
    t = Topology("round-trip")
    words = t.bolt("split", split).shuffle(t.spout("lines", script))
    t.bolt("count", read).shuffle(words)
    t.bolt("index", read).shuffle(words)
    return t


def test_every_step_of_the_xor() -> None:
    script = Script([lines("to be")], ends=False)
    story = Story(two_readers(script))

    # The spout draws a root, tells the acker the XOR of all first edges, and only then sends them.
    assert story.ask("lines") == ["acker <- open a", "split <- to be (edge a)"]
    story.deliver("acker")
    assert story.trees == ["a"]

    # The bolt works on a and sends b and c. Its ack is ONE message: the input's edge and all its children's.
    assert story.deliver("split") == [
        "acker <- a ^ b ^ c",
        "count <- to, be (edge b)",
        "index <- to, be (edge c)",
    ]
    story.deliver("acker")
    assert story.trees == ["b ^ c"]  # a ^ (a ^ b ^ c)

    assert story.deliver("count") == ["acker <- b"]
    story.deliver("acker")
    assert story.trees == ["c"]  # (b ^ c) ^ b

    assert story.deliver("index") == ["acker <- c"]
    assert story.deliver("acker") == ["lines <- complete"]  # c ^ c = 0
    assert story.trees == []

    assert script.acked == []
    story.deliver("lines")
    assert script.acked == [0]
    assert story.spout.open_count == 0


def test_acks_that_overtake_the_opening_complete_the_tree_when_it_arrives() -> None:
    script = Script([lines("to be")], ends=False)
    story = Story(two_readers(script))
    story.ask("lines")
    opening = story.queue.popleft()  # it is late

    for bolt_name in ("split", "count", "index"):
        story.deliver(bolt_name)
    for _ in range(3):
        assert story.deliver("acker") == []  # the XOR of what came is a, and nobody has opened the tree
    assert story.trees == []

    story.queue.append(opening)
    assert story.deliver("acker") == ["lines <- complete"]


@pytest.mark.parametrize("late", ["count", "index"])
def test_no_order_of_acks_completes_a_tree_early(late: str) -> None:
    script = Script([lines("to be")], ends=False)
    story = Story(two_readers(script))
    story.ask("lines")
    story.deliver("split")
    early = {"count": "index", "index": "count"}[late]
    story.deliver(early)
    acks = [one for one in story.on_the_way if one.startswith("acker")]
    story.queue.reverse()  # the last one comes first
    for _ in acks:
        assert story.deliver("acker") == []
    assert len(story.trees) == 1
    story.deliver(late)
    assert story.deliver("acker") == ["lines <- complete"]


def test_rows_wait_in_the_sink_until_their_tree_is_complete() -> None:
    script, sink = Script([lines("to be")], ends=False), Gathering()
    t = Topology("to-a-sink")
    t.sink("out", sink).shuffle(t.bolt("split", split).shuffle(t.spout("lines", script)))
    story = Story(t)

    story.ask("lines")
    story.deliver("acker")
    story.deliver("split")
    story.deliver("acker")
    assert story.deliver("out") == ["acker <- b"]  # the sink holds the rows, and acks them
    assert sink.rows == []

    assert story.deliver("acker") == ["lines <- complete"]
    assert story.deliver("lines") == ["out <- release its rows"]
    assert script.acked == []

    assert story.deliver("out") == ["lines <- rows are written"]
    assert sink.rows == [Word("to"), Word("be")]
    story.deliver("lines")
    assert script.acked == [0]


def test_a_copy_that_is_acked_twice_never_completes_its_tree_early() -> None:
    """It cancels itself out: the tree stays open, whatever else comes, and times out."""
    script = Script([lines("to be")], ends=False)
    story = Story(two_readers(script), max_attempts=1)
    story.ask("lines")
    story.deliver("split")
    copy = next(one for one in story.queue if story._receiver(one) == "count")
    story.queue.appendleft(copy)
    for _ in range(2):
        story.deliver("count")
    story.deliver("index")
    for _ in range(5):
        assert story.deliver("acker") == []
    assert story.trees == ["b"]
    story.wait(45.1)
    assert [message_id for message_id, _ in script.failed] == [0]


def test_a_copy_that_is_acked_again_after_the_end_changes_nothing() -> None:
    script = Script([lines("to be")], ends=False)
    story = Story(two_readers(script))
    story.ask("lines")
    story.deliver("split")
    copy = next(one for one in story.queue if story._receiver(one) == "count")
    story.settle()
    assert script.acked == [0]
    story.queue.append(copy)
    story.wait(60.0)
    assert script.acked == [0]
    assert (script.failed, story.ackers[0].counters.unknown, story.ackers[0].size) == ([], 1, 0)


def test_a_hundred_children_with_random_delays_complete_their_message_once() -> None:
    script = Script([lines(*(" ".join(map(str, range(100))) for _ in range(3)))], ends=False)
    story = Story(two_readers(script))
    story.ask("lines")
    delays = story.random
    while story.queue:
        story.queue.rotate(delays.randrange(len(story.queue)))
        story.step()
    assert sorted(script.acked, key=str) == [0, 1, 2]
    assert story.ackers[0].size == 0
