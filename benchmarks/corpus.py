"""The input of the word counts: seeded text files with a Zipf-like distribution of real words.

Owns how lines are drawn, cut into files, and counted for the check. Knows nothing of Spark.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from pydoc_data import topics

__all__ = ["FILES_PER_EPOCH", "count_words", "ensure_corpus", "ensure_keys"]

FILES_PER_EPOCH = 2
"""An epoch's lines lie in two equal files: Spark would split a single one unevenly over two cores."""

SEED = 20_240_229


def ensure_corpus(work: Path, *, words: int, words_per_line: int, epoch_lines: int) -> Path:
    """Return the folder of the corpus with these parameters; generate it if it is not there yet.

    The same parameters (and the same Python, whose documentation gives the vocabulary) give the same bytes. Files
    sort by name and by modification time in the order in which they were drawn.

    Args:
        work: folder that keeps corpora between runs.
        words: words in total; rounded down to whole lines.
        words_per_line: words of each line.
        epoch_lines: lines of each group of `FILES_PER_EPOCH` files; the last group may have fewer.
    """
    vocabulary, cumulative_weights = zipf_vocabulary()
    draw = random.Random(SEED)

    def lines(count: int) -> list[str]:
        drawn = draw.choices(vocabulary, cum_weights=cumulative_weights, k=count * words_per_line)
        return _lines_of(drawn, words_per_line)

    folder = work / f"corpus-{words}-words-{words_per_line}-per-line-{epoch_lines}-lines"
    return _ensure(folder, words // words_per_line, epoch_lines, lines)


def ensure_keys(work: Path, *, keys: int, words_per_line: int, epoch_lines: int) -> Path:
    """Return the folder of a corpus of many words: each once, in random order, then as many drawn evenly.

    Args:
        work: folder that keeps corpora between runs.
        keys: distinct words; there are twice as many in all.
        words_per_line: words of each line.
        epoch_lines: as for `ensure_corpus`.
    """
    draw = random.Random(SEED)

    def words() -> Iterator[str]:
        numbers = [*range(keys)]
        draw.shuffle(numbers)
        yield from (f"key-{number}" for number in numbers)
        while True:
            yield f"key-{draw.randrange(keys)}"

    endless = words()
    folder = work / f"keys-{keys}-{words_per_line}-per-line-{epoch_lines}-lines"
    return _ensure(
        folder,
        2 * keys // words_per_line,
        epoch_lines,
        lambda count: _lines_of([*islice(endless, count * words_per_line)], words_per_line),
    )


def _lines_of(words: list[str], words_per_line: int) -> list[str]:
    return [" ".join(words[start : start + words_per_line]) + "\n" for start in range(0, len(words), words_per_line)]


def _ensure(folder: Path, lines_left: int, epoch_lines: int, draw: Callable[[int], list[str]]) -> Path:
    """Write the files of a corpus, unless it is there."""
    if folder.exists():
        return folder
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    number = 0
    while lines_left:
        epoch = min(epoch_lines, lines_left)
        for part in range(FILES_PER_EPOCH):
            lines = epoch * (part + 1) // FILES_PER_EPOCH - epoch * part // FILES_PER_EPOCH
            path = unfinished / f"{number:05d}.txt"
            with path.open("w", encoding="ascii", newline="\n") as file:
                file.writelines(draw(lines))
            # Spark's file source reads in the order of modification times, in milliseconds.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
            number += 1
        lines_left -= epoch
    unfinished.rename(folder)
    return folder


def zipf_vocabulary() -> tuple[list[str], list[float]]:
    """The documentation's words, most frequent first, with cumulative weights 1/rank (Zipf's law, exponent 1)."""
    text = " ".join(topics.topics[name] for name in sorted(topics.topics)).lower()
    frequency = Counter(re.findall(r"[a-z]+", text))
    vocabulary = sorted(frequency, key=lambda word: (-frequency[word], word))
    return vocabulary, list(accumulate(1 / rank for rank in range(1, len(vocabulary) + 1)))


def count_words(corpus: Path) -> Counter[str]:
    """Count the corpus with `collections.Counter`: what every job must agree with."""
    counts: Counter[str] = Counter()
    for path in sorted(corpus.glob("*.txt")):
        counts.update(path.read_text(encoding="ascii").split())
    return counts
