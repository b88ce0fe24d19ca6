"""A task's place for tests that call a component directly, without a runtime."""

from __future__ import annotations

import dataclasses

from tupletree.ids import MessageId

__all__ = ["Place"]


@dataclasses.dataclass
class Place:
    """A `TaskContext` whose every part can be chosen."""

    topology: str = "t"
    component: str = "lines"
    task_id: int = 1
    task_index: int = 0
    parallelism: int = 1
    attempt: int = 1
    message_id: MessageId | None = None
    message_ids: tuple[MessageId, ...] = ()
    source_component: str = ""
    source_stream: str = ""
    source_task: int = -1
    epoch_time_s: float = 0.0

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """There are no other components."""
        raise KeyError(component)
