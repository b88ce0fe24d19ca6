"""`tupletree why`: where a message is, or what happened to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Json, StateDir
from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_json

if TYPE_CHECKING:
    from tupletree.runtimes.inspect import HistoryEvent

__all__ = ["print_history", "why_command"]


def why_command(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="A message id, or SPOUT/MESSAGE_ID.")],
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Show the whole history of one message: each attempt, what failed it, and where it is now."""
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import run

    place = find_state_dir(state_dir)
    events = run.why(place, message)
    if not events:
        raise ConfigError(
            "no such message",
            where=str(place),
            got=message,
            expected="an id as logs and `dead list` show it: text as it is, else JSON, such as '[\"orders.csv\", 4]'",
            next_step="the history keeps old messages only for a while (option history_max_bytes)",
        )
    if as_json:
        for event in events:
            print(escape_json(json.dumps(_plain(event))))
    else:
        print_history(events)


def print_history(events: Iterable[HistoryEvent]) -> None:
    """What happened to a message, one line per event; on a terminal a table, because most lines would not fit."""
    if sys.stdout.isatty():
        _print_table(events)
        return
    for event in events:
        print(
            f"{_time(event)} UTC  epoch {event.epoch}  attempt {event.attempt}  root {event.root_hex}  {event.what}"
            + (f": {escape(event.detail)}" if event.detail else "")
        )


def _print_table(events: Iterable[HistoryEvent]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("UTC", "epoch", "attempt", "root", "what", "because", box=None)
    for event in events:
        table.add_row(
            _time(event), str(event.epoch), str(event.attempt), event.root_hex, event.what, escape(event.detail) or "–"
        )
    Console(markup=False, highlight=False).print(table)


def _time(event: HistoryEvent) -> str:
    return datetime.fromtimestamp(event.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _plain(event: HistoryEvent) -> dict[str, object]:
    return {
        "time_s": event.time_s,
        "epoch": event.epoch,
        "spout": event.spout,
        "message_id": event.message_id,
        "attempt": event.attempt,
        "root": event.root_hex,
        "what": event.what,
        "detail": event.detail,
    }
