"""The rows on messages that become 100,000 tuples each: how fast, and in how much memory."""

from __future__ import annotations

import shutil

from benchmarks.giants import CHILDREN
from benchmarks.harness import JobRun, run_job
from benchmarks.job import JobSpec
from benchmarks.row import Row, Settings, progress

__all__ = ["measure_giants"]

JOBS = {"plain": "the same functions in mapInArrow, untracked", "tupletree": "full tracking, exactly once"}


def measure_giants(settings: Settings) -> list[Row]:
    """Explode messages, send the children across an exchange, look at each and keep a sample."""
    folder = settings.work / "giants"
    rows: list[Row] = []
    plain_s = 0.0
    for job, note in JOBS.items():
        variant = job if job == "plain" else ""
        spec = JobSpec(master=settings.master, folder=str(folder), messages=settings.giants, variant=variant)
        run = run_job("giants", spec, watch_workers=True)
        seconds = run.result.seconds
        plain_s = plain_s or seconds
        children = settings.giants * CHILDREN
        progress(f"giants, {job}: {seconds:.1f} s")
        rows.append(
            Row(
                benchmark="giants",
                job=job,
                result=f"{seconds:.1f} s, {children / seconds:,.0f} children/s; {memory_text(run)}",
                ratio=f"{seconds / plain_s:.2f} × plain's time",
                note=f"{settings.giants:,} messages of {CHILDREN:,} children: {note}",
                data={"seconds": seconds, "memory_at_quarters": memory_at_quarters(run)},
            )
        )
    shutil.rmtree(folder)
    return rows


def memory_at_quarters(run: JobRun) -> list[tuple[float, float, float]]:
    """Resident MiB of the driver's Python, its JVM and the largest worker, the most within each quarter of the run."""
    start_s = run.memory[-1].at_s - run.result.seconds
    samples = [sample for sample in run.memory if sample.at_s >= start_s]
    quarter = max(1, len(samples) // 4)
    parts = [samples[first : first + quarter] for first in range(0, 4 * quarter, quarter)]
    return [
        (
            max(sample.python_mib for sample in part),
            max(sample.jvm_mib for sample in part),
            max(sample.worker_mib for sample in part),
        )
        for part in parts
        if part
    ]


def memory_text(run: JobRun) -> str:
    """The most that each process held, quarter by quarter."""
    names = ("driver", "JVM", "a worker")
    columns = zip(names, zip(*memory_at_quarters(run), strict=True), strict=True)
    return ", ".join(f"{name} {' → '.join(f'{one:.0f}' for one in most)}" for name, most in columns) + " MiB"
