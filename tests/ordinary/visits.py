"""Clicks of users in sessions: what a source gives, which calls fail, by a seed, and an oracle that sees no attempts.

The oracle sorts the source's messages and parts them where nothing came for the gap.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tupletree import Spout, TaskContext, Topology, Window, bolt, window_bolt
from tupletree.errors import EndOfInput
from tupletree.sinks import jsonl, read_rows
from tupletree.topology.components import Emit

GAP_S = 5
COUNT = 80


class Click(msgspec.Struct, frozen=True):
    number: int
    user: str
    at: float


class Visit(msgspec.Struct, frozen=True):
    user: str
    start: float
    end: float
    numbers: list[int]


Row = tuple[str, float, float, tuple[int, ...]]


class Clicks(Spout[Click]):
    """Gives them from a position, a few at a time."""

    def __init__(self, clicks: Sequence[Click], *, ends: bool = True, rests: int = 0) -> None:
        self.clicks, self.ends, self.rests = clicks, ends, rests
        self.position = self.rested = 0

    def next(self) -> Emit[Click] | None:
        if self.position == len(self.clicks) and self.ends:
            raise EndOfInput
        self.rested += 1
        if self.position == len(self.clicks) or self.rested <= self.rests:
            return None
        self.rested = 0
        click = self.clicks[self.position]
        self.position += 1
        return Emit(click, click.number)

    def snapshot(self) -> Any:
        return self.position

    def restore(self, position: Any) -> None:
        self.position = position


def rows_of(visits: Sequence[Visit]) -> Counter[Row]:
    return Counter((one.user, one.start, one.end, tuple(one.numbers)) for one in visits)


def read(folder: Path) -> Counter[Row]:
    """What a reader sees; nothing where no run has come to make the folder."""
    if not folder.exists():
        return Counter()
    return rows_of([Visit(row["user"], row["start"], row["end"], row["numbers"]) for row in read_rows(folder)])


class Story:
    """What happens, by a seed: which clicks there are, and which calls fail how often."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.lag = random.choice([0, 4, 30])
        self.longest = random.choice([None, None, 12])
        self.widths = [random.choice([1, 2, 3]) for _ in range(3)]
        now, clicks = 0.0, []
        for number in range(COUNT):
            now += random.choice([0, 0.5, 1, 2, 12])
            behind = random.choice([0, 0, 0.25, 2]) if self.lag else 0
            clicks.append(Click(number, random.choice("abc"), now - behind))
        self.clicks = clicks
        visits = self.visits()
        starts = [(user, start) for user, start, _, _ in visits]
        self.before = {number: random.choice([0, 0, 0, 0, 1, 2]) for number in range(COUNT)}
        self.inside = dict.fromkeys(random.sample(starts, len(starts) // 4), 1)
        self.behind = dict.fromkeys(random.sample(starts, len(starts) // 4), 2)
        self.slowness = {number: random.choice([0.0, 0.01, 0.3]) for number in range(COUNT)}

    def visits(self) -> Counter[Row]:
        """Every session of every user, spelled out."""
        rows = []
        for user in "abc":
            visit: list[Click] = []
            own = sorted((one for one in self.clicks if one.user == user), key=lambda one: (one.at, one.number))
            for click, after in zip(own, [*own[1:], None], strict=True):
                visit.append(click)
                end = min(click.at + GAP_S, visit[0].at + (self.longest or 1e9))
                if after is None or after.at >= end:
                    rows.append(Visit(user, visit[0].at, end, [one.number for one in visit]))
                    visit = []
        return rows_of(rows)

    def topology(self, source: Spout[Click], out: Any, *, is_async: bool = False) -> Topology:
        before, inside, behind, slowness = self.before, self.inside, self.behind, self.slowness

        @bolt
        def look_up(click: Click, context: TaskContext) -> Click:
            if context.attempt <= before[click.number]:
                raise RuntimeError("before")
            return click

        @bolt(concurrency=8)
        async def ask(click: Click, context: TaskContext) -> Click:
            await asyncio.sleep(slowness[click.number])
            return look_up(click, context)

        @window_bolt(
            gap_s=GAP_S,
            max_length_s=self.longest,
            per_key=True,
            timestamp="at",
            lag_s=self.lag,
            late="fail",
            extend_timeout=True,
        )
        def visits(window: Window[Click]) -> Visit:
            if inside.get((window.key, window.start_s), 0):
                inside[window.key, window.start_s] -= 1
                raise RuntimeError("inside")
            numbers = [one.number for one in sorted(window, key=lambda one: (one.at, one.number))]
            return Visit(window.key, window.start_s, window.end_s, numbers)

        @bolt
        def check(visit: Visit) -> Visit:
            if behind.get((visit.user, visit.start), 0):
                behind[visit.user, visit.start] -= 1
                raise RuntimeError("behind")
            return visit

        t = Topology("visits", options={"max_attempts": 20})
        asked = t.bolt("ask", ask if is_async else look_up, parallelism=self.widths[0]).shuffle(
            t.spout("clicks", source)
        )
        gathered = t.bolt("visits", visits, parallelism=self.widths[1]).fields(asked, "user")
        t.sink("out", jsonl(out)).shuffle(t.bolt("check", check, parallelism=self.widths[2]).shuffle(gathered))
        return t
