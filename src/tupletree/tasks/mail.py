"""What travels between tasks besides frames: mail, on a control lane that data can never block.

Plain records. Data goes as `Frame`s, which carry their task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tupletree.tracking.acker import Delta, Opening, TreeFailure
from tupletree.tracking.outcomes import Failure


class Now(NamedTuple):
    """One reading of the clock.

    Attributes:
        monotonic_s: seconds that never go back.
        wall_s: seconds since the Unix epoch.
    """

    monotonic_s: float
    wall_s: float


@dataclass(slots=True)
class Track:
    """To an acker: all changes of one step of an executor to trees of this acker.

    Attributes:
        openings: sent before any copy of their messages.
        deltas: every root has at most one value in here, so no order of applying them completes a tree early.
        failures: roots that failed.
        extended: roots whose timeout is reset.
    """

    openings: list[Opening] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    failures: list[TreeFailure] = field(default_factory=list)
    extended: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TreeVerdicts:
    """To a spout task, from an acker. The lists may be those of the openings: read only."""

    completed: list[list[int]] = field(default_factory=list)
    failed: list[tuple[int, Failure]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class HighWater:
    """To every spout task: an acker's open trees rose above the high water mark, or fell below it again."""

    acker_task: int
    above: bool


@dataclass(slots=True, frozen=True)
class WriteRequest:
    """To every sink task: these trees completed, so write what is anchored to them, and answer with `Written`.

    Asking again is harmless: a sink that holds nothing (more) of them answers at once.

    Attributes:
        spout_task, number: the task that requests, and the number of its request.
        roots: attempts whose trees completed.
        flush_now: nothing else will come soon, so waiting for more rows is of no use.
    """

    spout_task: int
    number: int
    roots: list[int]
    flush_now: bool = False


@dataclass(slots=True, frozen=True)
class DropRoots:
    """To sink tasks, and to a bolt task that asked (`OrphanQuery`): these attempts are over."""

    roots: list[int]


@dataclass(slots=True, frozen=True)
class OrphanQuery:
    """To an acker, from a bolt task: which of these attempts are over? What it does not know comes as `DropRoots`."""

    task: int
    roots: list[int]


@dataclass(slots=True, frozen=True)
class Written:
    """To a spout task: all rows of its write request are written, except those of `refused` roots.

    `incarnation` distinguishes a sink task that lost its rows from the one that took them.
    """

    sink_task: int
    incarnation: int
    number: int
    refused: dict[int, Failure]


@dataclass(slots=True, frozen=True)
class SinkReset:
    """To every spout task: this sink task was started again, so the rows that it held are lost."""

    sink_task: int
    incarnation: int


class Finished(msgspec.Struct, frozen=True):
    """To an async bolt task: a call that it asked for has ended, with results or with what it raised."""

    call: int
    results: list[Any]
    error: BaseException | None = None


Mail: TypeAlias = (
    "Track | TreeVerdicts | HighWater | WriteRequest | DropRoots | OrphanQuery | Written | SinkReset | Finished"
)
