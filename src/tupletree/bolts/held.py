"""Holding: tuples that a task keeps beyond the call that brought them, and how they outlive the task itself.

Owns the contract between a runtime and a task that holds (`Holder`), the form in which held tuples travel from one life
of such a task to the next (`HeldFrame`), and the bookkeeping that every holder needs (`Holdings`).

A holder lives in one of two ways, and must not care which. Locally one instance serves for the life of the topology.
On Spark a task is opened again for each run of an epoch: first it gets what the last committed epoch left
(`restore`), after everything else it says what it still holds (`held`, `memory`), and that becomes part of the commit.
A run that does not count leaves no trace, so nothing that decides about tuples may live elsewhere than in these two.

A held tuple keeps its edge: it travels under the id of the frame that brought it, and its trees stay open until the
holder acks or fails it. What is emitted meanwhile may be anchored to it, as often as need be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tupletree.bolts.effects import Output, TaskPlace, Worked
from tupletree.bolts.failures import FailureMaker
from tupletree.data.frames import (
    UNTRACKED,
    Frame,
    Root,
    all_failed,
    carrier,
    fewer,
    join_segments,
    made_of,
    plain_root,
    roots_of,
)


@dataclass(slots=True)
class HeldFrame:
    """What a task still holds of one frame.

    Attributes:
        frame: the tuples that are neither acked nor failed, in their order, under the id of the frame they came in.
        since_s: when the task got them, in epoch time.
    """

    frame: Frame
    since_s: float


class Holder(Protocol):
    """One task of a bolt that holds tuples; with the methods of `plain.BoltTask`, and called by one thread.

    Its only clock is `TaskPlace.epoch_time_s`, which the runtime sets before each call; a run of an epoch that is
    repeated sees the same times again. Every method that returns a `Worked` may emit, ack and fail, tuples of earlier
    calls too. What user code raises fails tuples and does not come out.

    Order of calls: `open`, at most one `restore`, then any of the others, `close`. On Spark within an epoch: `work` for
    each frame, then `advance`, then `flush` if the topology is draining, then `held` and `memory`.
    """

    def open(self) -> None:
        """Acquire what is needed; whatever it raises comes out, and `close` is due all the same."""

    def close(self) -> None:
        """Release everything. What is held is left as it is."""

    def work(self, frame: Frame) -> Worked:
        """Take a frame's tuples, and do what they make due: a full batch, say."""

    def tick(self, time_s: float) -> Worked:
        """The topology's tick, for holders whose bolt asked for it."""

    def advance(self) -> Worked:
        """Do what is due by now."""

    def flush(self) -> Worked:
        """Nothing else will come for a while, or ever: work what is held, as far as that makes sense."""

    def resume(self) -> Worked:
        """Make the call again that met an outage (`Worked.outage`), then those that waited behind it."""

    def waiting(self) -> Iterable[int]:
        """Roots of the tuples that an outage left."""

    @property
    def due_s(self) -> float | None:
        """The epoch time at which `advance` has something to do; None: never without another frame."""

    @property
    def put_off_since_s(self) -> float | None:
        """When, in epoch time, the oldest tuple came that takes part in what is put off; None: nothing is.

        Of what goes by no time of events itself (batches, a `HoldingBolt`): when the oldest came that is held.
        """

    @property
    def is_holding(self) -> bool:
        """Whether any tuple is held."""

    @property
    def goes_by_event_time(self) -> bool:
        """Whether its time is that in a field of its tuples."""

    @property
    def held_count(self) -> int:
        """How many tuples are held. Any thread may ask."""

    def until_s(self, root: int | None = None) -> float | None:
        """When what is held of this message is let go of, by the clock or (`goes_by_event_time`) in event time.

        Without a root: the first of all that is held; any thread may ask that. None: it depends on other tuples.
        """

    @property
    def watermark_us(self) -> int | None:
        """How far event time has come, microseconds since the Unix epoch; None where that decides nothing."""

    def held(self) -> list[HeldFrame]:
        """Held inputs out: every tuple that is neither acked nor failed, oldest frame first. Changes nothing."""

    def memory(self) -> Any:
        """What else must outlive this instance, as data that msgpack can hold (None: nothing).

        No tuples: it is not purged when a message fails.
        """

    def restore(self, held: Sequence[HeldFrame], memory: Any, waiting: Collection[int] = ()) -> None:
        """Held inputs in: go on where an earlier instance was, which gave `held` and `memory`. Emits nothing.

        All tuples of a frame that were held come back, in their order; those of messages that died since are named in a
        `forget` that follows at once. A frame may be missing as a whole, if all its messages died.

        Args:
            held: as it was given.
            memory: as it was given.
            waiting: messages that failed, and whose next attempt is to come: by a `restore` without them. Until then
                this instance neither acks nor fails their tuples, emits nothing that is anchored to them, and puts off
                what they take part in: a window is called with all its tuples, and a pair made with both, once none of
                them waits any more, or without those that died. So a failure changes when that happens, and nothing
                else.
        """

    def forget(self, roots: Collection[int]) -> None:
        """These roots failed or expired elsewhere: let go of what is held for them alone, without a word.

        What is held for others too is held for these others only from now on. Roots that are not held are harmless.
        """


