"""The outbox: what machines ask for during one step, in the order in which it is to be carried out.

One outbox serves every machine that a step drives. The driver empties it after the step: `tracks` first, so
that a tree is opened before any task can ack a part of it, then `frames`, then `mail`, then the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tupletree.data.frames import Frame
from tupletree.tasks.edges import DeltaPool, split_by_acker
from tupletree.tasks.mail import Mail, Track
from tupletree.tracking.acker import Opening
from tupletree.tracking.facts import Fact
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.records import Acked, Died

AsyncCall = Callable[[], Coroutine[Any, Any, list[Any]]]
"""Starts a call of an async component; awaiting it gives its results, or raises."""


@dataclass(slots=True, frozen=True)
class LogNote:
    """A line for the log."""

    component: str
    text: str


# More than 12 attributes: one list for each thing that a machine may ask for.
class Outbox:
    """Effects of a step. Machines append; the driver takes.

    Args:
        acker_tasks: ids of the acker tasks, in order of their index; empty turns tracking off.

    Attributes:
        frames: to deliver, each to `frame.task`.
        mail: (task, mail) for control lanes.
        died: dead letters to store; tell the spout machine `letters_stored` once they are durable.
        acked: per call of a source's ack, the messages; for rates.
        notes: for the log.
        facts: for the history: of messages with a failed attempt, or of all, as the option `history` says.
        ticks: tasks whose tick is due.
        timed: tasks that may have something due from now on; see `Machine.is_timed`.
        calls: (task, number, coroutine function) to run; its end is to come back as `Finished` mail.
        cancels: (task, numbers) of calls to cancel; their ends come back as `Finished` mail like any other.
        endings: (task, numbers, coroutine function): the last request of a task. The calls with these numbers are
            to be cancelled, and it is to run when all calls of the task have ended; its result is not reported.
        has_tracks: whether there are changes to trees.
    """

    __slots__ = (
        "_acker_tasks",
        "_deltas",
        "_extended",
        "_failures",
        "_openings",
        "acked",
        "calls",
        "cancels",
        "died",
        "endings",
        "facts",
        "frames",
        "has_tracks",
        "mail",
        "notes",
        "ticks",
        "timed",
    )

    def __init__(self, acker_tasks: Sequence[int]) -> None:
        self._acker_tasks = tuple(acker_tasks)
        self._openings: list[Opening] = []
        self._deltas = DeltaPool()
        self._failures: dict[int, Failure] = {}
        self._extended: list[int] = []
        self.has_tracks = False
        self.frames: list[Frame] = []
        self.mail: list[tuple[int, Mail]] = []
        self.died: list[Died] = []
        self.acked: list[list[Acked]] = []
        self.notes: list[LogNote] = []
        self.facts: list[Fact] = []
        self.ticks: list[int] = []
        self.timed: list[int] = []
        self.calls: list[tuple[int, int, AsyncCall]] = []
        self.cancels: list[tuple[int, list[int]]] = []
        self.endings: list[tuple[int, list[int], AsyncCall]] = []

    @property
    def tracking(self) -> bool:
        """Whether there are ackers."""
        return bool(self._acker_tasks)

    def open_trees(self, opening: Opening) -> None:
        """Open the trees of these roots."""
        self.has_tracks = True
        self._openings.append(opening)

    def add_delta(self, edge: int, roots: Sequence[object]) -> None:
        """XOR an edge into the trees of a frame's roots: when it is sent out, and again when it is acked."""
        self.has_tracks = True
        self._deltas.add(edge, roots)  # type: ignore[arg-type]  # roots as in `Frame.roots`

    def fail_trees(self, failures: Mapping[int, Failure]) -> None:
        """Fail the trees of these roots; the first failure of a root wins."""
        self.has_tracks = True
        for root, failure in failures.items():
            self._failures.setdefault(root, failure)

    def extend(self, roots: Sequence[int]) -> None:
        """Reset the timeouts of these roots."""
        self.has_tracks = True
        self._extended.extend(roots)

    def take_tracks(self) -> list[tuple[int, Track]]:
        """Take (acker task, mail) for all changes to trees."""
        tracks: dict[int, Track] = {}
        count = len(self._acker_tasks)
        openings, deltas = self._openings, self._deltas.take()
        failures, extended = self._failures, self._extended
        self.has_tracks = False
        if not (openings or deltas or failures or extended) or not count:
            return []
        self._openings, self._failures, self._extended = [], {}, []
        if count == 1:
            return [(self._acker_tasks[0], Track(openings, deltas, [*failures.items()], extended))]
        for spout_task, value, roots, emitted_s in openings:
            for share, part in split_by_acker(roots, count):
                tracks.setdefault(share, Track()).openings.append((spout_task, value, part, emitted_s))
        for value, roots in deltas:
            for share, part in split_by_acker(roots, count):
                tracks.setdefault(share, Track()).deltas.append((value, part))
        for root, failure in failures.items():
            tracks.setdefault(root % count, Track()).failures.append((root, failure))
        for root in extended:
            tracks.setdefault(root % count, Track()).extended.append(root)
        return [(self._acker_tasks[share], track) for share, track in tracks.items()]

    def take_frames(self) -> list[Frame]:
        """Take the frames."""
        taken, self.frames = self.frames, []
        return taken

    def take_mail(self) -> list[tuple[int, Mail]]:
        """Take the mail."""
        taken, self.mail = self.mail, []
        return taken
