"""How commands print what they found: tables and trees as a terminal shows them, and JSON, one value a line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tupletree.errors import ConfigError
from tupletree.escaping import escape, escape_json

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

PIPED_WIDTH = 240
"""In a pipe each row stays on one line: most are longer than 80 columns."""


def console() -> Console:
    """Where to print what Rich shows: words of messages and users stay as they are."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def print_shown(shown: object) -> None:
    """Print a table or a tree of Rich's."""
    console().print(shown)


def print_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
    none: str = "",
) -> None:
    """Print rows under these names, text from outside made safe: `numbers` to the right, `whole` without a break.

    `none` is said instead if there are no rows.
    """
    from rich.table import Table

    if none and not rows:
        print(none)
        return
    table = Table(box=None)
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=name in whole)
    for row in rows:
        table.add_row(*map(escape, row))
    print_shown(table)


def print_json(*values: object) -> None:
    """Print values as JSON, each on one line."""
    import msgspec

    for value in values:
        print(escape_json(msgspec.json.encode(value).decode()))


def may_ask(*, as_json: bool) -> None:
    """Before letters are dropped it is asked. Raises ConfigError: nobody is there who could answer."""
    if as_json or not sys.stdin.isatty():
        raise ConfigError("nobody is here to be asked whether they are to be dropped", next_step="add --yes")