class BaseHolder(Holder):
    """What holders have in common: no ticks, nothing to open, no time but the clock's, unless they say otherwise."""

    def __init__(self, place: TaskPlace) -> None:
        self._place = place
        self._holdings = Holdings()

    @property
    def watermark_us(self) -> int | None:
        return None

    @property
    def goes_by_event_time(self) -> bool:
        return False

    @property
    def is_holding(self) -> bool:
        return len(self._holdings) > 0

    @property
    def held_count(self) -> int:
        return len(self._holdings)

    @property
    def put_off_since_s(self) -> float | None:
        return min((member.since_s for member in self._holdings.members()), default=None)

    def open(self) -> None:
        """Nothing to open: a function needs none."""

    def close(self) -> None:
        """Nothing to close."""

    def held(self) -> list[HeldFrame]:
        return self._holdings.held()

    def tick(self, time_s: float) -> Worked:  # noqa: ARG002 - see `Holder`
        """No ticks: see `due_s`."""
        return Worked()

    def _meets(self, error: BaseException, worked: Worked) -> bool:
        """Whether a call met an outage, so that its tuples wait; it is noted then."""
        if not (self._place.waits and self._place.takes_as_outage(error)):
            return False
        worked.outage = error
        return True


@dataclass(slots=True, eq=False)
class HeldTuple:
    """One held tuple.

    Attributes:
        value: the tuple.
        root: the messages it belongs to; fewer after a `forget`.
        since_s: when the task got it, in epoch time.
        open: False once it was settled or forgotten.
    """

    value: Any
    root: Root
    origin: _Origin
    open: bool = True

    @property
    def since_s(self) -> float:
        """When the task got it, in epoch time."""
        return self.origin.since_s

    @property
    def source(self) -> tuple[str, str]:
        """(component, stream) that it came from."""
        return self.origin.component, self.origin.stream


@dataclass(slots=True, eq=False)
class _Origin:
    """The frame that brought members. `unsettled` counts, per root, its open tuples."""

    task: int
    component: str
    stream: str
    id: int
    since_s: float
    members: dict[HeldTuple, None] = field(default_factory=dict)
    unsettled: dict[int, int] = field(default_factory=dict)


