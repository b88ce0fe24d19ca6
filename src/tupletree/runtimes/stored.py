"""The state of bolts as it is stored, for looking at from outside: the newest committed version, and nothing newer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tupletree.errors import ConfigError
from tupletree.runtimes.deadletters import is_local_run

if TYPE_CHECKING:
    from tupletree.state.contents import Entry
    from tupletree.state.segments import Segment
    from tupletree.state.versions import StateFile

__all__ = ["ComponentState", "stored_state"]


@dataclass(frozen=True)
class ComponentState:
    """The state of one bolt.

    Attributes:
        name: the component.
        segments: its open segments, by file name.
        version: which of them count, oldest first.
        now_s: the moment of the version, since the Unix epoch: what expired by then is not in it.
    """

    name: str
    segments: Mapping[str, Segment]
    version: Sequence[StateFile]
    now_s: float

    @property
    def size_bytes(self) -> int:
        """Length of its segments."""
        return sum({file.name: file.size_bytes for file in self.version}.values())

    def entries(self) -> Iterator[Entry]:
        """Every key with its value, as plain data. Raises CheckpointError for a damaged segment."""
        from tupletree.state.contents import entries

        return entries(self.segments, self.version, now_s=self.now_s)


def stored_state(state_dir: Path) -> tuple[int, list[ComponentState]]:
    """The newest committed version: its epoch (-1 before the first), and the state of each bolt that has some.

    Args:
        state_dir: of a run, running or not.

    Raises:
        ConfigError: this is no state directory, or that of a local run.
        CheckpointError: a file is missing or damaged.
    """
    if not (state_dir / "tupletree.json").exists():
        raise ConfigError("this is not a state directory", where=str(state_dir), expected="the --state-dir of a run")
    if is_local_run(state_dir):
        raise ConfigError(
            "a local run keeps its state in memory",
            where=str(state_dir),
            next_step="run it with --runtime spark, whose state can be looked at",
        )
    from tupletree.runtimes.spark.inspection import committed_state

    return committed_state(state_dir)
