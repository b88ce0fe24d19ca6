"""Jobs that take turns: A B C A B C, each in a process of its own, so that a ratio compares what ran side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.harness import run_job
from benchmarks.job import JobResult, JobSpec
from benchmarks.row import Row, Settings, progress

__all__ = ["Contender", "Measured", "alternate", "row_of"]


@dataclass(frozen=True)
class Contender:
    """One job of a benchmark.

    Attributes:
        job, variant: what is run.
        note: for the table.
        peer: name of the one that it is measured against; empty for a yardstick.
        by_throughput: give the ratio of rows per second instead of seconds.
        with_numbers: show what else the job measured.
        check: raises AssertionError if the rows in this folder are wrong.
    """

    job: str
    note: str
    variant: str = ""
    peer: str = ""
    by_throughput: bool = False
    with_numbers: bool = False
    check: Callable[[Path], object] | None = None


@dataclass
class Measured:
    """What the rounds of one contender gave."""

    results: list[JobResult] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Of each round."""
        return [result.seconds for result in self.results]


def alternate(
    settings: Settings, benchmark: str, contenders: Mapping[str, Contender], corpus: Path, *, epoch_lines: int = 0
) -> dict[str, Measured]:
    """Run all contenders `settings.rounds` times in turns, and check what they wrote.

    Args:
        settings, benchmark: of this run.
        contenders: by name, in their order.
        corpus: folder of text files.
        epoch_lines: most lines of an epoch, if not the setting.
    """
    folder = settings.work / benchmark
    measured = {name: Measured() for name in contenders}
    for _round in range(settings.rounds):
        for name, contender in contenders.items():
            spec = JobSpec(
                master=settings.master,
                folder=str(folder),
                corpus=str(corpus),
                epoch_lines=epoch_lines or settings.epoch_lines,
                variant=contender.variant,
            )
            result = run_job(contender.job, spec).result
            if contender.check is not None:
                contender.check(spec.out)
            measured[name].results.append(result)
            progress(f"{benchmark}, {name}: {result.seconds:.2f} s")
    shutil.rmtree(folder)
    return measured


def row_of(benchmark: str, name: str, contender: Contender, measured: Mapping[str, Measured], rows: int) -> Row:
    """The table's row: medians, and ratios round by round.

    Args:
        benchmark, name, contender: what was measured.
        measured: of all contenders.
        rows: that a job works on.
    """
    own = measured[name]
    middle_s = median(own.seconds)
    ratio = "1"
    if contender.peer:
        pairs = zip(own.seconds, measured[contender.peer].seconds, strict=True)
        ratios = [peer_s / own_s if contender.by_throughput else own_s / peer_s for own_s, peer_s in pairs]
        unit = "throughput" if contender.by_throughput else "time"
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) × the {unit} of {contender.peer}"
    shown = own.results[-1].numbers if contender.with_numbers else {}
    numbers = ", ".join(f"{what} {number:,.1f}" for what, number in shown.items())
    return Row(
        benchmark=benchmark,
        job=name,
        result=f"{middle_s:.2f} s, {rows / middle_s:,.0f} rows/s",
        ratio=ratio,
        note="; ".join(filter(None, [contender.note, numbers])),
        data={"seconds": own.seconds, "numbers": own.results[-1].numbers},
    )
