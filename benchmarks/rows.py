"""The benchmarks: each function runs one of them and returns its rows of the table."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median, quantiles

from benchmarks.corpus import ensure_corpus
from benchmarks.cost_rows import measure_driver, measure_executors, measure_job_cost
from benchmarks.counting_rows import (
    measure_failures,
    measure_large_epochs,
    measure_order,
    measure_reliability,
    measure_small_epochs,
    measure_stateful,
    measure_throughput,
    measure_vectorised,
)
from benchmarks.giants_rows import measure_giants
from benchmarks.harness import REPOSITORY, JobRun, MemorySample, child_environment, run_job
from benchmarks.job import JobSpec
from benchmarks.local_rows import LOCAL_BENCHMARKS
from benchmarks.parquet_frames import measure_parquet
from benchmarks.queue_embedded import measure_queue
from benchmarks.queue_rabbitmq import measure_rabbitmq_queue
from benchmarks.queue_redis import measure_redis_queue
from benchmarks.queue_spark import measure_redis_spark
from benchmarks.routes_rows import measure_routes
from benchmarks.row import Row, Settings, progress
from benchmarks.time_rows import measure_time

__all__ = ["BENCHMARKS", "Row", "Settings"]

HEAVY_MODULES = ("pyspark", "py4j", "pandas", "pyarrow", "numpy")
LATENCIES = {
    "": ("tupletree", "three bolts", "one stage"),
    "stateful": ("tupletree, stateful", "a bolt, an exchange and a bolt with keyed state", "exchange"),
}
"""Variant of the latency job → its name in the table, what its messages go through, and the shape of its plain job."""


def measure_latency(settings: Settings) -> list[Row]:
    """Emit to ack, and empty plain jobs of the same shape in the same session."""
    folder = settings.work / "latency"
    rows = []
    for variant, (job, path, shape) in LATENCIES.items():
        spec = JobSpec(master=settings.master, folder=str(folder), epochs=settings.epochs, variant=variant)
        own = run_job("tupletree latency", spec).result
        shutil.rmtree(folder)
        rows.append(
            Row(
                benchmark="latency",
                job=f"empty plain job, {shape}",
                result=f"{spread(own.plain_ms)} ms",
                ratio="1 (yardstick)",
                note=f"an RDD of two partitions, {len(own.plain_ms)} jobs back to back; p50 / p95",
                data={"job_ms": own.plain_ms},
            )
        )
        rows.append(
            Row(
                benchmark="latency",
                job=job,
                result=f"{spread(own.epoch_ms)} ms emit to ack; first ack {own.seconds:.1f} s after start",
                ratio=f"{median(own.epoch_ms) / median(own.plain_ms):.2f} × that job (p50)",
                note=f"100 messages/s through {path}, fully tracked, {len(own.epoch_ms)} messages; p50 / p95",
                data={"ack_ms": own.epoch_ms, "first_ack_s": own.seconds},
            )
        )
        progress(f"latency, {path}: {spread(own.epoch_ms)} ms, the plain job {spread(own.plain_ms)} ms")
    return rows


def measure_streaming_epoch(settings: Settings) -> list[Row]:
    """Back to back, almost empty epochs of three stages in a streaming query: what Spark's users have otherwise."""
    folder = settings.work / "streaming-epoch"
    result = run_job("empty epoch", JobSpec(master=settings.master, folder=str(folder), epochs=settings.epochs)).result
    shutil.rmtree(folder)
    row = Row(
        benchmark="streaming-epoch",
        job="empty epoch",
        result=f"{spread(result.epoch_ms)} ms per epoch, of it {spread(result.settle_ms)} ms in foreachBatch",
        note=f"3 × mapInArrow and toArrow, {len(result.epoch_ms)} epochs back to back; p50 / p95",
        data={"epoch_ms": result.epoch_ms, "settle_ms": result.settle_ms},
    )
    return [row]


