"""The lines of a corpus, and how a peer tells what it measured. Imports nothing but the standard library."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["measure", "read_lines"]


def read_lines(corpus: str) -> list[str]:
    """Every line of the corpus, in memory before any clock starts."""
    return [line for path in sorted(Path(corpus).glob("*.txt")) for line in path.read_text("ascii").splitlines()]


def measure(work: Callable[[], dict[str, int]]) -> None:
    """Time a call, in wall and CPU seconds, and print both with what it returns as the last line, in JSON."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    counted = work()
    seconds = {"seconds": time.perf_counter() - wall_s, "cpu_seconds": time.process_time() - cpu_s}
    sys.stdout.write("\n" + json.dumps({**seconds, **counted}) + "\n")
