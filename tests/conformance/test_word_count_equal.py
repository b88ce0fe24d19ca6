"""The same topology, the same text, two runtimes: the same counts and the same verdicts, poison and flaky lines too."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples import word_count
from tupletree.config import resolve_options
from tupletree.runtimes import deadletters
from tupletree.runtimes import run as api_run
from tupletree.sinks import read_rows
from tupletree.tracking.outcomes import FailureKind

pytestmark = pytest.mark.spark

QUICK = {"backoff_initial_ms": 1.0, "backoff_max_ms": 5.0, "service_backoff_max_ms": 5.0, "spout_idle_wait_ms": 5.0}


@dataclass(frozen=True)
class Result:
    """What came of one run, without times and places."""

    counts: Counter[tuple[str, int]]
    verdicts: dict[str, int]
    dead: dict[str, tuple[FailureKind, str, str, str, int, str]]


def run(runtime: str, text: Path, folder: Path) -> Result:
    topology = word_count.topology([text], folder / "out", poison="poison", flaky="flaky")
    options = resolve_options(code={**QUICK, **topology.build().options})
    handle = api_run.run(topology, runtime=runtime, options=options, state_dir=folder / "state")
    try:
        summary = handle.wait(120.0)
    finally:
        handle.stop(0.0)
    return Result(
        counts=Counter((row["word"], row["count"]) for row in read_rows(folder / "out")),
        verdicts={name: getattr(summary, name) for name in ("emitted", "acked", "failed", "retried", "dead", "open")}
        | {"rows": summary.outputs["out"]},
        dead={
            json.dumps(letter.message_id): (
                letter.failure.kind,
                letter.failure.component,
                letter.failure.error_type,
                letter.failure.error,
                letter.attempts,
                json.dumps(letter.payload),
            )
            for letter in deadletters.read(folder / "state")
        },
    )


def test_word_count_is_the_same_on_both_runtimes(spark: Any, tmp_path: Path) -> None:
    trouble = {3: "poison", 7: "flaky"}
    lines = [f"{trouble.get(number % 17, 'plain')} w{number % 7} w{number % 3} w1" for number in range(500)]
    text = tmp_path / "text"
    text.write_text("\n".join(lines) + "\n")
    local, on_spark = (run(runtime, text, tmp_path / runtime) for runtime in ("local", "spark"))

    living = [line for line in lines if not line.startswith("poison")]
    totals = Counter(word for line in living for word in line.split())
    assert local.counts == Counter((word, number) for word, total in totals.items() for number in range(1, total + 1))
    assert local.verdicts["dead"] == len(lines) - len(living) == 30
    flaky = sum(line.startswith("flaky") for line in lines)
    assert local.verdicts["failed"] == 5 * 30 + 2 * flaky
    assert local == on_spark
