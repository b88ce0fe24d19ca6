"""Everything that happens to files after the commit point: publish, dead letters, sweep. All of it can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tupletree.runtimes.crash import crash_point
from tupletree.runtimes.deadletters import write_letters
from tupletree.runtimes.spark.journal import SettleEntry
from tupletree.sinks.files import publish

__all__ = ["final_name", "finish", "remove"]


def final_name(run_id: str, epoch: int, task_index: int, suffix: str) -> str:
    """The deterministic name of a sink task's rows of one epoch. Runs that share a folder never share a name."""
    return f"part-{run_id[:8]}-{epoch:08d}-{task_index:04d}{suffix}"


def finish(entry: SettleEntry, sink_directories: Mapping[str, str], dead_directory: Path) -> None:
    """Publish what a settle entry names. Idempotent."""
    for output in entry.outputs:
        directory = Path(sink_directories[output.sink])
        crash_point("publish.before_output")
        publish(directory / output.candidate, directory / output.final)
        crash_point("publish.after_output")
    if entry.dead:
        write_letters(dead_directory, entry.epoch, [dead.letter for dead in entry.dead])
    crash_point("publish.after_dead")


def remove(paths: Iterable[Path]) -> None:
    """Remove files that nothing names any more; one that is gone already is fine."""
    for path in paths:
        path.unlink(missing_ok=True)
