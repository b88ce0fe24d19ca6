"""Sources that are read where the work is: what a `SplitSpout` or a `LeaseSpout` must do; what a `Split` or `Lease` is.

Owns the contract between such sources and the runtimes, and the adapters that make them ordinary spouts where all is
read in one place. Knows neither files, brokers nor Spark.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from tupletree.errors import ConnectorError, Finding, SourceChangedError, TupletreeError, UnusableDataError
from tupletree.ids import MessageId
from tupletree.texts import counted, encodable, marked_text, restored, reversible, unmarked_text
from tupletree.topology.components import AsyncSpout, Emit, Reject, Spout

T = TypeVar("T")

NEXT_ROWS = 1000
NEXT_BYTES = 16 * 1024 * 1024
"""What `next` plans at a time."""


class Split(msgspec.Struct, array_like=True, frozen=True):
    """A piece of a source: a number of consecutive rows, and how to read them.

    It travels through the log of its epoch and to the worker that reads it.

    Attributes:
        rows: how many messages it has, exactly; at least 1.
        first: the number of its first row in the source.
        source: what the ids of its messages begin with; None: an id is the row's number alone.
        data: what `SplitSpout.read` needs besides, JSON-compatible.
        size_bytes: about how much there is to read; counts against `epoch_max_bytes`.
        series: comes between source and number in the ids, where one source has several rows of the same number.
    """

    rows: int
    first: int = 0
    source: str | None = None
    data: Any = None
    size_bytes: int = 0
    series: int | str | None = None

    def message_id(self, index: int) -> MessageId:
        """The id of its row `index` (0-based): the same in every process and run.

        >>> Split(3, first=10, source="a.log").message_id(2)
        ('a.log', 12)
        """
        number = self.first + index
        if self.series is not None:
            return (unmarked_text(self.source or ""), self.series, number)
        return number if self.source is None else (unmarked_text(self.source), number)


class SplitSpout(Spout[T]):
    """A spout whose rows can be read again at any time, and by other processes than the one that plans them.

    The runtime asks it in the driver which pieces come next (`plan`), and has each of them `read` somewhere: on Spark
    by a worker, which gives the rows to bolts at once, so that they never pass through the driver. Rows of a message
    that failed are read once more, to be tried again.

    `open`, `plan`, `snapshot`, `restore`, `activate`, `deactivate` and `close` are called as `Spout` says, with `plan`
    in the place of `next`: for one task one after the other, by one thread. `read` is called on any copy of the object,
    ones that were sent elsewhere and never opened too, and while other methods run: it may use only what the
    constructor was given and the split, and must leave the object as it is. Everything the constructor keeps must be
    picklable.

    It has a position: `snapshot` and `restore` must be written. `ack` is never called: what was read can always be read
    again, so nothing has to be released. `fail` is called for messages that are dead.
    """

    @abstractmethod
    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        """Say which pieces come next, together of at most `max_rows` rows and about `max_bytes`.

        Between them they have at least one row, however long it is. None: there is nothing now. From here on the
        position (`snapshot`) is behind them.

        Raises:
            EndOfInput: there will be no more messages.
        """

    @abstractmethod
    def read(self, split: Split) -> Iterable[T | Reject]:
        """Give the rows of a piece that `plan` named, in order: the same ones every time.

        A row that cannot be turned into a value is a `Reject` with the row's id.

        Raises:
            SourceChangedError: they no longer exist, or have changed: names the place and the way out.
            ConnectorError, OSError: they cannot be read now; other errors are mistakes, which are not waited for.
        """

    def next(self) -> Sequence[Emit[T] | Reject] | None:
        """Plan and read here: for runtimes that read nowhere else."""
        splits = self.plan(NEXT_ROWS, NEXT_BYTES)
        if splits is None:
            return None
        given: list[Emit[T] | Reject] = []
        for split in splits:
            given += [
                row if isinstance(row, Reject) else Emit(row, split.message_id(index))
                for index, row in enumerate(read_split(self, split))
            ]
        return given


def storable_split(split: Split) -> Split:
    """The split as it can be encoded, for any text in it; `read_split` and `message_id` undo that."""
    source = None if split.source is None else marked_text(split.source)
    data = reversible(split.data)
    return split if source == split.source and data is split.data else replace(split, source=source, data=data)


def _as_planned(split: Split) -> Split:
    """Undo `storable_split`."""
    source = None if split.source is None else unmarked_text(split.source)
    data = restored(split.data)
    return split if source == split.source and data is split.data else replace(split, source=source, data=data)


def read_split(spout: SplitSpout[Any], split: Split) -> Iterator[Any]:
    """The rows of a split, which are as many as were planned.

    Raises:
        SourceChangedError: there are more or fewer.
        ConnectorError: an outage, where `read` raised OSError.
        UnusableDataError: it raised something else that is no error of ours: waiting does not help.
    """
    count = 0
    split = _as_planned(split)
    try:
        for row in spout.read(split):
            count += 1
            if count > split.rows:
                break
            yield row
    except TupletreeError:
        raise
    except Exception as error:
        kind = ConnectorError if isinstance(error, OSError) else UnusableDataError
        raise kind(
            "a piece of a source cannot be read",
            where=_place_of(split),
            got=f"{type(error).__name__}: {error}",
            next_step="fix the source, and run again: it goes on with this piece",
        ) from error
    if count != split.rows:
        raise SourceChangedError(
            "a piece of a source is not as it was when it was planned",
            where=_place_of(split),
            got=f"more than {counted(split.rows, 'row')}" if count > split.rows else counted(count, "row"),
            expected=counted(split.rows, "row"),
            next_step="bring back what was there, or start with a fresh --state-dir",
        )


def place_of(split: Split) -> str:
    """Where a split is, in words; of one as `storable_split` made it."""
    return _place_of(_as_planned(split))


def _place_of(split: Split) -> str:
    rows = f"rows {split.first} to {split.first + split.rows - 1}"
    return rows if split.source is None else f"{encodable(split.source)}, {rows}"


def split_faults(spout: SplitSpout[Any], replay: str, place: str) -> Iterator[Finding]:
    """What a spout of this kind must not be."""
    cls = type(spout)
    for name in ("plan", "read"):
        if getattr(cls, name) is getattr(SplitSpout, name):
            yield Finding(f"the spout has no `{name}`", place, next_step=f"write `def {name}`: see SplitSpout")
    if cls.ack is not Spout.ack:
        yield Finding(
            "a SplitSpout hears no `ack`",
            place,
            got=f"{cls.__qualname__}.ack",
            next_step="derive from Spout, whose messages pass through the driver",
        )
    if cls.snapshot is Spout.snapshot or cls.restore is Spout.restore:
        yield Finding(
            "a SplitSpout needs a position",
            place,
            expected="`snapshot` and `restore`",
            next_step="say after which piece `plan` goes on",
        )
    if replay == "source":
        yield Finding(
            "a SplitSpout cannot emit a message again by itself", place, got="replay='source'", expected="'runtime'"
        )


class Lease(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One delivery of a message: what the driver has of it, while its value stays with the executors.

    Attributes:
        message_id: what the source calls the message, the same at each delivery.
        handle: by which the source is told what became of it, over any connection.
        deliveries: how often it was delivered, this time included.
        published_s: Unix time when it came to the source; 0 where that is not known.
    """

    message_id: str
    handle: str
    deliveries: int = 1
    published_s: float = 0.0


