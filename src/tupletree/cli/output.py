"""How commands print what they found: tables and trees as a terminal shows them, and JSON, one value a line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tupletree.escaping import escape_json

if TYPE_CHECKING:
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


def print_json(value: object) -> None:
    """Print a value as JSON, on one line."""
    import msgspec

    print(escape_json(msgspec.json.encode(value).decode()))