class Holdings:
    """The tuples in a holder's hands: frames in, members out, and back into frames what is not settled."""

    def __init__(self) -> None:
        self._origins: dict[int, _Origin] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many tuples are held."""
        return self._count

    def members(self) -> Iterable[HeldTuple]:
        """All that is held, oldest frame first."""
        return (member for origin in self._origins.values() for member in origin.members)

    def take(self, frame: Frame, since_s: float) -> list[HeldTuple]:
        """Hold a frame's tuples; returns them in their order. A frame may come in parts, and keeps its first time."""
        origin = self._origins.get(frame.id)
        if origin is None:
            origin = _Origin(frame.task, frame.component, frame.stream, frame.id, since_s)
        unsettled = origin.unsettled
        members: list[HeldTuple] = []
        for root, values in frame.segments():
            for one in roots_of(root):
                unsettled[one] = unsettled.get(one, 0) + len(values)
            members += [HeldTuple(value, root, origin) for value in values]
        if members:
            origin.members.update(dict.fromkeys(members))
            self._origins[frame.id] = origin
            self._count += len(members)
        return members

    def restore(self, held: Iterable[HeldFrame]) -> list[HeldTuple]:
        """Hold again what an earlier instance held; returns the members, oldest frame first."""
        return [member for one in held for member in self.take(one.frame, one.since_s)]

    def settle(self, members: Iterable[HeldTuple], worked: Worked) -> None:
        """Let go of members that are acked or failed, and name in `worked.done` the roots whose tuples all are.

        Call it when all failures of the call are in `worked`: a root that failed is not done. Members that were settled
        before change nothing.
        """
        done: dict[int, list[Root]] = {}
        for member in members:
            if not member.open:
                continue
            self._remove(member)
            unsettled = member.origin.unsettled
            for root in roots_of(member.root):
                unsettled[root] -= 1
                if not unsettled[root]:
                    del unsettled[root]
                    if root not in worked.failures:
                        done.setdefault(member.origin.id, []).append(root)
        worked.done += done.items()

    def forget(self, roots: Collection[int]) -> list[HeldTuple]:
        """Let go of what is held for these roots alone; returns those members. See `Holder.forget`."""
        gone: list[HeldTuple] = []
        for origin in [one for one in self._origins.values() if not one.unsettled.keys().isdisjoint(roots)]:
            for member in list(origin.members):
                tracked = roots_of(member.root)
                kept = tuple(root for root in tracked if root not in roots)
                if len(kept) == len(tracked):
                    continue
                if kept:
                    member.root = fewer(member.root, kept)
                else:
                    gone.append(member)
                    self._remove(member)
            for root in origin.unsettled.keys() & roots:
                del origin.unsettled[root]
        return gone

    def held(self) -> list[HeldFrame]:
        """See `Holder.held`."""
        return [HeldFrame(_frame_of(origin), origin.since_s) for origin in self._origins.values()]

    def _remove(self, member: HeldTuple) -> None:
        member.open = False
        origin = member.origin
        del origin.members[member]
        self._count -= 1
        if not origin.members:
            del self._origins[origin.id]


def waits_for(member: HeldTuple, waiting: Collection[int]) -> bool:
    """Whether a tuple belongs to one of these messages."""
    root = member.root
    return any(one in waiting for one in root) if isinstance(root, tuple) else root in waiting


def together(members: Iterable[HeldTuple]) -> Root:
    """The root of what is anchored to all of these; each message once. It is as new as the newest of them."""
    members = [*members]
    roots = tuple(dict.fromkeys(root for member in members for root in roots_of(member.root)))
    whole: Root = roots[0] if len(roots) == 1 else roots or UNTRACKED
    made = max((number for member in members if (number := made_of(member.root)) is not None), default=None)
    return whole if made is None else carrier(plain_root(whole), made)


def _frame_of(origin: _Origin) -> Frame:
    values, roots, ends = join_segments([(member.root, [member.value]) for member in origin.members])
    return Frame(origin.task, origin.component, origin.stream, values, roots, ends, origin.id)


class HolderSession:
    """What one call of a holder comes to: what it emits and settles is gathered until `end`.

    Args:
        holdings: of the task.
        fail: of the task.
        streams: type of a value → stream that it is emitted on.
    """

    def __init__(self, holdings: Holdings, fail: FailureMaker, streams: Mapping[type, str]) -> None:
        self.worked = Worked()
        self._holdings = holdings
        self._fail = fail
        self._streams = streams
        self._pieces: dict[str, list[tuple[Root, list[Any]]]] = {}  # by stream: (root, values)
        self._settled: list[HeldTuple] = []

    def emit(self, root: Root, value: Any) -> None:
        """Emit a value, of a type that has a stream."""
        self._pieces.setdefault(self._streams[type(value)], []).append((root, [value]))

    def settle(self, members: Iterable[HeldTuple]) -> None:
        """These are no longer needed: they are acked, but for messages that failed."""
        self._settled += members

    def blame(self, root: Root, shown: object, error: BaseException) -> None:
        """Fail these messages; `shown` is what the failure names as the failing tuple."""
        self._fail.blame(self.worked, root, shown, error)

    def end(self) -> Worked:
        """All that came of it. What was emitted for messages that failed in this session is left out."""
        worked = self.worked
        self._holdings.settle(self._settled, worked)
        for stream, emitted in self._pieces.items():
            values, roots, ends = join_segments([one for one in emitted if not all_failed(one[0], worked.failures)])
            if values:
                worked.outputs.append(Output(stream, values, roots, ends))
        return worked
