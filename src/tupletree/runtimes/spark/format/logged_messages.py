"""Logged messages: the driver knows each of them. The log of their epoch has them as columns.

Values are in its frames, if they passed through the driver, and in segments, if executors took them from a broker.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import msgspec
import numpy as np

from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import roots_of
from tupletree.errors import InternalError
from tupletree.ids import MessageId
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, Messages, id_from_msgpack
from tupletree.runtimes.spark.format.epoch_messages import (
    ELSEWHERE,
    I64,
    NOT_LOGGED,
    U64,
    EpochMessage,
    EpochMessages,
    StoredPayload,
)
from tupletree.runtimes.spark.format.segments import SegmentReader, SegmentRow
from tupletree.tracking.ledger import Entries, combine
from tupletree.tracking.message_ids import id_from_plain

Codecs = Mapping[tuple[str, str], ArrowCodec[Any]]

_messages = msgspec.msgpack.Decoder(Messages)


class LoggedMessages(EpochMessages):
    """See the module docstring.

    Args:
        columns: the messages.
        header: of the log; None where no run works on them.
        openings: see `EpochMessages`; None: they are found in the frames.
        frames: None where nobody asks for their values: while they are in the driver, `Pending` has these.
        segments: reads values that are in segments; None where nobody asks for them.
    """

    is_counted: ClassVar[bool] = False

    def __init__(
        self,
        columns: Messages,
        header: EpochHeader | None = None,
        openings: Entries | None = None,
        frames: LogFrames | None = None,
        segments: SegmentReader | None = None,
    ) -> None:
        self.roots = np.frombuffer(columns.roots, dtype=np.uint64)
        self._columns = columns
        self._header = header
        self._openings = openings
        self._frames = frames
        self._segment_reader = segments
        self._segments = header.segments if header is not None else []
        self._id_from = id_from_plain if columns.ids_are_plain else id_from_msgpack
        self._stored_ids: dict[int, Any] | None = None
        self._by_root: np.ndarray[Any, np.dtype[np.intp]] | None = None

    @classmethod
    def of_log(
        cls, header: EpochHeader, body: memoryview, codecs: Codecs, segments: SegmentReader | None = None
    ) -> LoggedMessages:
        """Those of an epoch's log: its header and sections."""
        columns = _messages.decode(body[: header.messages_length])
        return cls(columns, header, frames=LogFrames(header, body, codecs), segments=segments)

    @classmethod
    def of_section(cls, section: bytes | memoryview) -> LoggedMessages:
        """Those of the first section of a log, without their values."""
        return cls(_messages.decode(section) if section else Messages())

    @property
    def openings(self) -> Entries:
        """See `EpochMessages`. Of those in segments the stage that reads them makes the edges."""
        if self._openings is None:
            assert self._frames is not None, "made for those who look, and given to a run"
            self._openings = self._frames.openings(self.roots)
        return self._openings

    def has_work(self, left_out: Collection[int]) -> bool:
        if self._header is None or not (self._header.frames or self._segments):
            return False
        return bool(self._header.untracked) or any(root not in left_out for root in self.roots.tolist())

    def worked(self, left_out: Collection[int]) -> list[int]:
        roots, xor = self.openings
        without_edges = set(roots[xor == 0].tolist()).difference(self._taken)
        return [root for root in self.roots.tolist() if root not in left_out and root not in without_edges]

    @property
    def by_task(self) -> Mapping[int, int]:
        return Counter(array("I", self._columns.tasks))

    def __iter__(self) -> Iterator[EpochMessage]:
        columns = self._columns
        for task, stored, root, attempt, first_s, made in zip(
            array("I", columns.tasks),
            columns.ids,
            array("Q", columns.roots),
            array("I", columns.attempts),
            array("d", columns.first_emitted_s),
            self._numbers.tolist(),
            strict=True,
        ):
            yield EpochMessage(task, self._id_from(stored), root, attempt, first_s, made)

    @cached_property
    def _numbers(self) -> I64:
        """The number of each message.

        A log of a topology that asked for none has none. After an upgrade that asks for them it is as if it had: those
        of its epoch, in the order of first emission, behind the rows that were planned.
        """
        count = len(self._columns.ids)
        made = np.frombuffer(self._columns.made, dtype=np.int64) if self._columns.made else np.zeros(count, np.int64)
        if self._header is None or made.all():
            return made
        without = np.flatnonzero(made == 0)
        order = np.argsort(np.frombuffer(self._columns.first_emitted_s, dtype=np.float64)[without], kind="stable")
        planned = sum(one.split.rows for one in self._header.splits)
        start = max(wire.first_number(self._header.epoch) + planned, int(made.max(initial=0)) + 1)
        numbers = made.copy()
        numbers[without[order]] = start + np.arange(len(without))
        return numbers

    def among(self, roots: Collection[int]) -> list[int]:
        if not roots:
            return []
        wanted = {*roots}
        return [root for root in self.roots.tolist() if root in wanted]

    @cached_property
    def _taken(self) -> frozenset[int]:
        """Roots whose values are in segments."""
        return frozenset(root for one in self._segments for root in array("Q", one.roots))

    def check_read(self, read: Collection[int]) -> None:
        """See `EpochMessages`: a frame that no stage took leaves its roots open, a segment would not."""
        for one in self._segments:
            if one.ordinal not in read:
                raise InternalError("a segment was not read", where=one.component, got=one.file)

    def check_readable(self) -> None:
        """See `EpochMessages`: frames can always be read."""
        for one in self._segments:
            assert self._segment_reader is not None, "made without a way to read"
            self._segment_reader.check(one)

    def id_of(self, root: int) -> MessageId | None:
        if self._stored_ids is None:
            self._stored_ids = dict(zip(self.roots.tolist(), self._columns.ids, strict=True))
        return self._id_from(self._stored_ids[root]) if root in self._stored_ids else None

    def places_of(self, roots: U64) -> tuple[I64, I64]:
        tasks, numbers = np.full(len(roots), ELSEWHERE, np.int64), np.zeros(len(roots), np.int64)
        if len(self.roots):
            if self._by_root is None:
                self._by_root = np.argsort(self.roots, kind="stable")
            order = self._by_root
            at = np.minimum(np.searchsorted(self.roots, roots, sorter=order), len(order) - 1)
            found = self.roots[order[at]] == roots
            tasks[found] = np.frombuffer(self._columns.tasks, dtype=np.uint32)[order[at[found]]]
            numbers[found] = self._numbers[order[at[found]]]
        return tasks, numbers

    def find(self, roots: Collection[int]) -> list[tuple[EpochMessage, Any]]:
        if not roots:
            return []
        return self._with_values({*roots}, self.apart(roots))

    def logged(self) -> list[tuple[EpochMessage, Any]]:
        """See `EpochMessages`: those in segments have the place of their value."""
        places: dict[int, Any] = {
            root: SegmentRow(one.file, row, 0)
            for one in self._segments
            for row, root in zip(array("I", one.rows), array("Q", one.roots), strict=True)
        }
        return self._with_values({*self.roots.tolist()}, places)

    def _with_values(self, wanted: set[int], values: dict[int, Any]) -> list[tuple[EpochMessage, Any]]:
        """These messages, with these values or those that are in frames."""
        if not values.keys() >= wanted:
            assert self._frames is not None, "made without values, and asked for them"
            values = {**self._frames.values(), **values}
        return [(one, values.get(one.root, NOT_LOGGED)) for one in self if one.root in wanted]

    def for_runs(self) -> LoggedMessages:
        return LoggedMessages(self._columns, self._header, self.openings, segments=self._segment_reader)

    def apart(self, roots: Collection[int], unread: Collection[int] = ()) -> dict[int, Any]:
        """See `EpochMessages`: those in segments."""
        if not self._segments or not roots:
            return {}
        assert self._segment_reader is not None, "made without a way to read"
        return self._segment_reader.values(self._segments, roots, unread)


