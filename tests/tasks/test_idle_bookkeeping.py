"""Where nothing goes by event time and no sink asks for the order of making, nothing is done for either."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.local.running import run
from tests.tasks.streams import Count, Gathering, Line, Script, Word, lines
from tupletree import Options, Topology, bolt
from tupletree.runtimes.api import RunRequest
from tupletree.sinks import parquet
from tupletree.testing.in_process import start_in_process
from tupletree.topology.components import KeyedState

WATCHED = ("/tasks/upstream/", "/bolts/event_time.py")


class Rows(Gathering):
    message_type = Count


class Numbered(Rows):
    ordered = True


@bolt
def split(line: Line) -> list[Word]:
    return [Word(word) for word in line.text.split()]


@bolt(state=int)
def count(word: Word, total: KeyedState[int]) -> Count:
    total.value += 1
    return Count(word.word, total.value)


def calls_of(messages: int, folder: Path, runtime: str, *, numbered: bool = False) -> Counter[str]:
    """How often each function of the bookkeeping is called in a word count of so many lines."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        is_number = code.co_filename.endswith("/tasks/making.py") and code.co_qualname.startswith("Numbers.take")
        if event == "call" and (is_number or any(part in code.co_filename for part in WATCHED)):
            calls[code.co_qualname] += 1

    t = Topology("idle")
    given = t.spout("lines", Script([lines(*(f"a b {number}" for number in range(messages)))]))
    words = t.bolt("split", split, parallelism=2).shuffle(given)
    sink: Any = (Numbered if numbered else Rows)() if runtime == "local" else parquet(folder / "out", made=numbered)
    t.sink("out", sink).shuffle(t.bolt("count", count, parallelism=2).fields(words, "word"))
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        if runtime == "local":
            acked = run(t, folder / "state", max_spout_pending=10).acked
        else:
            request = RunRequest(
                t, Options(epoch_max_messages=10), None, folder / "state", append=False, master="", redact=None
            )
            acked = start_in_process(request).wait(60.0).acked
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert acked == messages
    return calls


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_no_call_of_the_bookkeeping_is_made_for_a_message(tmp_path: Path, runtime: str) -> None:
    few = calls_of(1, tmp_path / "few", runtime)
    many = calls_of(200, tmp_path / "many", runtime)
    assert "Numbers.take" not in many
    assert not [name for name in many if name.startswith(("UnderWay._", "UnderWay.s", "Watermark", "KeptFrames"))]
    assert many == few  # what a start does, if anything


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_a_sink_that_asks_for_the_order_of_making_is_seen_by_that_count(tmp_path: Path, runtime: str) -> None:
    assert calls_of(200, tmp_path, runtime, numbered=True)["Numbers.take"] > 0
