"""`tupletree pause`, `resume` and `drain`: control a run from another terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import StateDir
from tupletree.escaping import escape

if TYPE_CHECKING:
    from pathlib import Path

    from tupletree.runtimes.control import ControlRequest


def pause_command(state_dir: StateDir = None) -> None:
    """Stop a run from pulling messages; what is in flight is settled. Lasts until its process ends."""
    _ask(state_dir, "pause")


def resume_command(state_dir: StateDir = None) -> None:
    """Let a paused run pull messages again."""
    _ask(state_dir, "resume")


def drain_command(
    state_dir: StateDir = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout-s", metavar="SECONDS", min=0, help="Longest time. \\[default: the run's option drain_timeout_s]"
        ),
    ] = None,
) -> None:
    """End a run with no open message: pull nothing more, end windows and batches, settle what is in flight, close."""
    _ask(state_dir, "drain", timeout_s)


def _ask(state_dir: Path | None, request: ControlRequest, drain_timeout_s: float | None = None) -> None:
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes.control import send_request

    place = find_state_dir(state_dir)
    status = send_request(place, request, drain_timeout_s=drain_timeout_s)
    print(f"{escape(status.topology)}: asked to {request}\n  next: tupletree status --state-dir {escape(str(place))}")
