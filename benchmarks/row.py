"""What every benchmark is told, and what it gives back: a row of the table."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

__all__ = ["Row", "Settings", "progress"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line sets."""

    work: Path
    master: str
    words: int
    keys: int
    messages: int
    giants: int
    epoch_lines: int
    rounds: int
    epochs: int
    repeats: int
    local_words: int
    local_latency_messages: int
    local_open_trees: int
    local_scale_messages: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `ratio` is against the peer in the same run; `data` holds the raw numbers."""

    benchmark: str
    job: str
    result: str
    ratio: str = ""
    note: str = ""
    data: dict[str, object] = {}


def progress(text: str) -> None:
    """Tell the person at the terminal; the table alone goes to stdout."""
    print(text, file=sys.stderr, flush=True)
