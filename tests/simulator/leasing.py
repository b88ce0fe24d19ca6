"""A broker outside of a simulated run, whose messages executors lease: it outlives crashes, and knows one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

__all__ = ["LEASE_S", "Leasing"]

LEASE_S = 0.5


@dataclass
class Leasing:
    """Messages are the numbers below `count`. A handle names one lease of one of them, and is refused once it is over.

    Attributes:
        leases: number → its handle, and until when it lasts.
        deliveries: how often each was delivered.
        settled: what is over.
        now_s: the time.
    """

    chance: Random
    count: int
    leases: dict[int, tuple[str, float]] = field(default_factory=dict)
    deliveries: Counter[int] = field(default_factory=Counter)
    settled: set[int] = field(default_factory=set)
    now_s: Callable[[], float] = lambda: 0.0

    @property
    def ready(self) -> list[int]:
        now_s = self.now_s()
        return [
            number
            for number in range(self.count)
            if number not in self.settled and self.leases.get(number, ("", 0.0))[1] <= now_s
        ]

    @property
    def is_empty(self) -> bool:
        return len(self.settled) == self.count

    def lease(self, limit: int) -> list[tuple[int, str]]:
        taken = []
        for number in self.ready[: self.chance.randint(1, max(1, limit))]:
            self.deliveries[number] += 1
            handle = f"{number}.{self.deliveries[number]}"
            self.leases[number] = handle, self.now_s() + LEASE_S
            taken.append((number, handle))
        return taken

    def extend(self, handles: Iterable[str]) -> None:
        for handle in handles:
            if self._is_held(handle):
                self.leases[_number(handle)] = handle, self.now_s() + LEASE_S

    def settle(self, handle: str) -> bool:
        """Whether the lease still lasted."""
        if not self._is_held(handle):
            return False
        self.settled.add(_number(handle))
        return True

    def give_back(self, handle: str) -> None:
        if self._is_held(handle):
            del self.leases[_number(handle)]

    def _is_held(self, handle: str) -> bool:
        held, until_s = self.leases.get(_number(handle), ("", 0.0))
        return held == handle and until_s > self.now_s() and _number(handle) not in self.settled


def _number(handle: str) -> int:
    return int(handle.partition(".")[0])
