"""The rows of event time and the order of making: what either costs the word count, on both runtimes."""

from __future__ import annotations

import shutil
from statistics import median

from benchmarks.corpus import ensure_corpus
from benchmarks.harness import run_job
from benchmarks.job import JobSpec
from benchmarks.row import Row, Settings, progress
from benchmarks.time_cost import AS_IT_IS, BY_COUNT, BY_EVENT_TIME, LOCAL, NUMBERED, SPARK

__all__ = ["measure_time"]

PAIRS = {
    BY_EVENT_TIME: (BY_COUNT, "a window behind the whole word count gets one result in 10,000"),
    NUMBERED: (AS_IT_IS, "the sink asks for the order in which its rows were made"),
    BY_COUNT: (AS_IT_IS, "what a window costs that has nothing to do with time"),
}
"""Variant → the one that it is measured against, and what is done."""

TURNS_PER_ROUND = 4
WORDS = 200_000
EPOCH_LINES = 2_000
"""So few that a turn lasts for a second. A job has ten epochs: at the end of its input a window keeps trees open for
one or two more."""


def measure_time(settings: Settings) -> list[Row]:
    """CPU time of pairs of jobs that take turns in one process."""
    corpus = ensure_corpus(settings.work, words=WORDS, words_per_line=10, epoch_lines=EPOCH_LINES)
    folder = settings.work / "time"
    rows = []
    for runtime in (LOCAL, SPARK):
        turns = settings.rounds * TURNS_PER_ROUND
        spec = JobSpec(
            master="", folder=str(folder), corpus=str(corpus), variant=runtime, epochs=turns, epoch_lines=EPOCH_LINES
        )
        numbers = run_job("time cost", spec).result.numbers
        for variant, (peer, note) in PAIRS.items():
            own = [numbers[f"{variant} {turn}"] for turn in range(turns)]
            theirs = [numbers[f"{peer} {turn}"] for turn in range(turns)]
            ratios = [own_s / peer_s for own_s, peer_s in zip(own, theirs, strict=True)]
            rows.append(
                Row(
                    benchmark=f"time, {runtime}",
                    job=variant,
                    result=f"{median(own):.2f} s of CPU",
                    ratio=f"{median(ratios):.3f} ({min(ratios):.2f}–{max(ratios):.2f}) × {peer}, "
                    f"{sum(own) / sum(theirs):.3f} × all turns together",
                    note=f"{note}; {turns} turns of {WORDS:,} words",
                    data={"cpu_seconds": own, "cpu_seconds_of_peer": theirs},
                )
            )
        progress(f"time, {runtime}: {rows[-3].ratio}; {rows[-2].ratio}")
    shutil.rmtree(folder)
    return rows
