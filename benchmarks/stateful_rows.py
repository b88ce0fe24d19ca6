"""The rows on state: counts over many keys against Spark's built-in aggregate, and what failures behind state cost."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from statistics import median

from benchmarks.corpus import count_words, ensure_corpus, ensure_keys
from benchmarks.harness import run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.row import Row, Settings, progress
from benchmarks.verify import check_last_counts, read_rows

__all__ = ["measure_failures", "measure_stateful"]

WORDS_PER_LINE = 10
EPOCH_LINES = 10_000
"""100,000 rows per epoch, for all jobs."""

STATEFUL: dict[str, tuple[str, str, str]] = {
    "Spark's aggregate": ("aggregate", "", "split, explode, groupBy, count in the JVM, update mode"),
    "tupletree, built-in count": ("tupletree", "vectorised", "explode, count_by_key, fully tracked, exactly once"),
    "tupletree, Python count": ("tupletree", "", "a Python call for each row, one output for each, fully tracked"),
}
"""Name → (job, variant, note); the first is what the others are measured against."""

FAILING = {
    "no failures": "",
    "at_least_once": "1 % of the messages fail behind the count, once",
    "exactly_once": "1 % of the messages fail behind the count, once",
    "at random": "1 % of the calls behind the count fail, others in each run; exactly once",
}
"""Name → note; the first is what the others are measured against."""


def measure_stateful(settings: Settings) -> list[Row]:
    """Count rows by key: each key once, then as many rows again with random keys; jobs alternate."""
    corpus = ensure_keys(settings.work, keys=settings.keys, words_per_line=WORDS_PER_LINE, epoch_lines=EPOCH_LINES)
    expected = count_words(corpus)
    folder = settings.work / "stateful"
    results: dict[str, list[JobResult]] = {name: [] for name in STATEFUL}
    for _round in range(settings.rounds):
        for name, (job, variant, _note) in STATEFUL.items():
            spec = JobSpec(
                master=settings.master,
                folder=str(folder),
                corpus=str(corpus),
                epoch_lines=EPOCH_LINES,
                variant=variant,
            )
            result = run_job(job, spec).result
            check_last_counts(read_rows(spec.out), expected)
            results[name].append(result)
            progress(f"stateful, {name}: {result.seconds:.2f} s {result.numbers or ''}")
    shutil.rmtree(folder)
    peer = [result.seconds for result in results[next(iter(STATEFUL))]]
    return [_row("stateful", name, results[name], peer, expected.total(), STATEFUL[name][2]) for name in STATEFUL]


def measure_failures(settings: Settings) -> list[Row]:
    """A word count in which lines fail behind the count: 1 % of them once, or whichever have a call of that 1 %."""
    corpus = ensure_corpus(
        settings.work, words=settings.words, words_per_line=WORDS_PER_LINE, epoch_lines=settings.epoch_lines
    )
    folder = settings.work / "failures"
    results: dict[str, list[JobResult]] = {name: [] for name in FAILING}
    for _round in range(settings.rounds):
        for name in FAILING:
            spec = JobSpec(
                master=settings.master,
                folder=str(folder),
                corpus=str(corpus),
                epoch_lines=settings.epoch_lines,
                variant=f"failing: {name}",
            )
            result = run_job("tupletree", spec).result
            results[name].append(result)
            progress(f"failures, {name}: {result.seconds:.2f} s {result.numbers}")
    shutil.rmtree(folder)
    peer = [result.seconds for result in results["no failures"]]
    return [
        _row("failures behind state", name, results[name], peer, settings.words, note) for name, note in FAILING.items()
    ]


def _row(benchmark: str, name: str, results: list[JobResult], peer: Iterable[float], rows: int, note: str) -> Row:
    seconds = [result.seconds for result in results]
    ratios = [own / other for own, other in zip(seconds, peer, strict=True)]
    numbers = ", ".join(f"{what} {number:,.1f}" for what, number in results[-1].numbers.items())
    return Row(
        benchmark=benchmark,
        job=name,
        result=f"{median(seconds):.2f} s, {rows / median(seconds):,.0f} rows/s",
        ratio=f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × the time",
        note="; ".join(filter(None, [note, numbers])),
        data={"seconds": seconds, "numbers": results[-1].numbers},
    )
