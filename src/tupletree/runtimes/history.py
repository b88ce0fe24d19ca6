"""History: what happened to each message, kept for `why` after its epoch is gone.

Blocks of events, one file per sweep, compressed, oldest removed first. Reading also looks at epochs that are not
swept yet.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import pack, read_container, write_once
from tupletree.errors import ConfigError
from tupletree.runtimes.deadletters import id_text

__all__ = ["HistoryEvent", "trim", "why", "write_block"]


class HistoryEvent(msgspec.Struct, array_like=True):
    """One thing that happened to a message: acked, failed, dead, put back, open, or in flight."""

    time_s: float
    epoch: int
    spout: str
    message_id: Any
    attempt: int
    root_hex: str
    what: str
    detail: str = ""


class _Block(msgspec.Struct):
    first: int
    last: int
    events: int


_events = msgspec.msgpack.Decoder(list[HistoryEvent])


def write_block(directory: Path, first: int, last: int, events: Sequence[HistoryEvent]) -> None:
    """Store the events of a range of epochs; storing the same range again changes nothing."""
    data = zlib.compress(msgspec.msgpack.encode(events), level=1)
    write_once(directory / f"{first:010d}-{last:010d}.history", pack(_Block(first, last, len(events)), [data]))


def trim(directory: Path, max_bytes: int) -> None:
    """Remove the oldest blocks until what is left fits."""
    paths = sorted(directory.glob("*.history"))
    total = sum(path.stat().st_size for path in paths)
    for path in paths[:-1]:
        if total <= max_bytes:
            return
        total -= path.stat().st_size
        path.unlink()


def why(state_dir: Path, message: str) -> list[HistoryEvent]:
    """Everything known of a message, oldest first.

    Args:
        state_dir: of a run, running or not.
        message: an id as `dead list` shows it, or `SPOUT/ID`.

    Raises:
        ConfigError: this is no state directory.
    """
    if not (state_dir / "tupletree.json").exists():
        raise ConfigError("this is not a state directory", where=str(state_dir), expected="the --state-dir of a run")
    found: dict[tuple[int, str], HistoryEvent] = {}
    for path in sorted((state_dir / "history").glob("*.history")):
        _, body = read_container(path, _Block)
        for event in _events.decode(zlib.decompress(body)):
            if _is_about(event, message):
                found[event.epoch, event.root_hex] = event
    for event in _live_events(state_dir):
        if _is_about(event, message):
            found.setdefault((event.epoch, event.root_hex), event)
    return sorted(found.values(), key=lambda event: (event.epoch, event.time_s))


def _is_about(event: HistoryEvent, message: str) -> bool:
    text = id_text(event.message_id)
    return message in {text, f"{event.spout}/{text}", event.root_hex}


def _live_events(state_dir: Path) -> list[HistoryEvent]:
    from tupletree.runtimes.spark.inspection import live_events

    return live_events(state_dir)
