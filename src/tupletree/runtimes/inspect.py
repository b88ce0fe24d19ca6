"""What can be seen of a run from outside: what its bolts remember."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tupletree.state.contents import StateEntry
    from tupletree.state.segments import Segment
    from tupletree.state.versions import StateFile


@dataclass(frozen=True)
class ComponentState:
    """The state of one bolt.

    Attributes:
        name: the component.
        segments: its open segments, by file name.
        version: which of them count, oldest first.
        now_s: the time of the version, since the Unix epoch: expired entries are left out.
    """

    name: str
    segments: Mapping[str, Segment]
    version: Sequence[StateFile]
    now_s: float

    @property
    def size_bytes(self) -> int:
        """Length of its segments."""
        return sum({file.name: file.size_bytes for file in self.version}.values())

    def entries(self) -> Iterator[StateEntry]:
        """Every key with its value, as plain data. Raises CheckpointError for a damaged segment."""
        from tupletree.state.contents import entries

        return entries(self.segments, self.version, now_s=self.now_s)
