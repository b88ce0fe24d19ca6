"""The per-tuple functions of the word count: the very same objects run in the plain job and in Tupletree."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tupletree.topology.components import KeyedState

__all__ = ["Count", "Line", "Word", "count", "split", "split_text"]


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of text: the message."""

    text: str


class Word(msgspec.Struct, frozen=True, gc=False):
    """One word of a line."""

    word: str


class Count(msgspec.Struct, frozen=True, gc=False):
    """One output per word: how often it was seen so far."""

    word: str
    count: int


def split(line: Line) -> Iterator[Word]:
    """Emit each word of the line."""
    for word in line.text.split():
        yield Word(word)


def count(word: Word, total: KeyedState[int]) -> Count:
    """Add one to the word's total and emit it."""
    total.value += 1
    return Count(word.word, total.value)


def split_text(text: str) -> list[str]:
    """Split a line into its words."""
    return text.split()
