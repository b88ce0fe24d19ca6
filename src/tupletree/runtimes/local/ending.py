"""What a local run does when its last life has ended: it stores the snapshot of its state, and names what is open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from tupletree.errors import TupletreeError
from tupletree.routing.plan import Plan
from tupletree.runtimes.local.assembly import CarriedOver
from tupletree.runtimes.local.life import IDS_SHOWN
from tupletree.tasks.spouts.spout_buffer import SpoutCheckpoint
from tupletree.texts import counted

logger = logging.getLogger("tupletree.local")


def save_state(file: Path | None, plan: Plan, carried_over: CarriedOver, wall_s: float, *, hung: bool) -> None:
    """Write the snapshot, if there is to be one, when all threads have ended. Raises TupletreeError."""
    if file is None:
        return
    if hung:
        logger.error("%s: its state is not stored in %s, because a task that hangs may change it", plan.spec.name, file)
        return
    from tupletree.runtimes.local.snapshot import save_snapshot

    try:
        save_snapshot(file, plan, carried_over.cells, wall_s)
    except OSError as error:
        raise TupletreeError(
            "the state of the run cannot be stored",
            where=str(file),
            got=f"{type(error).__name__}: {error}",
            next_step="make room there, or fix the folder; the file is as the last run left it",
        ) from error


def name_left(plan: Plan, checkpoints: Mapping[int, SpoutCheckpoint]) -> None:
    """Log the open messages of a run that failed: the spouts are closed, so their sources cannot be told."""
    for task, spout_checkpoint in checkpoints.items():
        pending = spout_checkpoint.pending
        left = [*pending.open_ids(task), *(message_id for message_id, _ in pending.awaited(task))]
        left += spout_checkpoint.spout_buffer.let_go()
        left += [one.message_id for one in (*spout_checkpoint.letters_to_store, *spout_checkpoint.not_told)]
        if left:
            logger.warning(
                "%s: %s not finished, and their source was not told: %s%s",
                plan.tasks[task].component,
                counted(len(left), "message was", "messages were"),
                ", ".join(map(repr, left[:IDS_SHOWN])),
                " and more" if len(left) > IDS_SHOWN else "",
            )
