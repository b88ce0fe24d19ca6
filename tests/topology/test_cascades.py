"""A fault that causes others is reported alone."""

from __future__ import annotations

import msgspec

from tests.topology.test_check import Anything, Bad, Line, Word, only, split, started
from tupletree import bolt


class Nothing(msgspec.Struct):
    pass


@bolt
def empty(line: Line) -> Nothing:
    return Nothing()


def test_the_key_of_a_stream_that_is_not_emitted_is_not_judged() -> None:
    topology, lines = started()
    words = topology.bolt("split", split, unconsumed=(Word, Bad)).shuffle(lines)
    topology.sink("out", Anything()).fields(words.stream(Line), "text")
    assert only(topology).what.startswith("bolt 'split' emits no ")


def test_a_class_without_fields_has_no_key() -> None:
    topology, lines = started()
    topology.sink("out", Anything()).fields(topology.bolt("empty", empty).shuffle(lines), "text")
    assert "has no field 'text'" in only(topology).what
