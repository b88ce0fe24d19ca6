"""What Prometheus gets as a counter never falls: not where dead letters are replayed, or a run restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.spark.counting import QUICK
from tupletree import Topology, bolt
from tupletree.config import resolve_options
from tupletree.runtimes.api import Progress, RunHandle, RunRequest
from tupletree.runtimes.deadletters import request_replay
from tupletree.runtimes.local.runtime import start as start_locally
from tupletree.runtimes.metrics import RunCollector
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.testing.in_process import start_in_process

HANG_S = 60.0


class Word(msgspec.Struct, frozen=True):
    text: str


class Checked(msgspec.Struct, frozen=True):
    text: str


def scraped(collector: RunCollector) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def counters_in(samples: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {name: value for name, value in samples.items() if name[0].endswith("_total")}


def topology(folder: Path) -> Topology:
    @bolt
    def check(word: Word) -> Checked:
        if word.text.startswith("bad") and not (folder / word.text).exists():
            raise ValueError(word.text)
        return Checked(word.text)

    t = Topology("words")
    words = t.spout("in", items([Word(text) for text in ("a", "bad1", "b", "bad2")]))
    t.sink("out", jsonl(folder / "out")).shuffle(t.bolt("check", check).shuffle(words))
    return t


@pytest.fixture(params=["local", "in_process"])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], RunHandle]:
    def run() -> RunHandle:
        quick = QUICK if request.param == "in_process" else {"durable": True}
        settings = resolve_options(code={**quick, "max_attempts": 1})
        asked = RunRequest(topology(tmp_path), settings, None, tmp_path / "state", append=False, master="", redact=None)
        handle: Any = (start_locally if request.param == "local" else start_in_process)(asked)
        handle.wait(HANG_S)
        return handle  # type: ignore[no-any-return]

    return run


def test_a_death_stays_counted_when_its_letter_is_replayed(tmp_path: Path, begin: Callable[[], RunHandle]) -> None:
    def look(handle: RunHandle) -> tuple[float, float]:
        samples = scraped(RunCollector(handle, "words", "runtime"))
        died = [value for name, value in samples.items() if name[0] == "tupletree_messages_total" and "dead" in name]
        [now] = [value for name, value in samples.items() if name[0] == "tupletree_dead_letters"]
        assert now == handle.progress().dead
        return sum(died), now

    assert look(begin()) == (2, 2)
    (tmp_path / "bad1").touch()
    request_replay(tmp_path / "state", None)
    assert look(begin()) == (3, 1), "one was acked, one died once more"
    (tmp_path / "bad2").touch()
    request_replay(tmp_path / "state", None)
    assert look(begin()) == (3, 0)
    assert look(begin()) == (3, 0)


class Scripted:
    """A run with these numbers, one after the other."""

    state_dir = Path("none")

    def __init__(self, *shown: Progress) -> None:
        self._shown = [*shown]

    def progress(self) -> Progress:
        return self._shown.pop(0)

    def recent_progress(self) -> list[object]:
        return []


def test_a_number_that_falls_for_a_moment_is_shown_as_it_was() -> None:
    """As where a sink refuses rows of an epoch that is counted, or a restarted bolt counts from 0."""
    more = Progress(acked=5, dead=2, failed=4, retried=3, emitted=9, untracked=1, joined=1, outputs={"out": 7})
    more = replace(more, late={"window": 2}, outage_counts={"out": 2}, state="processing")
    less = Progress(acked=4, dead=3, emitted=9, outputs={"out": 6}, late={"window": 0}, state="restarting")
    collector = RunCollector(Scripted(more, less, more), "words", "local")  # type: ignore[arg-type]  # all it asks for
    before = counters_in(scraped(collector))
    for _ in range(2):
        now = counters_in(scraped(collector))
        assert all(now[name] >= value for name, value in before.items() if name in now)
        before |= now
    assert before["tupletree_messages_total", "dead", "local", "words"] == 3


def test_a_run_that_does_not_know_its_totals_yet_shows_none() -> None:
    """From 0 to them would be a growth: an alert about messages that died would fire at each start."""
    collector = RunCollector(Scripted(Progress(state="activated")), "words", "spark")  # type: ignore[arg-type]
    assert not [name for name in counters_in(scraped(collector)) if name[0] == "tupletree_messages_total"]
