"""The rows on reliability tuned off in Storm's three ways: no ackers, no message ids, unanchored tuples.

The third needs a bolt with a collector, so it is measured against the same bolt that anchors what it emits.
"""

from __future__ import annotations

import shutil
from statistics import median

from benchmarks.corpus import count_words, ensure_corpus
from benchmarks.harness import run_job
from benchmarks.job import JobSpec
from benchmarks.row import Row, Settings, progress
from benchmarks.verify import check_last_counts, check_rows_per_word, read_rows

__all__ = ["measure_reliability"]

WORDS_PER_LINE = 10

JOBS: dict[str, tuple[str, str, str, str]] = {
    "plain": ("plain", "", "plain", "same functions in mapInArrow, untracked"),
    "tracked": ("tupletree", "", "plain", "full tracking, exactly once"),
    "no ackers": ("tupletree", "no ackers", "plain", "acker_tasks=0: acked when they are emitted"),
    "no ids": ("tupletree", "no ids", "plain", "messages without an id"),
    "collector, anchored": (
        "tupletree",
        "anchored",
        "plain",
        "a class bolt splits; its words are anchored to the line",
    ),
    "collector, unanchored": ("tupletree", "unanchored", "collector, anchored", "the same bolt emits with anchors=()"),
}
"""Name → (job, variant, what it is measured against, note)."""


def measure_reliability(settings: Settings) -> list[Row]:
    """Word count over a backlog with one output per word; jobs alternate, ratios of times round by round."""
    corpus = ensure_corpus(
        settings.work, words=settings.words, words_per_line=WORDS_PER_LINE, epoch_lines=settings.epoch_lines
    )
    expected = count_words(corpus)
    folder = settings.work / "reliability"
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    for _round in range(settings.rounds):
        for name, (job, variant, _peer, _note) in JOBS.items():
            spec = JobSpec(
                master=settings.master,
                folder=str(folder),
                corpus=str(corpus),
                epoch_lines=settings.epoch_lines,
                variant=variant,
            )
            result = run_job(job, spec).result
            rows = read_rows(spec.out)
            check_rows_per_word(rows, expected)
            if job != "plain":
                check_last_counts(rows, expected)
            seconds[name].append(result.seconds)
            progress(f"reliability, {name}: {result.seconds:.2f} s")
    shutil.rmtree(folder)
    return [_row(name, seconds, expected.total()) for name in JOBS]


def _row(name: str, seconds: dict[str, list[float]], words: int) -> Row:
    _job, _variant, peer, note = JOBS[name]
    middle_s = median(seconds[name])
    ratios = [own / other for own, other in zip(seconds[name], seconds[peer], strict=True)]
    return Row(
        benchmark="reliability",
        job=name,
        result=f"{middle_s:.2f} s, {words / middle_s:,.0f} words/s",
        ratio=f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × the time of {peer}"
        if peer != name
        else "1",
        note=note,
        data={"seconds": seconds[name]},
    )
