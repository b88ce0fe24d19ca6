"""`tupletree dead`: list, show and replay the messages that will not be tried again by themselves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tupletree.cli.arguments import Json, StateDir
from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_block, escape_json

if TYPE_CHECKING:
    from tupletree.tracking.outcomes import DeadLetter

__all__ = ["app", "print_letters"]

PIPED_WIDTH = 240

app = typer.Typer(no_args_is_help=True, help="List, show and replay dead letters.")

Selector = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="A message id as `dead list` shows it, or SPOUT/MESSAGE_ID.")
]


@app.command("list")
def list_command(state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the dead letters of a run, one line each."""
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    letters = deadletters.read(find_state_dir(state_dir))
    if as_json:
        for letter in letters:
            print(_json_of(letter))
        return
    print_letters(letters)


def print_letters(letters: Sequence[DeadLetter]) -> None:
    """A table of dead letters, one line each."""
    if not letters:
        print("no dead letters")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("message", "died", "attempts", "why", "component"):
        table.add_column(name, no_wrap=True)
    table.add_column("error")  # the only column that is cut to fit
    for letter in letters:
        failure = letter.failure
        error = f"{failure.error_type}: {failure.error}" if failure.error_type else failure.error
        table.add_row(
            escape(f"{letter.spout}/{_text_of(letter)}"),
            _time(letter.died_s),
            str(letter.attempts),
            failure.kind.value,
            escape(failure.component) or "–",
            # The first line only: `dead show` has the whole text.
            Text(escape(error.partition("\n")[0]), no_wrap=True, overflow="ellipsis"),
        )
    # In a pipe each letter stays on one line: most are longer than 80 columns.
    Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


@app.command("show")
def show_command(message: Selector, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show everything that is stored of one dead letter: payload, failing tuple, error, attempts and times."""
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    spellings = deadletters.spellings_of(message)
    found = [letter for letter in deadletters.read(find_state_dir(state_dir)) if _matches(letter, spellings)]
    if not found:
        raise ConfigError("no dead letter has this id", got=message, next_step="tupletree dead list shows them all")
    for letter in found:
        print(_json_of(letter) if as_json else _page_of(letter))


@app.command("replay")
def replay_command(
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="Message ids as `dead list` shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters of the run.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Ask for dead letters to be processed again, with attempts counted from 1.

    A run that is going on accepts the request by itself, one that has ended at its next start on this state directory.
    """
    from tupletree.cli.settings import find_state_dir
    from tupletree.runtimes import deadletters

    if everything == bool(messages):
        raise ConfigError("name the messages to replay, or use --all", got="both" if everything else "neither")
    place = find_state_dir(state_dir)
    waiting = {one.id for one in deadletters.requests(place, lambda _: None)}
    request = deadletters.request_replay(place, None if everything else messages)
    print(f"requested before, and not accepted yet: {request}" if request in waiting else f"requested: {request}")
    print("  next: nothing if it is running; otherwise start it as before, with its --set values:")
    how = " --runtime local --durable" if deadletters.is_local_run(place) else ""
    print(f"        tupletree run TARGET{how} --state-dir {escape(str(place))}")


def _matches(letter: DeadLetter, spellings: list[str]) -> bool:
    text = _text_of(letter)
    return not {text, f"{letter.spout}/{text}"}.isdisjoint(spellings)


def _text_of(letter: DeadLetter) -> str:
    from tupletree.tracking.message_ids import id_text

    return id_text(letter.message_id)


def _json_of(letter: DeadLetter) -> str:
    import msgspec

    return escape_json(msgspec.json.encode(letter).decode())


def _page_of(letter: DeadLetter) -> str:
    failure = letter.failure
    rows = [
        ("message", f"{letter.spout}/{_text_of(letter)}"),
        ("topology", letter.topology),
        ("first emitted", _time(letter.first_emitted_s)),
        ("died", _time(letter.died_s)),
        ("attempts", str(letter.attempts)),
        ("why", failure.kind.value + (", permanent" if failure.permanent else "")),
        ("component", f"{failure.component} task {failure.task_id}" if failure.component else ""),
        ("error", f"{failure.error_type}: {failure.error}" if failure.error_type else failure.error),
        ("failing tuple", failure.failing_tuple),
        ("payload", f"{letter.payload_type} {json.dumps(letter.payload)}"),
        ("note", letter.note),
    ]
    page = "\n".join(f"{name:<14} {escape_block(text)}" for name, text in rows if text)
    return f"{page}\n{escape_block(failure.traceback)}" if failure.traceback else page


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
