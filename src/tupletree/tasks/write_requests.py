"""Write requests: complete trees, and which sinks have not yet answered that the rows of these trees are written.

Owns the numbers of the requests. It does not know messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tupletree.tasks.mail import WriteRequest, Written
from tupletree.tracking.outcomes import Failure


@dataclass(slots=True)
class _Asked:
    roots: list[int]
    sinks: set[int]
    refused: dict[int, Failure]
    asked_s: float


class WriteRequests:
    """The write requests of one spout task.

    Args:
        spout_task: the task that requests.
        sinks: sink task → its incarnation; a copy is kept.
        first: the number before the first; none that an earlier machine of this task used, because answers to it may
            come.

    Attributes:
        count: messages whose rows are to be written.
    """

    def __init__(self, spout_task: int, sinks: Mapping[int, int], first: int) -> None:
        self.count = 0
        self._spout_task = spout_task
        self._sinks = dict(sinks)
        self._asked: dict[int, _Asked] = {}
        self._roots: set[int] = set()
        self._last = first

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def sinks(self) -> tuple[int, ...]:
        """The sink tasks."""
        return tuple(self._sinks)

    def not_asked(self, roots: list[int]) -> list[int]:
        """Those that are not requested already; the same list if that is all of them."""
        known = self._roots
        return roots if not known or known.isdisjoint(roots) else [root for root in roots if root not in known]

    def ask(self, roots: list[int], now_s: float, *, flush_now: bool) -> WriteRequest:
        """The write request for these roots, to be sent to every sink."""
        self._last += 1
        self._asked[self._last] = _Asked(roots, set(self._sinks), {}, now_s)
        self._roots.update(roots)
        self.count += len(roots)
        return WriteRequest(self._spout_task, self._last, roots, flush_now)

    def ask_again(self, now_s: float, after_s: float) -> Iterator[tuple[int, WriteRequest]]:
        """(sink task, write request) for those that have not answered for `after_s` seconds."""
        for number, one in self._asked.items():
            if now_s - one.asked_s >= after_s:
                one.asked_s = now_s
                release = WriteRequest(self._spout_task, number, one.roots, flush_now=True)
                yield from ((sink, release) for sink in sorted(one.sinks))

    def is_from_another(self, sink_task: int, incarnation: int) -> bool:
        """Note a sink task's incarnation; whether it is another one than that which took the rows."""
        if self._sinks[sink_task] == incarnation:
            return False
        self._sinks[sink_task] = incarnation
        return True

    def written(self, answer: Written) -> tuple[list[int], dict[int, Failure]] | None:
        """Take an answer.

        Returns:
            (roots whose rows are written, roots that a sink refused) once every sink has answered, else None.
        """
        asked = self._asked.get(answer.number)
        if asked is None or answer.sink_task not in asked.sinks:
            return None
        asked.sinks.discard(answer.sink_task)
        for root, failure in answer.refused.items():
            asked.refused.setdefault(root, failure)
        if asked.sinks:
            return None
        del self._asked[answer.number]
        self.count -= len(asked.roots)
        if self._asked:
            self._roots.difference_update(asked.roots)
        else:
            self._roots.clear()
        if not asked.refused:
            return asked.roots, asked.refused
        return [root for root in asked.roots if root not in asked.refused], asked.refused

    def roots(self) -> set[int]:
        """Every root that is requested."""
        return self._roots

    def clear(self) -> None:
        """Drop all requests."""
        self._asked.clear()
        self._roots.clear()
        self.count = 0
