"""A spout has one stream; one that declares several classes is refused, with advice that works."""

from __future__ import annotations

import pytest

from tests.tasks.streams import Count, Line, Word
from tupletree import Emit, EndOfInput, Spout, Topology, bolt
from tupletree.errors import TopologyError


class Two(Spout[Word | Line]):
    def next(self) -> Emit[Word | Line]:
        raise EndOfInput


@bolt
def of_word(word: Word) -> Count:
    return Count(word.word, 1)


def test_it_is_refused_whether_it_is_read_as_a_whole_or_by_stream() -> None:
    for by_stream in (False, True):
        t = Topology("two")
        source = t.spout("two", Two())
        t.bolt("of_word", of_word, unconsumed=Count).shuffle(source.stream(Word) if by_stream else source)
        with pytest.raises(TopologyError, match="one class of messages") as refused:
            t.build()
        text = str(refused.value)
        assert "got: Word | Line" in text
        assert "a spout for each class" in text
        assert "one of: .stream(" not in text
