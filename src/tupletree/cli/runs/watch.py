"""`tupletree watch`: runs on one screen, seen from another terminal, until they have ended.

Owns the picture: what a person looks at while a run goes on. Where the numbers come from is `runtimes/control`; their
names and texts are those of `status` and `run`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tupletree.escaping import escape

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tupletree.runtimes.api import Progress
    from tupletree.runtimes.control import Status

BARS = "▁▂▃▄▅▆▇█"

SHOWN_LINES = 6
"""Of outages, of what holds messages, of bolts: so many are shown; `tupletree status` has all."""

Dirs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DIR]...", help="State directories of runs. \\[default: the latest here]", show_default=False
    ),
]
Interval = Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds between two looks.")]


def watch_command(state_dirs: Dirs = None, interval_s: Interval = 1.0) -> None:
    """Watch runs on one screen: rates, steps, bolts, outages, what holds messages. Ctrl-C ends it, not the runs.

    Without a terminal it prints a line per run every five seconds. It ends when all runs have ended.

    Exit code: 0 all have ended well, or Ctrl-C; 1 one has failed, or its process is gone.
    """
    from rich.console import Console

    from tupletree.cli.progress import Display
    from tupletree.cli.settings import find_state_dir

    places = [*map(find_state_dir, state_dirs)] if state_dirs else [find_state_dir(None)]
    console = Console(markup=False, highlight=False, emoji=False)
    try:
        with Display(console, is_live=sys.stdout.isatty()) as display:
            runs = looked_at(places)
            while any(status.is_alive(time.time()) for _, status in runs):
                if display.draw(partial(pictures, runs)):
                    for place, status in runs:
                        display.say(line_of(place, status))
                time.sleep(interval_s)
                runs = looked_at(places)
    except KeyboardInterrupt:
        return
    console.print(pictures(runs))
    if any(status.error or not status.ended for _, status in runs):
        raise typer.Exit(1)


def looked_at(places: Sequence[Path]) -> list[tuple[Path, Status]]:
    """Each state directory, and the status in it. Raises ConfigError: there is none."""
    from tupletree.runtimes.control import status_of

    return [(place, status_of(place)) for place in places]


def pictures(runs: Sequence[tuple[Path, Status]]) -> RenderableType:
    """Runs, one below the other."""
    from rich.console import Group

    now_s = time.time()
    return Group(*(picture(place, status, now_s) for place, status in runs))


def line_of(place: Path, status: Status) -> str:
    """A run as one plain line."""
    from tupletree.cli.progress import progress_line
    from tupletree.runtimes.control import progress_in

    return escape(f"{status.topology} ({place}): ") + progress_line(progress_in(status))


def picture(place: Path, status: Status, now_s: float) -> RenderableType:
    """A run as a panel.

    Args:
        place: its state directory.
        status: what it said last.
        now_s: seconds since the Unix epoch.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    from tupletree.cli.runs.status import state_text
    from tupletree.runtimes.control import progress_in

    progress = progress_in(status)
    state = state_text(status, progress.state)
    is_well = not status.error and (status.ended or status.is_alive(now_s)) and not progress.outages
    parts: list[RenderableType] = [_numbers(progress)]
    if curves := _curves(status.recent):
        parts += [Text(), curves]
    if work := _work(progress):
        parts += [Text(), work]
    told = [*map(str, progress.outages), *([progress.reason] if progress.reason else [])]
    for text in told[:SHOWN_LINES]:
        parts.append(Text(escape(text), style="red"))
    holds = sorted(progress.holds, key=lambda hold: -hold.count)
    parts += [Text(escape(hold.counted()), style="dim") for hold in holds[:SHOWN_LINES]]
    if status.error:
        parts.append(Text("\n".join(map(escape, status.error.splitlines())), style="red"))
    if progress.dead:
        where = escape(str(place))
        parts.append(Text(f"dead letters: tupletree dead list --by-error --state-dir {where}", style="yellow"))
    title = Text(f"{escape(status.topology)} on {status.runtime} · {escape(state)}")
    return Panel(Group(*parts), title=title, title_align="left", border_style="green" if is_well else "red")


def _numbers(progress: Progress) -> RenderableType:
    """Names and values that stay together where the line is broken."""
    from rich.text import Text

    from tupletree.cli.progress import cells

    shown = [*cells(progress), *((f"rows of {escape(sink)}", f"{rows:,}") for sink, rows in progress.outputs.items())]
    text = Text()
    for name, value in shown:
        text.append(f"{name} ".replace(" ", "\N{NO-BREAK SPACE}"), style="dim")
        text.append(
            value.replace(" ", "\N{NO-BREAK SPACE}") + "   ", style="red" if name == "dead" and value != "0" else ""
        )
    return text


def _curves(recent: Sequence[dict[str, Any]]) -> RenderableType | None:
    """What the last records say: how many messages a second, how many are open, how long each step of an epoch took."""
    from rich.table import Table

    if len(recent) < 2:
        return None
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    oldest_s = recent[-1].get("oldest_s")
    table.add_row("acked per s", curve([one["acked_per_s"] for one in recent]), f"{recent[-1]['acked_per_s']:,.0f}")
    open_now = f"{recent[-1]['pending']:,}" + ("" if oldest_s is None else f", the oldest for {oldest_s:,.1f} s")
    table.add_row("open", curve([one["pending"] for one in recent]), open_now)
    steps: dict[str, list[float]] = {}
    for one in recent:
        for name, ms in one.get("step_ms", {}).items():
            steps.setdefault(name, []).append(ms)
    for name, times in steps.items():
        table.add_row(f"{name} ms", curve(times), f"{times[-1]:,.0f}")
    return table


def _work(progress: Progress) -> RenderableType | None:
    """The bolts that took most time."""
    from rich.table import Table

    if not progress.work:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("bolt", "ms per tuple", "tuples", "of the time"):
        table.add_column(name, justify="left" if name == "bolt" else "right")
    table.add_column("")
    seconds = max(progress.seconds, 0.001)
    for name, done in sorted(progress.work.items(), key=lambda one: -one[1].seconds)[:SHOWN_LINES]:
        share = done.seconds / seconds
        bar = BARS[-1] * max(0, min(30, round(30 * share)))
        table.add_row(escape(name), f"{done.tuple_ms:.3g}", f"{done.tuples:,}", f"{share:.0%}", bar)
    return table


def curve(values: Sequence[float]) -> str:
    """Values as a row of bars, the highest of them as high as one can be.

    >>> curve([0, 1, 2, 4])
    '▁▂▄█'
    """
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in values)
