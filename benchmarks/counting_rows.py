"""The rows on word counts over a backlog: per tuple, by columns, with reliability tuned off, and with failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.alternating import Contender, alternate, row_of
from benchmarks.corpus import count_words, ensure_corpus, ensure_keys
from benchmarks.row import Row, Settings
from benchmarks.verify import check_last_counts, check_rows_per_word, read_rows

__all__ = [
    "measure_failures",
    "measure_large_epochs",
    "measure_order",
    "measure_reliability",
    "measure_small_epochs",
    "measure_stateful",
    "measure_throughput",
    "measure_vectorised",
]

WORDS_PER_LINE = 10
KEY_EPOCH_LINES = 10_000
"""Of the counts over many keys: 100,000 rows per epoch, for all jobs."""

SMALL_EPOCH_LINES = 1_000
LARGE_EPOCH_LINES = 250_000
"""2.5 million words."""

MakeContenders = Callable[["Checks"], Mapping[str, Contender]]


class Checks:
    """What a job's output must be. A fast wrong answer is not a result.

    Args:
        expected: word → occurrences in the corpus.
    """

    def __init__(self, expected: Counter[str]) -> None:
        self.expected = expected

    def occurrences(self, out: Path) -> None:
        """A row for each occurrence of a word, counts aside."""
        check_rows_per_word(read_rows(out), self.expected)

    def last(self, out: Path) -> None:
        """The highest count of each word is right, however many rows there are."""
        check_last_counts(read_rows(out), self.expected)

    def both(self, out: Path) -> None:
        """A row for each occurrence, and the last counts are right."""
        rows = read_rows(out)
        check_rows_per_word(rows, self.expected)
        check_last_counts(rows, self.expected)


def throughput(checks: Checks) -> dict[str, Contender]:
    """One output per word, by the same functions."""
    return {
        "plain": Contender(
            "plain",
            "same functions in mapInArrow, untracked, totals in the worker (no valid counts)",
            check=checks.occurrences,
        ),
        "idiomatic": Contender(
            "idiomatic",
            "Python UDF, explode, groupBy, update mode through foreachBatch: fewer rows, one per changed word",
            peer="plain",
            check=checks.last,
        ),
        "tupletree": Contender("tupletree", "full tracking, exactly once", peer="plain", check=checks.both),
        "tupletree, read by executors": Contender(
            "tupletree",
            "the same, its lines read by executors, as `text_lines` does, instead of pulled by the driver",
            variant="read by executors",
            peer="tupletree",
            check=checks.both,
        ),
    }


def small_epochs(checks: Checks) -> dict[str, Contender]:
    """What an epoch costs whatever is in it shows where little is."""
    named = throughput(checks)
    return {name: one for name, one in named.items() if name != "idiomatic"}


def large_epochs(checks: Checks) -> dict[str, Contender]:
    """What an epoch costs whatever is in it does not count here."""
    named = vectorised(checks)
    names = ("plain, vectorised", "tupletree, vectorised", "tupletree, vectorised, read by executors")
    return {name: named[name] for name in names}


def vectorised(checks: Checks) -> dict[str, Contender]:
    """Work without Python per tuple: Arrow bolts and the library against vectorised Spark jobs."""
    tupletree = partial(Contender, "tupletree", by_throughput=True, check=checks.last)
    return {
        "plain, vectorised": Contender("vectorised", "columns in mapInArrow, untracked (no valid counts)"),
        "tupletree, vectorised": tupletree(
            "explode, count_by_key, fully tracked", variant="vectorised", peer="plain, vectorised"
        ),
        "tupletree, vectorised, read by executors": tupletree(
            "the same, its lines read by executors, as `text_lines` does and the plain job, too",
            variant="vectorised, read by executors",
            peer="plain, vectorised",
        ),
        "idiomatic": Contender(
            "idiomatic", "Python UDF, explode, groupBy, update mode through foreachBatch", check=checks.last
        ),
        "tupletree, Python split": tupletree(
            "the same function of a line in explode, then count_by_key", variant="python split", peer="idiomatic"
        ),
        "tupletree, Python words": tupletree(
            "a bolt that makes a tuple per word, then count_by_key", variant="python words", peer="idiomatic"
        ),
    }


def reliability(checks: Checks) -> dict[str, Contender]:
    """Tuned off in Storm's three ways. The third needs a collector: it is measured against that bolt, anchoring."""
    tupletree = partial(Contender, "tupletree", check=checks.both)
    return {
        "plain": Contender("plain", "same functions in mapInArrow, untracked", check=checks.occurrences),
        "tracked": tupletree("full tracking, exactly once", peer="plain"),
        "no ackers": tupletree("acker_tasks=0: acked when they are emitted", variant="no ackers", peer="plain"),
        "no ids": tupletree("messages without an id", variant="no ids", peer="plain"),
        "collector, anchored": tupletree(
            "a class bolt splits; its words are anchored to the line", variant="anchored", peer="plain"
        ),
        "collector, unanchored": tupletree(
            "the same bolt emits with anchors=()", variant="unanchored", peer="collector, anchored"
        ),
    }


