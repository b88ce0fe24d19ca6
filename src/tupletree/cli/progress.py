"""Show a run's progress on stderr: live on a terminal, a plain line every few seconds otherwise."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from tupletree.escaping import escape
from tupletree.logs import json_line

if TYPE_CHECKING:
    from tupletree.runtimes.api import Progress

PLAIN_INTERVAL_S = 5.0

MOST_HOLDS = 3
"""What else is held is shown by `tupletree status`."""

STARTING = ("created", "activated")
"""States before the first message is asked for: Java, Spark and the workers take a while to start."""

_CHATTER = (
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
    "Setting Spark log level",
)
"""Lines that a JVM with Spark prints before it has read its log settings."""


def progress_line(progress: Progress) -> str:
    """All numbers in one plain line; while it starts, there are none."""
    if progress.state in STARTING and not progress.emitted:
        return f"{progress.seconds:.1f} s  starting"
    return "  ".join(
        [
            f"{progress.seconds:.1f} s",
            progress.state,
            *(f"{name} {text}" for name, text in cells(progress)),
            *_held(progress),
        ]
    )


def _held(progress: Progress) -> list[str]:
    """What holds messages for long: outages, and what is most of the rest."""
    lasting = [one for one in progress.holds if one.kind in {"held", "retry", "source"}]
    lasting.sort(key=lambda one: -one.count)
    return [
        *(escape(str(outage)) for outage in progress.outages),
        *(escape(one.counted()) for one in lasting[:MOST_HOLDS]),
    ]


def cells(progress: Progress) -> list[tuple[str, str]]:
    """Name and value of each number, in the order shown; a dash if it is not known yet."""
    return [
        ("in", f"{progress.emitted:,}"),
        ("acked", f"{progress.acked:,}"),
        ("failed", f"{progress.failed:,}"),
        ("retried", f"{progress.retried:,}"),
        ("dead", f"{progress.dead:,}"),
        ("open", f"{progress.open:,}"),
        *_others(progress),
        ("rate", f"{progress.rate_per_s:,.0f}/s"),
        ("p50", _milliseconds(progress.latency_p50_ms)),
        ("p95", _milliseconds(progress.latency_p95_ms)),
        ("epoch", "–" if progress.epoch < 0 else f"{progress.epoch:,}"),
    ]


def _others(progress: Progress) -> list[tuple[str, str]]:
    """Late tuples, and messages that are in none of the counts; most runs have none, and then they are not shown."""
    numbers = (
        ("late", sum(progress.late.values())),
        ("untracked", progress.untracked),
        ("untracked failed", progress.untracked_failed),
        ("joined", progress.joined),
    )
    return [(name, f"{number:,}") for name, number in numbers if number]


class StderrConsole(Console):
    """Writes to a stream; a pipe that no process reads any more is no reason to end the process, as rich has it."""

    def on_broken_pipe(self) -> None:
        """Called within the handling of a BrokenPipeError: go on."""


class Display:
    """Shows the latest numbers while it is entered, and leaves the terminal as it was.

    What nobody can read is dropped, as in a terminal that was closed.
    """

    def __init__(self, console: Console, *, is_live: bool) -> None:
        self._console = console
        self._is_live = is_live
        self._live: Live | None = None
        self._next_line_s = time.monotonic() + PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        if self._is_live:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                # Results that are piped stay in the pipe.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.stop()

    def draw(self, make: Callable[[], RenderableType]) -> bool:
        """Draw it anew on a terminal; elsewhere, whether it is time for a line."""
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.update(make(), refresh=True)
            return False
        if time.monotonic() < self._next_line_s:
            return False
        self._next_line_s = time.monotonic() + PLAIN_INTERVAL_S
        return True

    def say(self, text: str) -> None:
        """Print a line that stays."""
        with suppress(OSError, ValueError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class ProgressDisplay(Display):
    """Shows the progress of a topology.

    Args:
        topology, runtime: what runs where, for the title.
        console: where to; stderr by default.
        as_json: lines of JSON, as the log's, with the numbers under `progress`.
    """

    def __init__(self, topology: str, runtime: str, console: Console | None = None, *, as_json: bool = False) -> None:
        self._as_json = as_json
        shown = console or StderrConsole(stderr=True)
        is_live = shown.is_terminal and not as_json
        self._foreign: ForeignLines | None = None
        if console is None and is_live and os.isatty(2):
            # A live table and another writer would overwrite each other on one terminal.
            self._foreign = ForeignLines(self._show_foreign)
            shown = StderrConsole(file=self._foreign.terminal)
        super().__init__(shown, is_live=is_live)
        self._title = f"{topology} on {runtime}"

    def __enter__(self) -> Self:
        if not self._is_live:
            self.say(f"{self._title}: starting")
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._foreign is not None:
            self._foreign.close()

    def show(self, progress: Progress) -> None:
        """Show these numbers; without a terminal only when the last line is a few seconds old."""
        if self.draw(lambda: self._table(progress)):
            self.say(progress_line(progress), progress)

    def say(self, text: str, progress: Progress | None = None) -> None:
        if not self._as_json:
            super().say(text)
            return
        with suppress(OSError, ValueError):
            numbers: dict[str, Any] = {} if progress is None else {"progress": asdict(progress)}
            print(json_line(text, **numbers), file=sys.stderr, flush=True)

    def _show_foreign(self, line: str) -> None:
        if not line.startswith(_CHATTER):
            self.say(escape(line.expandtabs()))

    def _table(self, progress: Progress) -> Table:
        state = "starting" if progress.state in STARTING else progress.state
        table = Table(title=f"{self._title} · {state} · {progress.seconds:.0f} s", title_justify="left")
        table.caption = "\n".join(_held(progress)) or None
        shown = cells(progress)
        for name, _ in shown:
            table.add_column(name, justify="right")
        table.add_row(*(text for _, text in shown))
        return table


class ForeignLines:
    """Replaces descriptor 2, and gives line by line what is written to it: by the JVM, workers, C libraries.

    A JVM started meanwhile keeps this descriptor, so lines come even after `close`, as long as the process lives.

    Args:
        show: called with each line, without its end, on this object's own thread.

    Attributes:
        terminal: what descriptor 2 was before.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        sys.stderr.flush()
        self._before = os.dup(2)
        self.terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        read_end, write_end = os.pipe()
        os.dup2(write_end, 2)
        os.close(write_end)
        self._show = show
        threading.Thread(target=self._read, args=(read_end,), name="tupletree-stderr", daemon=True).start()

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._show(line.rstrip("\n"))

    def close(self) -> None:
        """Restore descriptor 2."""
        sys.stderr.flush()
        os.dup2(self._before, 2)


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"
