"""Looking into a state directory from outside: reads the journal of a run, running or not, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tupletree.errors import CheckpointError
from tupletree.runtimes.history import HistoryEvent
from tupletree.runtimes.spark.journal import numbered, read_epoch, read_settle, settle_path
from tupletree.runtimes.spark.sweeping import events_of

__all__ = ["live_events"]


def live_events(state_dir: Path) -> list[HistoryEvent]:
    """What the epochs say that are not swept yet. An epoch that is swept meanwhile is left to the history."""
    events: list[HistoryEvent] = []
    spouts = _spouts(state_dir)
    for epoch in numbered(state_dir / "epochs", ".epoch"):
        settles = state_dir / "settles"
        try:
            header, body = read_epoch(state_dir / "epochs", epoch)
            entry = read_settle(settles, epoch) if settle_path(settles, epoch).exists() else None
        except CheckpointError:
            if (state_dir / "epochs" / f"{epoch:010d}.epoch").exists():
                raise
            continue
        events += events_of(header, body, entry, spout_of=spouts)
    return events


def _spouts(state_dir: Path) -> dict[int, str]:
    path = state_dir / "spouts.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[int, str]) if path.exists() else {}
