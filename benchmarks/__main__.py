"""The command line: `python -m benchmarks [NAME ...]` from the repository's root; the table goes to stdout."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.report import describe_run, render_table
from benchmarks.row import Row, Settings
from benchmarks.rows import BENCHMARKS

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks asked for, one after the other, and print one table; 1 if one of them failed."""
    options = parser().parse_args(arguments)
    settings = Settings(
        work=options.work.resolve(),
        master=options.master,
        words=options.words,
        keys=options.keys,
        messages=options.messages,
        giants=options.giants,
        epoch_lines=options.epoch_lines,
        rounds=options.rounds,
        epochs=options.epochs,
        repeats=options.repeats,
        local_words=options.local_words,
        local_latency_messages=options.local_latency_messages,
        local_open_trees=options.local_open_trees,
        local_scale_messages=options.local_scale_messages,
    )
    run = describe_run(arguments)
    rows: list[Row] = []
    for name in options.benchmarks or BENCHMARKS:
        try:
            rows += BENCHMARKS[name](settings)
        except (RuntimeError, AssertionError) as error:
            # What the other benchmarks took minutes to measure must not be lost with this one.
            print(f"{name}: {error}", file=sys.stderr)
            rows.append(Row(benchmark=name, job="", result="failed"))
    print(render_table(run, rows))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode({"run": run, "rows": rows})))
    return 1 if any(row.result == "failed" for row in rows) else 0


def parser() -> argparse.ArgumentParser:
    """All options, with their units."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Tupletree against its peers in one run and print a table of ratios.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    # Not `choices`: argparse checks the empty default of nargs="*" against them.
    made.add_argument("benchmarks", nargs="*", type=benchmark_name, help=f"of {', '.join(BENCHMARKS)}; none means all")
    made.add_argument("--master", default="local[2]", help="Spark master")
    made.add_argument("--words", type=int, default=5_000_000, help="backlog of the throughput jobs")
    made.add_argument("--keys", type=int, default=1_000_000, help="distinct keys of the stateful jobs")
    made.add_argument("--messages", type=int, default=5_000_000, help="messages of the memory job")
    made.add_argument("--giants", type=int, default=50, help="messages of 100,000 children each, of the giants job")
    made.add_argument("--epoch-lines", type=int, default=100_000, help="most lines per epoch, the same for all jobs")
    made.add_argument("--rounds", type=int, default=3, help="how often the throughput jobs alternate")
    made.add_argument(
        "--epochs", type=int, default=100, help="epochs that the latency jobs measure, a fifth of their messages"
    )
    made.add_argument("--repeats", type=int, default=10, help="how often each command of the startup rows runs")
    made.add_argument("--local-words", type=int, default=1_000_000, help="words of the local runtime's word count")
    made.add_argument("--local-latency-messages", type=int, default=10_000, help="messages of its latency job")
    made.add_argument("--local-open-trees", type=int, default=1_000_000, help="open trees of its memory job")
    made.add_argument(
        "--local-scale-messages", type=int, default=1_000_000, help="most messages of its scale job; at most 10,000,000"
    )
    work = Path(tempfile.gettempdir(), "tupletree-benchmarks")
    made.add_argument("--work", type=Path, default=work, help="folder for inputs (kept) and outputs (removed)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write all raw numbers to this file")
    return made


def benchmark_name(text: str) -> str:
    """Check a name of the command line. Raises ArgumentTypeError, which argparse shows."""
    if text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(BENCHMARKS)}")
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