def failures(_checks: Checks) -> dict[str, Contender]:
    """Lines fail behind the count: 1 % of them once, or whichever have a call of that 1 %."""
    once = "1 % of the messages fail behind the count, once"
    notes = {
        "no failures": "",
        "at_least_once": once,
        "exactly_once": once,
        "at random": "1 % of the calls behind the count fail, others in each run; exactly once",
    }
    return {
        name: Contender(
            "tupletree",
            note,
            variant=f"failing: {name}",
            peer="" if name == "no failures" else "no failures",
            with_numbers=True,
        )
        for name, note in notes.items()
    }


def order(_checks: Checks) -> dict[str, Contender]:
    """Inputs grouped by key in any order and in that of the source; each line has one key, its first word."""
    notes = {
        "any order": "a bolt, and a running count by the first word of each line",
        "in order": "the same, its input `ordered=True`",
        "any order, some fail there": "1 % of the lines fail at the count, once",
        "in order, some fail there": "the same, its input `ordered=True`",
        "in order, some fail before": "1 % of the lines fail before the ordered input, once",
    }
    return {
        name: Contender(
            "tupletree",
            note,
            variant=f"one key each: {name}",
            peer="" if name == "any order" else "any order",
            with_numbers=True,
        )
        for name, note in notes.items()
    }


def stateful(checks: Checks) -> dict[str, Contender]:
    """Counts over many keys against Spark's built-in aggregate."""
    aggregate = "Spark's aggregate"
    return {
        aggregate: Contender("aggregate", "split, explode, groupBy, count in the JVM, update mode", check=checks.last),
        "tupletree, built-in count": Contender(
            "tupletree",
            "explode, count_by_key, fully tracked, exactly once",
            variant="vectorised",
            peer=aggregate,
            with_numbers=True,
            check=checks.last,
        ),
        "tupletree, Python count": Contender(
            "tupletree",
            "a Python call for each row, one output for each, fully tracked",
            peer=aggregate,
            with_numbers=True,
            check=checks.last,
        ),
    }


def _measure(benchmark: str, make: MakeContenders, settings: Settings) -> list[Row]:
    """Word counts over a backlog."""
    corpus = ensure_corpus(
        settings.work, words=settings.words, words_per_line=WORDS_PER_LINE, epoch_lines=settings.epoch_lines
    )
    return _rows(benchmark, make, settings, corpus, settings.epoch_lines)


def measure_small_epochs(settings: Settings) -> list[Row]:
    """Epochs of 1,000 lines, a fifth of the words."""
    words = settings.words // 5
    corpus = ensure_corpus(settings.work, words=words, words_per_line=WORDS_PER_LINE, epoch_lines=SMALL_EPOCH_LINES)
    return _rows("small epochs", small_epochs, settings, corpus, SMALL_EPOCH_LINES)


def measure_large_epochs(settings: Settings) -> list[Row]:
    """Epochs of 2.5 million words by columns, at least four of them."""
    words = max(settings.words, 4 * LARGE_EPOCH_LINES * WORDS_PER_LINE)
    corpus = ensure_corpus(settings.work, words=words, words_per_line=WORDS_PER_LINE, epoch_lines=LARGE_EPOCH_LINES)
    return _rows("large epochs, vectorised", large_epochs, settings, corpus, LARGE_EPOCH_LINES)


def _rows(benchmark: str, make: MakeContenders, settings: Settings, corpus: Path, epoch_lines: int) -> list[Row]:
    expected = count_words(corpus)
    contenders = make(Checks(expected))
    measured = alternate(settings, benchmark, contenders, corpus, epoch_lines=epoch_lines)
    return [row_of(benchmark, name, one, measured, expected.total()) for name, one in contenders.items()]


measure_throughput = partial(_measure, "throughput", throughput)
measure_vectorised = partial(_measure, "vectorised", vectorised)
measure_reliability = partial(_measure, "reliability", reliability)
measure_failures = partial(_measure, "failures", failures)
measure_order = partial(_measure, "order", order)


def measure_stateful(settings: Settings) -> list[Row]:
    """Count rows by key: each key once, then as many rows again with random keys."""
    corpus = ensure_keys(settings.work, keys=settings.keys, words_per_line=WORDS_PER_LINE, epoch_lines=KEY_EPOCH_LINES)
    return _rows("stateful", stateful, settings, corpus, KEY_EPOCH_LINES)
