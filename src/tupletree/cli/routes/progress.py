"""The progress of a pipeline on stderr: a table on a terminal, drawn again, and a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tupletree.cli.progress import StderrConsole
from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.routes.status import RouteStatus

PLAIN_INTERVAL_S = 5.0

_COLUMNS = ("ready", "in flight", "held", "waiting", "done", "filtered", "dead", "failed", "rate", "p95", "left")


def status_table(routes: Sequence[RouteStatus], title: str = "") -> Table:
    """A row per route."""
    table = Table("route", title=title or None, title_justify="left", box=None)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for one in routes:
        numbers = (one.ready, one.in_flight, one.held, one.waiting, one.done, one.filtered, one.dead, one.failed)
        table.add_row(
            escape(one.route),
            *(f"{number:,}" for number in numbers),
            f"{one.rate_per_s:,.0f}/s",
            "–" if one.p95_s is None else f"{1000 * one.p95_s:,.0f} ms",
            "–" if one.eta_s is None else f"{one.eta_s:,.0f} s",
        )
    return table


def _line(routes: Sequence[RouteStatus]) -> str:
    parts = []
    for one in routes:
        numbers = [
            f"{number:,} {name}"
            for name, number in (
                ("open", one.ready + one.in_flight + one.held + one.waiting),
                ("done", one.done),
                ("filtered", one.filtered),
                ("dead", one.dead),
            )
            if number or name == "done"
        ]
        parts.append(f"{escape(one.route)}: {', '.join(numbers)}")
    return "; ".join(parts)


class RouteProgress:
    """Shows the latest status while it is entered, and leaves the terminal as it was."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._console = console or StderrConsole(stderr=True)
        self._live: Live | None = None
        self._started_s = time.monotonic()
        self._next_line_s = self._started_s + PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, routes: Sequence[RouteStatus]) -> None:
        """Show this status; without a terminal only when the last line is a few seconds old."""
        now_s = time.monotonic()
        if self._live is not None:
            title = f"{self._title} · {now_s - self._started_s:.0f} s"
            self._live.update(status_table(routes, title), refresh=True)
        elif now_s >= self._next_line_s:
            self._next_line_s = now_s + PLAIN_INTERVAL_S
            self.say(_line(routes))

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(escape(text), markup=False, highlight=False, soft_wrap=True)
