"""The progress of a pipeline on stderr: a table on a terminal, drawn again, and a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from tupletree.cli.progress import Display, StderrConsole
from tupletree.escaping import escape

if TYPE_CHECKING:
    from tupletree.routes.status import RouteStatus

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


class RouteProgress(Display):
    """Shows the progress of a pipeline's routes."""

    def __init__(self, title: str) -> None:
        console = StderrConsole(stderr=True)
        super().__init__(console, is_live=console.is_terminal)
        self._title = title
        self._started_s = time.monotonic()

    def show(self, routes: Sequence[RouteStatus]) -> None:
        """Show this status; without a terminal only when the last line is a few seconds old."""
        title = f"{self._title} · {time.monotonic() - self._started_s:.0f} s"
        if self.draw(lambda: status_table(routes, title)):
            self.say(_line(routes))