class LogFrames:
    """The frames in an epoch's log, and the messages that are in none because they failed before any bolt saw them.

    Args:
        header, body: of the log.
        codecs: of the streams of spouts.
    """

    def __init__(self, header: EpochHeader, body: memoryview, codecs: Codecs) -> None:
        self._header = header
        self._body = body
        self._codecs = codecs

    def openings(self, roots: np.ndarray[Any, np.dtype[np.uint64]]) -> Entries:
        """See `openings_of`."""
        edges: list[int] = []
        edge_roots: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        for head, _ in self._each():
            segments, _ = wire.unpack_layout(head.roots, head.ends, head.widths)
            flat = dict.fromkeys(one for root in segments for one in roots_of(root))
            edges.append(head.id)
            edge_roots.append(np.array(list(flat), dtype=np.uint64))
        return openings_of(roots, edges, edge_roots)

    def values(self) -> dict[int, Any]:
        """Root → value, from the frames that carry it and from what could not be sent."""
        values: dict[int, Any] = {one.root: StoredPayload(one.payload) for one in self._header.unsendable}
        for head, body in self._each():
            codec = self._codecs.get((head.component, head.stream))
            if codec is None:
                continue  # of a spout that was dropped
            frame = wire.decode_frame(head, body, codec)
            for root, found in frame.segments():
                for one in roots_of(root):  # a spout tuple has one root, or none
                    values.setdefault(one, found[0])
        return values

    def _each(self) -> Iterator[tuple[wire.FrameHead, memoryview]]:
        for _, offset, head_length, body_length in self._header.frames:
            start = offset + head_length
            yield wire.decode_head(self._body[offset:start]), self._body[start : start + body_length]


def only_of(section: bytes | memoryview, tasks: Collection[int]) -> tuple[bytes, int]:
    """The first section of an epoch log with the messages of these spout tasks alone, and how many are left out."""
    columns = _messages.decode(section)
    keep = [task in tasks for task in array("I", columns.tasks)]
    left = Messages(
        tasks=array("I", compress(array("I", columns.tasks), keep)).tobytes(),
        ids=list(compress(columns.ids, keep)),
        ids_are_plain=columns.ids_are_plain,
        roots=array("Q", compress(array("Q", columns.roots), keep)).tobytes(),
        attempts=array("I", compress(array("I", columns.attempts), keep)).tobytes(),
        first_emitted_s=array("d", compress(array("d", columns.first_emitted_s), keep)).tobytes(),
        made=array("q", compress(array("q", columns.made), keep)).tobytes() if columns.made else b"",
    )
    return msgspec.msgpack.encode(left), keep.count(False)


def openings_of(
    roots: np.ndarray[Any, np.dtype[np.uint64]],
    edges: Sequence[int],
    edge_roots: Sequence[np.ndarray[Any, np.dtype[np.uint64]]],
) -> Entries:
    """The XOR of the first edges of every root. A root that went to no task has none: its tree is complete at once."""
    return combine([*edges, 0], [*edge_roots, roots])
