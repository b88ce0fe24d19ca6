"""Storm's example: split lines into words, and keep a running count of every word.

    tupletree run examples/word_count.py --set out=counts
    tupletree run examples/word_count.py --set paths=a.txt,b.txt --set out=counts --set poison=boom --set flaky=hiccup

A word is what `str.split` gives, as it stands, so the last count of every word is what `collections.Counter` says of
the same text: `Counter(text.split())`. Without paths it reads the Python documentation that every CPython carries.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import msgspec

from tupletree import KeyedState, Resource, Spout, TaskContext, Topology, bolt
from tupletree.sinks import jsonl
from tupletree.sources import Line, items, text_lines


class Word(msgspec.Struct, frozen=True, gc=False):
    """One word of a line."""

    word: str


class Count(msgspec.Struct, frozen=True, gc=False):
    """How often a word came so far."""

    word: str
    count: int


class Faults(msgspec.Struct, frozen=True):
    """Troubles to order, to see what becomes of the messages that meet them. Empty patterns match nothing.

    Attributes:
        poison: lines that match this regular expression fail on every attempt.
        flaky: lines that match this one fail on their first two attempts.
        behind: this fraction of the counts fails on a line's first attempt, behind the bolt that counted them.
    """

    poison: str = ""
    flaky: str = ""
    behind: float = 0.0


@bolt
def split(line: Line, context: TaskContext, faults: Resource[Faults]) -> Iterator[Word]:
    """Emit the words of a line."""
    if faults.poison and re.search(faults.poison, line.text):
        raise ValueError(f"{line.path}:{line.number} is poison: {line.text[:80]!r}")
    if faults.flaky and context.attempt <= 2 and re.search(faults.flaky, line.text):
        raise RuntimeError(f"{line.path}:{line.number} is flaky, attempt {context.attempt}")
    return map(Word, line.text.split())


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    """Count the words; the grouping brings equal words to the same task."""
    total.value += 1
    return Count(word.word, total.value)


@bolt
def stumble(counted: Count, context: TaskContext, faults: Resource[Faults]) -> Count:
    """Let some of the counts through only on a later attempt, always the same ones."""
    lot = zlib.crc32(f"{counted.word} {counted.count}".encode(errors="surrogatepass")) / 2**32
    if lot < faults.behind and context.attempt == 1:
        raise RuntimeError(f"count {counted.count} of {counted.word!r} was not accepted")
    return counted


def topology(
    paths: Sequence[Path] = (),
    out: Path = Path("out"),
    poison: str = "",
    flaky: str = "",
    fail_behind: float = 0.0,
) -> Topology:
    """Count the words of text files.

    Args:
        paths: text files; none means the documentation that comes with Python.
        out: folder for JSON Lines of {"word", "count"}, one per update.
        poison: lines that match this regular expression always fail.
        flaky: lines that match this one fail on their first two attempts.
        fail_behind: fraction of the counts that fail after they were counted, on their line's first attempt.
    """
    faults = {"faults": Faults(poison, flaky, fail_behind)}
    t = Topology("word-count")
    lines = t.spout("lines", text_lines(paths) if paths else python_documentation())
    words = t.bolt("split", split, parallelism=2, resources=faults).shuffle(lines)
    counts = t.bolt("count", count, parallelism=2).fields(words, "word")
    if fail_behind:
        counts = t.bolt("stumble", stumble, resources=faults).shuffle(counts)
    t.sink("out", jsonl(out)).shuffle(counts)
    return t


def python_documentation() -> Spout[Line]:
    """The lines of `pydoc_data.topics`, what `help("topics")` shows, as messages ("topics", number)."""
    lines = [line for name in sorted(topics) for line in topics[name].splitlines()]
    return items(
        [Line(text, "pydoc_data.topics", number) for number, text in enumerate(lines, 1)],
        ids=[("topics", number) for number in range(1, len(lines) + 1)],
    )
