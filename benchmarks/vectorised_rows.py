"""The rows on work without Python per tuple: Arrow bolts and the library against vectorised Spark jobs."""

from __future__ import annotations

import shutil
from statistics import median

from benchmarks.corpus import count_words, ensure_corpus
from benchmarks.harness import run_job
from benchmarks.job import JobSpec
from benchmarks.row import Row, Settings, progress
from benchmarks.verify import check_last_counts, read_rows

__all__ = ["measure_vectorised"]

WORDS_PER_LINE = 10

JOBS: dict[str, tuple[str, str, str, str]] = {
    "plain, vectorised": ("vectorised", "", "", "columns in mapInArrow, untracked (no valid counts)"),
    "tupletree, vectorised": ("tupletree", "vectorised", "plain, vectorised", "explode, count_by_key, fully tracked"),
    "idiomatic": ("idiomatic", "", "", "Python UDF, explode, groupBy, update mode through foreachBatch"),
    "tupletree, Python split": (
        "tupletree", "python split", "idiomatic", "the same function of a line in explode, then count_by_key",
    ),
    "tupletree, Python words": (
        "tupletree", "python words", "idiomatic", "a bolt that makes a tuple per word, then count_by_key",
    ),
}  # fmt: skip
"""Name → (job, variant, what it is measured against, note)."""


def measure_vectorised(settings: Settings) -> list[Row]:
    """Word count over a backlog; jobs alternate, ratios round by round."""
    corpus = ensure_corpus(
        settings.work, words=settings.words, words_per_line=WORDS_PER_LINE, epoch_lines=settings.epoch_lines
    )
    expected = count_words(corpus)
    folder = settings.work / "vectorised"
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    written: dict[str, int] = {}
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
            if job != "vectorised":
                check_last_counts(rows, expected)
            seconds[name].append(result.seconds)
            written[name] = len(rows)
            progress(f"vectorised, {name}: {result.seconds:.2f} s, {len(rows):,} rows")
    shutil.rmtree(folder)
    return [_row(name, seconds, written[name], expected.total()) for name in JOBS]


def _row(name: str, seconds: dict[str, list[float]], written: int, words: int) -> Row:
    _job, _variant, peer, note = JOBS[name]
    middle_s = median(seconds[name])
    ratios = [other / own for own, other in zip(seconds[name], seconds[peer or name], strict=True)]
    return Row(
        benchmark="vectorised",
        job=name,
        result=f"{middle_s:.2f} s, {words / middle_s:,.0f} words/s, {written:,} rows written",
        ratio=f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × the throughput of {peer}" if peer else "1",
        note=note,
        data={"seconds": seconds[name], "rows_written": written},
    )
