"""History: what happened to each message, as `why` tells it. The runtime that keeps the record reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tupletree.errors import ConfigError
from tupletree.runtimes.deadletters import id_text, is_local_run, spellings_of

__all__ = ["HistoryEvent", "why"]


class HistoryEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a message: acked, failed, dead, put back, open, or in flight.

    `message_id` is as `tracking.identity.plain_id` writes it, `time_s` since the Unix epoch.
    """

    time_s: float
    epoch: int
    spout: str
    message_id: Any
    attempt: int
    root_hex: str
    what: str
    detail: str = ""


def why(state_dir: Path, message: str) -> list[HistoryEvent]:
    """Everything known of a message, oldest first.

    Args:
        state_dir: of a run, running or not.
        message: an id as `dead list` shows it, `SPOUT/ID`, or the root id of an attempt.

    Raises:
        ConfigError: this is no state directory, or that of a local run.
    """
    if not (state_dir / "tupletree.json").exists():
        raise ConfigError("this is not a state directory", where=str(state_dir), expected="the --state-dir of a run")
    if is_local_run(state_dir):
        raise ConfigError(
            "a local run keeps no history of its messages",
            where=str(state_dir),
            next_step="tupletree dead list shows those that died; a Spark run tells the story of every message",
        )
    from tupletree.runtimes.spark.inspection import all_events

    spellings = spellings_of(message)
    found = [event for event in all_events(state_dir) if _is_about(event, spellings)]
    return sorted(found, key=lambda event: (event.epoch, event.time_s))


def _is_about(event: HistoryEvent, spellings: list[str]) -> bool:
    text = id_text(event.message_id)
    return not {text, f"{event.spout}/{text}", event.root_hex}.isdisjoint(spellings)
