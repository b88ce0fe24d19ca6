"""`tupletree status`: where a run stands, seen from another terminal."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import typer

from tupletree.cli.arguments import Json, StateDir
from tupletree.cli.output import print_table
from tupletree.escaping import escape, escape_json
from tupletree.texts import moment_text

if TYPE_CHECKING:
    from pathlib import Path

    from tupletree.runtimes.api import Progress
    from tupletree.runtimes.control import Status


def status_command(state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show where a run stands: its state, who runs it, and the numbers of its messages.

    Exit code: 0 a process runs it, or it has ended; 1 it failed, or its process is gone.
    """
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes.control import status_of

    place = find_state_dir(state_dir)
    status = status_of(place)
    if as_json:
        import msgspec

        print(escape_json(json.dumps({**msgspec.to_builtins(status), "alive": status.is_alive(time.time())})))
    else:
        print_status(place, status)
    if status.error or not (status.ended or status.is_alive(time.time())):
        raise typer.Exit(1)


def print_status(place: Path, status: Status) -> None:
    """Print a few lines: the process, and every number that the live display of `run` has."""
    from tupletree.cli.progress import cells
    from tupletree.cli.summary import late_text
    from tupletree.runtimes.control import progress_in

    progress = progress_in(status)
    print(escape(f"{status.topology} on {status.runtime}: {state_text(status, progress.state)}"))
    print(escape(f"  process {status.process} on {status.host}, started {moment_text(status.started_s)}"))
    shown = cells(progress)
    if sys.stdout.isatty():
        print_table([name for name, _ in shown], [[text for _, text in shown]])
    else:
        print("  " + "  ".join(f"{name} {text}" for name, text in shown))
    _print_work(progress)
    if progress.reason:
        print(f"  {escape(progress.reason)}")
    if progress.late:
        print(f"  {escape(late_text(progress.late))}")
    for outage in progress.outages:
        print(f"  {escape(str(outage))}")
    for hold in progress.holds:
        print(f"  {escape(hold.counted())}")
    if status.error:
        error = "\n".join(map(escape, status.error.splitlines()))
        print(textwrap.indent(f"error: {error}", "  "))
    print(f"  state in {escape(str(place))}")
    if progress.dead:
        print(f"  next: tupletree dead list --state-dir {escape(str(place))}")


def _print_work(progress: Progress) -> None:
    """A line for each bolt, the one that took most time first."""
    work = sorted(progress.work.items(), key=lambda one: -one[1].seconds)
    longest = max((len(name) for name, _ in work), default=0)
    for name, done in work:
        print(
            f"  bolt {escape(name):<{longest}}  {done.tuple_ms:.3g} ms per tuple, {done.tuples:,} tuples, "
            f"{done.seconds / max(progress.seconds, 0.001):.0%} of the time"
        )


def state_text(status: Status, state: str) -> str:
    """What a run does, and since when nothing is known of it, in words."""
    when, now_s = moment_text(status.updated_s), time.time()
    if status.is_alive(now_s):
        shown = f"{state} for {status.progress.get('seconds', 0.0):,.0f} s"
        if not status.is_old(now_s):
            return shown
        return f"{shown}, at {when}; since then its process is suspended, or cannot write to the state directory"
    if status.ended:
        return f"{state}, ended {when}"
    return f"crashed, last heartbeat {when} ({state})"
