"""A message that is too long is a dead letter that fits, and costs the run nothing else."""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ordinary.conftest import HANG_S
from tests.spark.counting import QUICK
from tests.tasks.streams import Line, Word
from tupletree import DeadLetter, Topology, bolt
from tupletree.config import describe_options, resolve_options
from tupletree.errors import ConfigError, TupletreeError
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.runtimes.deadletters import read
from tupletree.runtimes.spark.driver.epoch_frames import START_BYTES
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process

LONG = 300_000
OPTIONS = {**QUICK, "epoch_max_messages": 10, "message_max_bytes": 100_000}


class Crash(BaseException):
    """In the place of the end of the process."""


@bolt
def grow(line: Line) -> Word:
    return Word(line.text * (LONG if line.text == "+" else 1))


@bolt
def again(word: Word) -> Word:
    return word


def run(place: Path, texts: list[str], *, bolts: bool = False) -> tuple[Summary, list[str], list[DeadLetter]]:
    rows: list[str] = []
    t = Topology("long")
    lines = t.spout("lines", items([Line(text) for text in texts]))
    words = t.bolt("again", again, parallelism=2).fields(t.bolt("grow", grow).shuffle(lines), "word") if bolts else None
    t.sink(
        "out", foreach(lambda batch: rows.extend(getattr(row, "text", "") or row.word for row in batch.rows))
    ).global_(words if words is not None else lines)
    request = RunRequest(t, resolve_options(code=OPTIONS), None, place, append=False, master="", redact=None)
    summary = start_in_process(request, 2).wait(HANG_S)
    return summary, rows, read(place)


def start_of(letter: DeadLetter) -> str:
    """What a letter has of its message."""
    return base64.b64decode(letter.payload["$bytes"]).decode()


def test_a_message_that_is_too_long_is_dead_with_its_start_and_the_others_pass(tmp_path: Path) -> None:
    texts = [str(number) for number in range(25)]
    texts[7], texts[8] = "x" * LONG, "y" * 50_000
    summary, rows, (letter,) = run(tmp_path / "state", texts)
    assert (summary.acked, summary.dead) == (24, 1)
    assert sorted(rows) == sorted(text for text in texts if len(text) < LONG)
    assert letter.message_id == 7
    assert "longer than message_max_bytes: 300," in letter.failure.error
    assert "expected at most 100,000" in letter.failure.error
    assert start_of(letter) == json.dumps({"text": "x" * LONG}, separators=(",", ":"))[:START_BYTES]
    assert max(path.stat().st_size for path in (tmp_path / "state").rglob("*")) < LONG


@pytest.mark.parametrize("point", ["epoch.after_log", "settle.after_log"])
def test_it_is_dead_once_also_after_a_crash(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "x" * LONG, "b"]

    def crash(name: str) -> None:
        if name == point:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "on_reached", crash)
        with pytest.raises((Crash, TupletreeError)):
            run(tmp_path / "state", texts)
    _, _, (letter,) = run(tmp_path / "state", texts)
    assert start_of(letter).startswith('{"text":"xxx')


def test_a_tuple_that_is_too_long_for_another_stage_makes_its_message_dead(tmp_path: Path) -> None:
    summary, rows, (letter,) = run(tmp_path / "state", ["a", "+", "b"], bolts=True)
    assert (summary.acked, summary.dead, sorted(rows)) == (2, 1, ["a", "b"])
    assert (letter.message_id, letter.payload, letter.failure.component) == (1, {"text": "+"}, "grow")
    assert "longer than message_max_bytes" in letter.failure.error
    assert letter.attempts == 1


WRONG = ["-5", "1e308", "nan", "inf", "-inf", "1e400", "0x", "", "9" * 400]


def test_no_option_of_any_kind_takes_what_is_no_number_or_beyond_all_bounds() -> None:
    for option in describe_options():
        if not option.type.startswith(("int", "float")):
            continue
        for text in WRONG:
            with pytest.raises(ConfigError):
                resolve_options(command_line=[f"{option.name}={text}"])
        for value in (-5, -5.0, 1e308, math.nan, math.inf, -math.inf, 10**400, True):
            with pytest.raises(ConfigError):
                resolve_options(code={option.name: value})


PROGRAM = """
import sys
from tests.safety.test_long_messages import Line, items, foreach, Topology
import tupletree

t = Topology("long")
texts = ["a", "x" * 200_000_000, "y" * 60_000_000, "b"]
out = foreach(lambda batch: [print(len(row.text), flush=True) for row in batch.rows])
t.sink("out", out).shuffle(t.spout("lines", items(map(Line, texts))))
summary = tupletree.run(t, runtime="spark", state_dir=sys.argv[1], master="local[2]").wait(300)
print("ended", summary.acked, summary.dead)
"""


@pytest.mark.spark
@pytest.mark.nightly
def test_a_message_of_200_mb_does_not_end_a_jvm_of_1_gb(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 1g pyspark-shell"
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "state")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert told.stdout.split("\n")[-2] == "ended 3 1", told.stdout + told.stderr
    assert sorted(told.stdout.split("\n")[:-2]) == ["1", "1", "60000000"]
    (letter,) = read(tmp_path / "state")
    assert "200,000" in letter.failure.error
