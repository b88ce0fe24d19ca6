"""The table: rows as Markdown, with the date, the machine and the command that made them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.row import Row

__all__ = ["describe_run", "render_table"]


def describe_run(arguments: Sequence[str]) -> dict[str, str]:
    """Where, when and how this run was made."""
    load_1_min = os.getloadavg()[0]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks", *arguments]),
        "machine": f"{os.cpu_count()} cores, {memory_gib():.0f} GiB, load before the run {load_1_min:.1f}",
        "versions": f"Python {platform.python_version()}, PySpark {version('pyspark')}, "
        f"PyArrow {version('pyarrow')}, Java {java_version()}",
    }


def memory_gib() -> float:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def java_version() -> str:
    """Version of the `java` that PySpark will start."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else "java"
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except FileNotFoundError:
        return "not found"
    return shown.split('"')[1]


def render_table(run: dict[str, str], rows: Sequence[Row]) -> str:
    """Markdown: a line on the run, then one table."""
    head = f"{run['date']}, `{run['command']}`; {run['machine']}; {run['versions']}."
    lines = ["| benchmark | job | result | ratio | notes |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {row.benchmark} | {row.job} | {row.result} | {row.ratio} | {row.note} |" for row in rows]
    return "\n".join([head, "", *lines])
