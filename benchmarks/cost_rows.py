"""The rows that take a cost apart: one job of an epoch, the driver by messages and by tasks, and executors."""

from __future__ import annotations

import shutil

from benchmarks.corpus import ensure_corpus
from benchmarks.driver_scale import EXECUTORS
from benchmarks.executors import COMPUTING, WAITING
from benchmarks.harness import run_job
from benchmarks.job import JobSpec
from benchmarks.row import Row, Settings, progress

__all__ = ["measure_driver", "measure_executors", "measure_job_cost"]

JOB_PARTS = {
    "job": "one job of an epoch, as the settling thread sees it",
    "driver's Python": "program, control and slices are packed, rows unpacked",
    "calls of the JVM": "py4j, without the one that waits for the job",
    "to the job and back": "from that call to the submission, and from the job's end to the rows in Python",
    "scheduler": "in the JVM, what no task's work is: stages, descriptions of tasks, results",
    "workers": "the longest task of each stage: Python, its pipes, files of an exchange",
    "in and out of tasks": "closures unpacked and results packed, in the longest task",
    "calls": "calls of the JVM for one job",
}
"""Part → what it says. All but the last are milliseconds; those between the first and the last add up to the first."""

SHAPES = {"": "three bolts, one stage", "stateful": "an exchange and keyed state, two stages"}
FEW, MANY = 2, 1_000
LITTLE, MUCH = 100_000, 1_000_000
EXECUTOR_COUNTS = (1, 2, 4)
EXECUTOR_MESSAGES = 500
"""Of an epoch: a second of calls for one executor."""


def measure_job_cost(settings: Settings) -> list[Row]:
    """Where the time of a job goes, means over all jobs at 100 messages/s, warm-up aside."""
    folder = settings.work / "job-cost"
    rows = []
    for variant, shape in SHAPES.items():
        spec = JobSpec(master=settings.master, folder=str(folder), variant=variant, messages=settings.epochs * 15)
        numbers = run_job("job cost", spec).result.numbers
        shutil.rmtree(folder)
        for part, note in JOB_PARTS.items():
            unit = "" if part == "calls" else " ms"
            share = numbers[part] / numbers["job"]
            rows.append(
                Row(
                    benchmark=f"job cost, {shape}",
                    job=part,
                    result=f"{numbers[part]:.1f}{unit}",
                    ratio="" if part == "calls" else f"{share:.2f} of the job",
                    note=note,
                    data=dict(numbers),
                )
            )
        progress(f"job cost, {shape}: {numbers['job']:.1f} ms, {numbers['jobs measured']:.0f} jobs")
    return rows


def measure_driver(settings: Settings) -> list[Row]:
    """What the driver costs per message, and per task of an epoch: the slopes between few and many of either."""
    rows = []
    for variant, what in (("", "pulled by the driver"), (EXECUTORS, "read by executors")):
        spent_s = {
            (messages, tasks): driver_cpu_s(settings, variant, messages, tasks)
            for messages, tasks in ((LITTLE, FEW), (MUCH, FEW), (LITTLE, MANY), (MUCH, MANY))
        }
        per_message_us = (spent_s[MUCH, FEW] - spent_s[LITTLE, FEW]) / (MUCH - LITTLE) * 1e6
        per_task_us = (spent_s[MUCH, MANY] - spent_s[MUCH, FEW]) / (MANY - FEW) * 1e6
        rows.append(
            Row(
                benchmark="driver",
                job=f"messages {what}",
                result=f"{spent_s[MUCH, MANY]:.2f} s of CPU for an epoch of {MUCH:,} messages over {MANY:,} tasks",
                ratio=f"{per_message_us:.2f} µs per message, {per_task_us:.0f} µs per task of an epoch",
                note="Python alone: stages run in its process and are taken out; Spark's scheduler is not in it",
                data={f"{messages} messages, {tasks} tasks": one for (messages, tasks), one in spent_s.items()},
            )
        )
    return rows


def measure_executors(settings: Settings) -> list[Row]:
    """The same epochs on one executor of one core, two and four."""
    folder = settings.work / "executors"
    rows = []
    for variant in (WAITING, COMPUTING):
        spent_s: dict[int, float] = {}
        for count in EXECUTOR_COUNTS:
            spec = JobSpec(
                master=f"local-cluster[{count},1,1024]",
                folder=str(folder),
                variant=variant,
                messages=EXECUTOR_MESSAGES,
            )
            spent_s[count] = run_job("executors", spec).result.seconds
            shutil.rmtree(folder)
            progress(f"executors, calls that are {variant}, {count}: {spent_s[count]:.2f} s")
        for count, seconds in spent_s.items():
            rows.append(
                Row(
                    benchmark="executors",
                    job=f"{count}, calls that are {variant}",
                    result=f"{seconds:.2f} s for four epochs of {EXECUTOR_MESSAGES} calls of about 2 ms",
                    ratio=f"{spent_s[EXECUTOR_COUNTS[0]] / seconds:.2f} × the speed of one",
                    note="local-cluster, executors of one core, each pinned",
                    data={"seconds": seconds},
                )
            )
    return rows


def driver_cpu_s(settings: Settings, variant: str, messages: int, tasks: int) -> float:
    """CPU seconds of the driver for one epoch, its start taken out: four epochs less one, over three."""
    epochs = (1, 4)
    spent = []
    folder = settings.work / "driver"
    for count in epochs:
        corpus = ""
        if variant == EXECUTORS:
            words = messages * count
            corpus = str(ensure_corpus(settings.work, words=words, words_per_line=1, epoch_lines=messages))
        spec = JobSpec(
            master="",
            folder=str(folder),
            corpus=corpus,
            variant=variant,
            messages=messages,
            epochs=count,
            pending=tasks,
        )
        spent.append(run_job("driver scale", spec).result.numbers["driver CPU s"])
        shutil.rmtree(folder)
    each_s = (spent[1] - spent[0]) / (epochs[1] - epochs[0])
    progress(f"driver, {variant or 'pulled'}, {messages:,} messages over {tasks:,} tasks: {each_s:.2f} s per epoch")
    return each_s
