"""The network: everything that is on its way between tasks in a simulation, delivered in random order.

Owns delays and order. It refuses to know faults: the sender decides what is held back, sent twice or not at all.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from tupletree.data.frames import Frame
from tupletree.tasks.mail import HighWater, Mail
from tupletree.tasks.outbox import AsyncCall
from tupletree.tracking.records import Died


@dataclass(slots=True, frozen=True)
class DueCall:
    """A call of an async component that is to be run."""

    number: int
    function: AsyncCall


@dataclass(slots=True, frozen=True)
class LettersStored:
    """Dead letters that are about to be durable."""

    died: list[Died]


Content: TypeAlias = "Frame | Mail | DueCall | LettersStored"


@dataclass(slots=True, eq=False)
class Envelope:
    """One message on its way to a task."""

    task: int
    content: Content


class Network:
    """See the module docstring."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ready: list[Envelope] = []
        self._held: list[tuple[float, int, Envelope]] = []
        self._sent = 0
        self._levels: dict[tuple[int, int], deque[HighWater]] = defaultdict(deque)

    def __len__(self) -> int:
        return len(self._ready) + len(self._held)

    @property
    def ready(self) -> int:
        """How many could be delivered now."""
        return len(self._ready)

    def send(self, envelope: Envelope, not_before_s: float = 0.0) -> None:
        """Put something on its way."""
        content = envelope.content
        if isinstance(content, HighWater):  # the one kind whose order matters: the latest value counts
            self._levels[envelope.task, content.acker_task].append(content)
        self._sent += 1
        if not_before_s:
            heapq.heappush(self._held, (not_before_s, self._sent, envelope))
        else:
            self._ready.append(envelope)

    def next_due_s(self) -> float | None:
        """When something that is held back may go on."""
        return self._held[0][0] if self._held else None

    def take(self, most: int, now_s: float) -> list[Envelope]:
        """Remove and return up to `most` of what may be delivered now, in random order."""
        ready = self._ready
        while self._held and self._held[0][0] <= now_s:
            ready.append(heapq.heappop(self._held)[2])
        taken = []
        for _ in range(min(most, len(ready))):
            index = self._random.randrange(len(ready))
            ready[index], ready[-1] = ready[-1], ready[index]
            envelope = ready.pop()
            content = envelope.content
            if isinstance(content, HighWater):
                envelope.content = self._levels[envelope.task, content.acker_task].popleft()
            taken.append(envelope)
        return taken

    def lose(self, gone: Callable[[Envelope], bool]) -> list[Envelope]:
        """Take out what must never arrive."""
        lost = [one for one in [*self._ready, *(held for _, _, held in self._held)] if gone(one)]
        if lost:
            self._ready = [one for one in self._ready if not gone(one)]
            self._held = [entry for entry in self._held if not gone(entry[2])]
            heapq.heapify(self._held)
            for one in lost:
                if isinstance(one.content, HighWater):
                    self._levels[one.task, one.content.acker_task].popleft()
        return lost
