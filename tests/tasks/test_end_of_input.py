"""What windows do at the end of the input."""

from __future__ import annotations

import msgspec

from tests.tasks.streams import Line
from tupletree import Retry, TaskContext, Topology, bolt, testing, window_bolt
from tupletree.sinks import foreach
from tupletree.sources import items


class Texts(msgspec.Struct, frozen=True):
    texts: list[str]


@bolt
def the_second_fails_once(line: Line, context: TaskContext) -> Line:
    if line.text == "b" and context.attempt == 1:
        raise ValueError("not yet")
    return line


@window_bolt(length_s=3_600.0, extend_timeout=True)
def together(given: list[Line]) -> Texts:
    return Texts([line.text for line in given])


def rows_after(pause_s: float) -> list[list[str]]:
    t = Topology("end")
    tried = t.bolt("fails", the_second_fails_once, retry=Retry(attempts=2, backoff_s=pause_s)).shuffle(
        t.spout("lines", items([Line("a"), Line("b"), Line("c")]))
    )
    t.sink("out", foreach(lambda _: None)).shuffle(t.bolt("together", together).shuffle(tried))
    ended = testing.run(t, options={"max_spout_pending": 10, "backoff_jitter": 0.0})
    assert all(message.acked for message in ended.messages["lines"])
    return sorted(sorted(row.texts) for row in ended.outputs["out"])


def test_windows_wait_for_a_message_that_is_tried_again_within_ten_seconds() -> None:
    assert rows_after(8.0) == [["a", "b", "c"]]


def test_a_message_that_comes_later_is_in_a_window_of_its_own() -> None:
    assert rows_after(15.0) == [["a", "c"], ["b"]]
