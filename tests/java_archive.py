"""An archive of the classes that Spark loads, for the JVMs that tests start: each maps it instead of reading its jars.

`python -m tests.java_archive` makes it, if there is none for this Java and this Spark. It halves what a JVM costs until
its first job, and tests start some thirty of them. A JVM that cannot use the archive does without it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["archive_options", "use_archive"]

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / ".pytest_cache" / "java" / "spark.jsa"
MADE_FOR = ARCHIVE.with_suffix(".txt")
"""Says for which Java and which Spark."""

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Or a JVM that cannot use the archive would say so on its standard output."""

JOB = """
import sys
from pyspark import SparkContext
from tupletree.runtimes.spark.session import open_session

session, _ = open_session("archive", "local[1]")
rows = session.sparkContext.parallelize([(0, b"a"), (1, b"b")], 2)
assert rows.partitionBy(2, int).mapPartitions(list).count() == 2
session.stop()
process = SparkContext._gateway.proc
process.stdin.close()
sys.exit(process.wait())
"""


def archive_options() -> str:
    """What makes a JVM use the archive, if it is there; or nothing."""
    return f"-XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else ""


def use_archive(environment: MutableMapping[str, str]) -> None:
    """Let the JVMs that processes with this environment start for Spark use the archive."""
    if options := archive_options():
        environment.setdefault("SPARK_SUBMIT_OPTS", options)


def main() -> None:
    """Make the archive. Where that does not work, there is none: tests run without it."""
    import pyspark

    from tupletree.runtimes.java import find_java

    java = find_java()
    made_for = f"{pyspark.__file__} {pyspark.__version__}\n{java}\n"
    if ARCHIVE.exists() and MADE_FOR.read_text() == made_for:
        return
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.unlink(missing_ok=True)
    draft = ARCHIVE.with_name(f"_{ARCHIVE.name}.{os.getpid()}")
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"}
    with contextlib.suppress(OSError):
        ended = subprocess.run([sys.executable, "-c", JOB], env=environment, capture_output=True, check=False)
        if ended.returncode == 0 and draft.exists():
            MADE_FOR.write_text(made_for)
            draft.replace(ARCHIVE)
    draft.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
