"""The pipeline of a data engineer's first day: logs, a flaky async service, windows by event time, counts in a table.

Owns the log, the topology, and what must have come of it: an oracle that reads the log alone. One line in a hundred has
another form, which the first parser does not know and the mended one does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tupletree import KeyedState, PermanentError, Topology, Window, bolt, window_bolt
from tupletree.runtimes.deadletters import read
from tupletree.runtimes.run import stored_state
from tupletree.sinks import jsonl, read_rows, sql
from tupletree.sources import Line, text_lines

LENGTH_S = 300
LAG_S = 60
HOSTS = 200
START_S = 1_700_000_100
FAILING = 0.05

SCALE = float(os.environ.get("LOG_PIPELINE_SCALE", "1"))
"""Calls take so many times 100 to 400 ms."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    host: str
    at: float
    number: int


class HostCount(msgspec.Struct, frozen=True, gc=False):
    host: str
    count: int


class InWindow(msgspec.Struct, frozen=True, gc=False):
    host: str
    start: float
    numbers: list[int]


def parsed(text: str) -> Entry:
    """A line of the usual form. Raises ValueError for any other."""
    at, host, number = text.split()
    return Entry(host, float(at), int(number))


@bolt
def parse(line: Line) -> Entry:
    try:
        return parsed(line.text)
    except ValueError as error:
        raise PermanentError("not a line of this log") from error


@bolt
def parse_mended(line: Line) -> Entry:
    return parsed(line.text.replace("|", " "))


@bolt(concurrency=1000)
async def enrich(entry: Entry) -> Entry:
    """The service fails one call in twenty."""
    await asyncio.sleep(random.uniform(0.1, 0.4) * SCALE)
    if random.random() < FAILING:
        raise ConnectionError(f"503 for {entry.number}")
    return entry


@bolt(state=int)
def count(entry: Entry, total: KeyedState[int]) -> HostCount:
    total.value += 1
    return HostCount(entry.host, total.value)


@window_bolt(length_s=LENGTH_S, per_key=True, timestamp="at", lag_s=LAG_S, late="fail", extend_timeout=True)
def per_host(window: Window[Entry]) -> InWindow:
    return InWindow(window.key, window.start_s, sorted(one.number for one in window.new))


def topology(folder: Path, mended: bool = False) -> Topology:
    """It reads `lines.log` of a folder, and writes beside it."""
    t = Topology("log-pipeline")
    lines = t.spout("lines", text_lines(folder / "lines.log"))
    entries = t.bolt("parse", parse_mended if mended else parse, parallelism=2).shuffle(lines)
    enriched = t.bolt("enrich", enrich, parallelism=2).shuffle(entries)
    counts = t.bolt("count", count, parallelism=2).fields(enriched, "host")
    table = sql(f"sqlite:///{folder / 'counts.db'}", "counts", key="host")
    t.sink("table", table, parallelism=1).fields(counts, "host")
    windows = t.bolt("per_host", per_host, parallelism=2).fields(enriched, "host")
    t.sink("windows", jsonl(folder / "windows")).shuffle(windows)
    return t


@dataclass
class Log:
    """What is in the file.

    Attributes:
        entries: one for each line, in order.
        broken: numbers of those lines that the first parser does not know.
        late: numbers of those that were late at their source: their window had ended `LAG_S` before the latest time.
    """

    entries: list[Entry] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)

    @classmethod
    def written(cls, folder: Path, lines: int, seed: int = 1) -> Log:
        """Make it up and write it down. Its times are out of order, a few of them by more than windows wait for."""
        log, chance, latest = cls(), random.Random(seed), 0.0
        with (folder / "lines.log").open("w") as file:
            for number in range(1, lines + 1):
                behind_s = chance.uniform(0, 50) if chance.random() < 0.995 else chance.uniform(400, 2_000)
                entry = Entry(f"host-{int(chance.paretovariate(0.8)) % HOSTS}", START_S + number - behind_s, number)
                log.entries.append(entry)
                is_broken = chance.random() < 0.01
                file.write(("|" if is_broken else " ").join((f"{entry.at:.3f}", entry.host, str(number))) + "\n")
                if is_broken:
                    log.broken.add(number)
                    continue
                if entry.at // LENGTH_S * LENGTH_S + LENGTH_S + LAG_S <= latest:
                    log.late.add(number)
                latest = max(latest, entry.at)
        return log

    def counts(self, without: set[int]) -> dict[str, int]:
        """Lines of each host."""
        return dict(Counter(one.host for one in self.entries if one.number not in without))

    def windows(self) -> Counter[tuple[str, float, int]]:
        """(host, start of the window, number), each once."""
        return Counter((one.host, one.at // LENGTH_S * LENGTH_S, one.number) for one in self.entries)


def table(folder: Path) -> dict[str, int]:
    """What the table says."""
    with closing(sqlite3.connect(folder / "counts.db")) as database:
        return dict(database.execute("SELECT host, count FROM counts").fetchall())


def state(folder: Path) -> dict[str, int]:
    """What the bolt remembers."""
    (found,) = [one for one in stored_state(folder / "state")[1] if one.name == "count"]
    return {entry.key: entry.value for entry in found.entries()}


def in_windows(folder: Path) -> Counter[tuple[str, float, int]]:
    """What was published of windows."""
    rows = read_rows(folder / "windows")
    return Counter((row["host"], row["start"], number) for row in rows for number in row["numbers"])


def dead(folder: Path) -> Iterator[tuple[int, str]]:
    """(number of the line, why) of every dead letter."""
    for letter in read(folder / "state"):
        yield int(letter.payload["text"].replace("|", " ").split()[2]), letter.failure.error


def check_first(folder: Path, log: Log) -> tuple[int, set[int]]:
    """What must be there when the first parser has read everything.

    Returns how many lines are dead, and which of them because they were late. In a long log the service may fail all
    attempts of a line.
    """
    why = dict(dead(folder))
    late, failed = ({number for number, error in why.items() if part in error} for part in ("late", "503"))
    assert why.keys() - late - failed == log.broken
    assert late <= log.late, f"{late - log.late} were not late at their source"
    assert state(folder) == table(folder) == log.counts({*why})
    assert in_windows(folder) == Counter(one for one in log.windows() if one[2] not in why)
    return len(why), late


def check_replayed(folder: Path, log: Log) -> None:
    """What must be there when all dead letters were replayed with the mended parser: nothing is dead, or missing."""
    assert not [*dead(folder)]
    assert state(folder) == table(folder) == log.counts(set())
    assert in_windows(folder) == log.windows()
