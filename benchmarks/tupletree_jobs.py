"""The judged job: the word count with full tracking, through Tupletree's public interface.

Same functions, same corpus, same session, same limit per epoch as `baseline_plain`, and a Parquet sink.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.job import JobResult, JobSpec
from benchmarks.session import start_session
from benchmarks.word_count import Word, count, split

__all__ = ["run"]


def run(spec: JobSpec) -> JobResult:
    """Run the topology to its end of input; Tupletree uses the session that is there."""
    # By name until the package exports them: the baselines are committed before the code that they judge.
    tupletree = importlib.import_module("tupletree")
    sources = importlib.import_module("tupletree.sources")
    sinks = importlib.import_module("tupletree.sinks")

    start_session(spec.master, full_jit=True)
    topology = tupletree.Topology("word-count")
    lines = topology.spout("lines", sources.text_lines(sorted(Path(spec.corpus).glob("*.txt"))))
    words = topology.bolt("split", tupletree.bolt(split), parallelism=2).shuffle(lines)
    counts = topology.bolt("count", tupletree.bolt(state=int)(count), parallelism=2).fields(words.stream(Word), "word")
    topology.sink("out", sinks.parquet(spec.out)).shuffle(counts)
    options = {"epoch_max_messages": spec.epoch_lines}
    summary = tupletree.run(topology, runtime="spark", options=options, state_dir=spec.checkpoint).wait()
    return JobResult(seconds=float(summary.seconds))
