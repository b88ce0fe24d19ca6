"""Checks a word count's Parquet output against `collections.Counter`: a fast wrong answer is not a result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pyarrow.dataset as ds

__all__ = ["check_last_counts", "check_rows_per_word", "read_rows"]


def read_rows(out: Path) -> list[tuple[str, int]]:
    """Every (word, count) that a plain reader sees."""
    table = ds.dataset(out, format="parquet").to_table(columns=["word", "count"])
    words, counts = cast("list[str]", table["word"].to_pylist()), cast("list[int]", table["count"].to_pylist())
    return list(zip(words, counts, strict=True))


def check_rows_per_word(rows: list[tuple[str, int]], expected: Counter[str]) -> None:
    """One row for each occurrence of a word. Raises AssertionError."""
    check_equal(Counter(word for word, _ in rows), expected, "rows per word")


def check_last_counts(rows: list[tuple[str, int]], expected: Counter[str]) -> None:
    """The highest count of each word is the word's count. Raises AssertionError."""
    last: Counter[str] = Counter()
    for word, total in rows:
        last[word] = max(last[word], total)
    check_equal(last, expected, "last counts")


def check_equal(got: Counter[str], expected: Counter[str], what: str) -> None:
    """Raise AssertionError with some of the differences."""
    if got != expected:
        words = sorted(word for word in got.keys() | expected.keys() if got[word] != expected[word])
        shown = [f"{word}: got {got[word]}, expected {expected[word]}" for word in words[:5]]
        raise AssertionError(f"{what} differ for {len(words)} words: {'; '.join(shown)}")
