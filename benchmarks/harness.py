"""Starts each job in its own fresh process, and watches the memory of that process, its JVM and Spark's Python workers.

Linux only: resident memory is read from /proc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.job import JobResult, JobSpec

__all__ = [
    "REPOSITORY",
    "JobRun",
    "MemorySample",
    "child_environment",
    "cpu_seconds",
    "descendants",
    "peer_environment",
    "run_job",
]

REPOSITORY = Path(__file__).resolve().parent.parent
SAMPLE_INTERVAL_S = 0.25


@dataclass(frozen=True)
class MemorySample:
    """Resident memory of a job's driver at one moment, in MiB, and of the largest Python worker, if that is watched."""

    at_s: float
    python_mib: float
    jvm_mib: float
    worker_mib: float = 0.0


@dataclass(frozen=True)
class JobRun:
    """One job's result with the memory samples of its whole life."""

    result: JobResult
    memory: list[MemorySample]


def child_environment() -> dict[str, str]:
    """Environment in which `benchmarks` and `tupletree` can be imported, also in Spark's Python workers."""
    path = [str(REPOSITORY), str(REPOSITORY / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**peer_environment(), "PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable}


def peer_environment() -> dict[str, str]:
    """The environment, in which Python keeps what it compiles: modules that are imported late are else compiled again
    within the clock, in each job."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_job(name: str, spec: JobSpec, *, watch_workers: bool = False) -> JobRun:
    """Run a job to its end in an emptied `spec.folder`. Raises RuntimeError, with the end of its log, if it fails.

    `watch_workers`: look at Spark's Python workers, too, which takes 2 % of a core.
    """
    folder = Path(spec.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result, log = folder / "result.json", folder / "log.txt"
    command = [sys.executable, "-m", "benchmarks.job", name, msgspec.json.encode(spec).decode(), str(result)]
    samples: list[MemorySample] = []
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=child_environment(), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                samples.append(sample_memory(process.pid, watch_workers=watch_workers))
                time.sleep(SAMPLE_INTERVAL_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"job {name!r} failed with exit code {process.returncode}:\n{log.read_text()[-4000:]}")
    return JobRun(msgspec.json.decode(result.read_bytes(), type=JobResult), samples)


def sample_memory(pid: int, *, watch_workers: bool = False) -> MemorySample:
    """Read the resident memory of a Python process and of the `java` that it started; 0 where there is none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        children = []
    jvm_mib = sum(resident_mib(child) for child in children if command_name(child) == "java")
    worker_mib = max(map(resident_mib, descendants(str(pid)) - set(children)), default=0.0) if watch_workers else 0.0
    return MemorySample(time.time(), resident_mib(str(pid)), jvm_mib, worker_mib)


def descendants(pid: str) -> set[str]:
    """Every process that comes of one, however far. Any thread may have forked them, so all processes are asked."""
    children: dict[str, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(path.parent.name)
    found: set[str] = set()
    waiting = [pid]
    while waiting:
        own = children.get(waiting.pop(), [])
        found.update(own)
        waiting += own
    return found


def cpu_seconds(pid: str) -> float:
    """CPU time of a process, all threads; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def command_name(pid: str) -> str:
    """Name of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def resident_mib(pid: str) -> float:
    """Resident memory of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
