"""A topology for spark-submit: each word comes with the place that its worker has Tupletree from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

import tupletree
from tupletree import KeyedState, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, text_lines


class Word(msgspec.Struct, frozen=True):
    word: str


class Count(msgspec.Struct, frozen=True):
    word: str
    count: int
    tupletree: str
    module: str


@bolt
def split(line: Line) -> Iterator[Word]:
    return map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value, tupletree.__file__, __file__)


def topology(paths: list[Path], out: Path) -> Topology:
    t = Topology("submitted")
    words = t.bolt("split", split, parallelism=2).shuffle(t.spout("lines", text_lines(paths)))
    t.sink("out", jsonl(out)).shuffle(t.bolt("count", count, parallelism=2).fields(words, "word"))
    return t