def measure_startup(settings: Settings) -> list[Row]:
    """Wall time of `import tupletree` and `tupletree --help`, and the heavy modules that they load."""
    command = Path(sys.executable).with_name("tupletree")
    commands = {
        "python -c pass": ["-c", "pass"],
        "import tupletree": ["-c", "import tupletree"],
        "tupletree --help": [str(command), "--help"],
    }
    rows = []
    for name, arguments in commands.items():
        seconds = []
        for _repeat in range(settings.repeats):
            started_s = time.perf_counter()
            run_python(arguments)
            seconds.append(time.perf_counter() - started_s)
        heavy = imported_modules(arguments).intersection(HEAVY_MODULES)
        rows.append(
            Row(
                benchmark="startup",
                job=name,
                result=f"{min(seconds) * 1000:.0f} / {median(seconds) * 1000:.0f} ms",
                note=f"min / median of {len(seconds)}; heavy modules loaded: {', '.join(sorted(heavy)) or 'none'}",
                data={"seconds": seconds, "heavy_modules": sorted(heavy)},
            )
        )
    return rows


def measure_memory(settings: Settings) -> list[Row]:
    """Resident memory of the driver (Python and JVM) while one message per word passes through."""
    corpus = ensure_corpus(settings.work, words=settings.messages, words_per_line=1, epoch_lines=settings.epoch_lines)
    folder = settings.work / "memory"
    spec = JobSpec(master=settings.master, folder=str(folder), corpus=str(corpus), epoch_lines=settings.epoch_lines)
    run = run_job("tupletree", spec)
    shutil.rmtree(folder)
    return [memory_row("tupletree", settings.messages, run)]


def memory_row(job: str, messages: int, run: JobRun) -> Row:
    """Compare the second quarter of the measured time with the last one: the first quarter warms up."""
    end_s = run.memory[-1].at_s
    start_s = end_s - run.result.seconds
    samples = [sample for sample in run.memory if sample.at_s >= start_s]
    quarter = max(1, len(samples) // 4)
    numbers = run.result.numbers
    cost = f"{numbers['µs, second quarter']:.2f} → {numbers['µs, last quarter']:.2f} µs per message"
    early, late = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return Row(
        benchmark="memory",
        job=job,
        result=f"Python {growth(early, late, 'python_mib')}, JVM {growth(early, late, 'jvm_mib')}, {cost}",
        note=f"driver's resident memory, cost of a message; {messages:,} messages: second quarter → last quarter",
        data={
            "numbers": numbers,
            "samples": [[sample.at_s - start_s, sample.python_mib, sample.jvm_mib] for sample in samples],
        },
    )


def growth(early: Iterable[MemorySample], late: Iterable[MemorySample], field: str) -> str:
    """Medians of one column, before and after."""
    before, after = (median(getattr(sample, field) for sample in part) for part in (early, late))
    return f"{before:.0f} → {after:.0f} MiB"


def run_python(arguments: list[str], *options: str) -> str:
    """Run this Python and return what it wrote to stderr. Raises RuntimeError, with the end of that, if it fails."""
    command = [sys.executable, *options, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stderr


def imported_modules(arguments: list[str]) -> set[str]:
    """Names of all modules that a Python command imports."""
    lines = run_python(arguments, "-X", "importtime").splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def spread(values_ms: list[float]) -> str:
    """Median and 95th percentile."""
    return f"{median(values_ms):.0f} / {quantiles(values_ms, n=20)[-1]:.0f}"


BENCHMARKS: dict[str, Callable[[Settings], list[Row]]] = {
    "throughput": measure_throughput,
    "small-epochs": measure_small_epochs,
    "vectorised": measure_vectorised,
    "large-epochs": measure_large_epochs,
    "stateful": measure_stateful,
    "failures": measure_failures,
    "order": measure_order,
    "reliability": measure_reliability,
    "latency": measure_latency,
    "streaming-epoch": measure_streaming_epoch,
    "job-cost": measure_job_cost,
    "parquet": measure_parquet,
    "driver": measure_driver,
    "executors": measure_executors,
    "startup": measure_startup,
    "memory": measure_memory,
    "giants": measure_giants,
    "time": measure_time,
    **LOCAL_BENCHMARKS,
    "queue": measure_queue,
    "redis": measure_redis_queue,
    "redis-spark": measure_redis_spark,
    "rabbitmq": measure_rabbitmq_queue,
    "routes": measure_routes,
}
"""Name on the command line → what runs it."""
