"""The per-tuple functions of the word count: the very same objects run in the plain job and in Tupletree."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from tupletree.routing.hashing import stable_hash
from tupletree.topology.components import KeyedState, TaskContext

__all__ = [
    "Count",
    "Line",
    "Word",
    "count",
    "count_some",
    "fail_at_random",
    "fail_some",
    "first_word",
    "first_word_of_some",
    "pass_on",
    "split",
    "split_text",
]


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


def first_word(line: Line, context: TaskContext) -> Word:  # noqa: ARG001 - as `first_word_of_some`
    """The first word of a line: a message with one key."""
    return Word(line.text.split(maxsplit=1)[0])


def first_word_of_some(line: Line, context: TaskContext) -> Word:
    """The same; one message in a hundred fails once."""
    if _fails_once(context):
        raise ValueError("not accepted")
    return first_word(line, context)


def count_some(word: Word, total: KeyedState[int], context: TaskContext) -> Count:
    """As `count`; one message in a hundred fails once."""
    if _fails_once(context):
        raise ValueError("not accepted")
    return count(word, total)


def _fails_once(context: TaskContext) -> bool:
    return context.attempt == 1 and stable_hash(str(context.message_id)) % 100 == 2


def fail_some(counted: Count, context: TaskContext) -> Count:
    """Fail about one message in a hundred behind its count, once: by words that make up a thousandth of the text."""
    if context.attempt == 1 and stable_hash(counted.word) % 256 == 2:
        raise ConnectionError("not accepted")
    return counted


def fail_at_random(counted: Count, context: TaskContext) -> Count:  # noqa: ARG001 - as `fail_some`
    """Fail one call in a hundred behind the count, others each time."""
    if random.random() < 0.01:
        raise ConnectionError("not accepted")
    return counted


def pass_on(counted: Count, context: TaskContext) -> Count:  # noqa: ARG001 - what `fail_some` is handed
    """As `fail_some`, without failing."""
    return counted


def split_text(text: str) -> list[str]:
    """Split a line into its words."""
    return text.split()