class LeaseReader(Generic[T]):
    """What executors call. On any copy of the object, also one that was sent elsewhere and never opened.

    Everything that the constructor keeps must be picklable, also of an object that was opened.
    """

    @abstractmethod
    def take(self, max_messages: int, max_bytes: int) -> Sequence[tuple[Lease, bytes]]:
        """Lease messages, each with what `read` makes its value of; returns at once when there are none.

        The runtime makes them durable before they are worked. If it cannot, nobody tells the source anything about
        them: it must deliver them again when their leases end.

        Args:
            max_messages: at most so many.
            max_bytes: together about so many; the first is taken however long it is.

        Raises:
            ConnectorError: the source is not available.
        """

    @abstractmethod
    def read(self, taken: bytes) -> T | Reject:
        """The value of a message that was taken; a `Reject`, with its id, if it is none."""

    def payload(self, taken: bytes) -> Any:
        """What is shown of a message that `read` does not survive, JSON-compatible or bytes. It must survive that."""
        return taken


class LeaseSpout(Spout[T], LeaseReader[T]):
    """A spout whose messages are taken by executors, and do not pass through the driver.

    The runtime asks in the driver how many there are (`plan`), has executors `take` them, and shows the driver's object
    the leases (`accept`). `ack`, `fail` and `flush` are called in the driver, as `Spout` says; so are `activate` and
    the others. It extends the leases of what it has accepted, has no position, and delivers a message again that it
    was told nothing of.
    """

    @abstractmethod
    def plan(self, max_messages: int) -> int:
        """Say how many messages may be there to be taken now, at most `max_messages`.

        Raises:
            EndOfInput: there will be no more messages.
            ConnectorError: the source is not available.
        """

    @abstractmethod
    def accept(self, leases: Sequence[Lease]) -> Sequence[int]:
        """Note what executors have taken; returns the places of those that are to be worked.

        The others are out already, under an older lease, or are over: the source is told so with the new one.
        """

    @abstractmethod
    def not_told(self) -> Collection[MessageId]:
        """See `AsyncSpout.not_told`: messages whose leases were over before `ack` or `fail`, until they are told."""

    def next(self) -> Sequence[Emit[T] | Reject] | None:
        """Take and read here: for runtimes that read nowhere else."""
        count = self.plan(NEXT_ROWS)
        taken = self.take(count, NEXT_BYTES) if count else ()
        places = self.accept([lease for lease, _ in taken]) if taken else ()
        read = [(taken[at][0].message_id, self.read(taken[at][1])) for at in places]
        return [value if isinstance(value, Reject) else Emit(value, message_id) for message_id, value in read] or None


class AsyncLeaseSpout(AsyncSpout[T], LeaseReader[T]):
    """The same as `LeaseSpout`, for a spout that is async. Where nothing calls `plan`, `next` gives the messages."""

    @abstractmethod
    async def plan(self, max_messages: int) -> int:
        """See `LeaseSpout.plan`."""

    @abstractmethod
    async def accept(self, leases: Sequence[Lease]) -> Sequence[int]:
        """See `LeaseSpout.accept`."""


def is_read_on_executors(body: Any) -> bool:
    """Whether executors read what this spout gives."""
    return isinstance(body, (SplitSpout, LeaseReader))
