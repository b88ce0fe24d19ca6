"""The wire between stages: one Spark row is one frame, or one report that passes through to settle.

Owns the row schema and how frames, ledgers, failures, outputs and state candidates are laid out in it. A row is
(place, kind, head, body): the partition it must go to next, what it is, a small msgpack head, and bytes.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from tupletree.data.codec import ArrowCodec, EncodeError
from tupletree.data.columns import Anchors, ArrowColumns
from tupletree.data.frames import ColumnFrame, Frame, Root, all_failed, join_segments, roots_of
from tupletree.errors import (
    CheckpointError,
    ConnectorError,
    SourceChangedError,
    TupletreeError,
    UnusableDataError,
    is_outage,
)
from tupletree.state.versions import StateFile
from tupletree.topology.splits import Split
from tupletree.tracking.ledger import Entries
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.work_done import WorkDone

FRAME: Final = 0
LEDGER: Final = 1
TOUCHED: Final = 2  # roots that reached a stateful bolt
FAILURES: Final = 3
OUTPUT: Final = 4
STATE: Final = 5
STATS: Final = 6
KEPT: Final = 7  # what tasks keep for later epochs, and the XOR of its edges, root by root
WAKE: Final = 8  # says to each stage which place its partition is; carries nothing
SPLIT: Final = 10  # a piece of a source that this partition is to read
UNREADABLE: Final = 11  # why a piece could not be read
UNSTORABLE: Final = 9  # a component whose state cannot be stored as this run left it
ARRIVED: Final = 12  # which messages had which keys at a component with an ordered input
SEGMENT: Final = 14  # messages in a segment that this partition is to read
BEHIND: Final = 13  # roots that such a component did not work on, because they are behind something that waits

FRAME_BYTES = 16 * 1024 * 1024
"""A longer frame is halved: Spark takes rows of up to 2 GB, but holds several of them at a time."""

FRAME_TUPLES = 65_536
"""A frame of more tuples is halved before it is encoded: encoded as a whole it may not fit into memory."""

SEVERAL = 64
LONG_BYTES = 16 * 1024
"""How a value is measured: its length counts if it is long, else what it adds to a frame."""

EPOCH_BITS = 31
SPLIT_BITS = 20
"""See `first_number`."""

U64 = np.ndarray[Any, np.dtype[np.uint64]]
NO_ROOTS: U64 = np.empty(0, np.uint64)
Arrivals = tuple[U64, U64]
"""(root, hash of a key) of each message and key that came to an ordered input, as two arrays."""
Row = tuple[int, int, Any, Any]
"""(place, kind, head, body); head and body are bytes or buffers."""


class FrameHead(msgspec.Struct, array_like=True):
    """A frame without its values. `source` and `sequence` order the frames of one task within a run.

    `ends` is empty where every segment holds one tuple, `widths` where every segment has one root. `made` holds the
    tuples' numbers in the order of making, or the first of them where they are consecutive.
    """

    task: int
    component: str
    stream: str
    id: int
    source: int
    sequence: int
    roots: bytes
    ends: bytes = b""
    widths: bytes = b""
    made: bytes = b""


class PlannedSplit(msgspec.Struct, array_like=True, frozen=True):
    """A piece of a source in an epoch: an entry of the log's header, and the head of a `SPLIT` row.

    Attributes:
        component: the spout whose `read` reads it.
        task: number of the spout task that planned it.
        place: the partition that reads it, among those that the epoch was cut for.
        key: row i's root is `rows.root_ids(key + i)`; 0: untracked.
        split: what the spout planned.
        ordinal: its number in the epoch.
    """

    component: str
    task: int
    place: int
    key: int
    split: Split
    ordinal: int


_UNREADABLE: Final[dict[str, type[TupletreeError]]] = {
    one.__name__: one for one in (SourceChangedError, CheckpointError, UnusableDataError)
}


class Unreadable(msgspec.Struct, array_like=True):
    """An error of a source as text: a worker's exceptions cannot be sent. Make it with `of`.

    `kind` is the name of its class, empty for an outage; `component` that of the spout.
    """

    kind: str
    what: str
    where: str
    got: str
    expected: str
    next_step: str
    component: str = ""

    @classmethod
    def of(cls, error: TupletreeError, component: str) -> Unreadable:
        """In a worker, of what a spout raised."""
        first = error.findings[0]
        where = f"spout {component!r}, {first.where}" if first.where else f"spout {component!r}"
        otherwise = "" if is_outage(error) else UnusableDataError.__name__
        kind = next((name for name, one in _UNREADABLE.items() if isinstance(error, one)), otherwise)
        return cls(kind, first.what, where, first.got, first.expected, first.next_step, component)

    def error(self) -> TupletreeError:
        """The error to raise in the driver: an outage only if it was one."""
        made = _UNREADABLE.get(self.kind, ConnectorError)
        return made(self.what, where=self.where, got=self.got, expected=self.expected, next_step=self.next_step)


class FailureReport(msgspec.Struct, array_like=True):
    """Roots that failed for one reason in one stage."""

    roots: list[int]
    failure: Failure


class OutputReport(msgspec.Struct, array_like=True):
    """A candidate file of a sink task, and the sidecar with the roots of its rows.

    `part`: which of the task's; `folder`: where below the sink's folder it is published.
    """

    sink: str
    task_index: int
    candidate: str
    sidecar: str
    rows: int
    part: int = 0
    folder: str = ""


class StateReport(msgspec.Struct, array_like=True):
    """A candidate state file of a task, the files that it replaces, and how much was read."""

    component: str
    task_index: int
    file: StateFile
    merged: list[str]
    bytes_read: int
    rows_read: int


class StatsReport(msgspec.Struct, array_like=True):
    """What a stage did in one partition.

    Attributes:
        worked: component → tuples worked on.
        late_verdicts: second verdicts on settled tuples.
        extended: roots whose timeout was renewed.
        late: component → tuples that came too late for its windows or joins.
        watermarks: task → how far event time has come there, microseconds since the Unix epoch.
        read: the splits and segments that were read, by their ordinals.
        strays: tuples of no message that failed.
        outages: component → roots that it could not work on because of an outage, and what its last call raised.
        work: bolt → tuples that its calls took, and how long.
        calls_again: bolt → calls that raised and were made again: how many passed, and how many raised to the end.
    """

    worked: dict[str, int]
    late_verdicts: int = 0
    extended: list[int] = []
    late: dict[str, int] = {}
    watermarks: dict[int, int] = {}
    read: list[int] = []
    strays: int = 0
    outages: dict[str, tuple[set[int], str]] = {}
    work: dict[str, WorkDone] = {}
    calls_again: dict[str, tuple[int, int]] = {}


encode_head = msgspec.msgpack.Encoder().encode
"""The head of a row that leads to tasks: a `FrameHead`, `PlannedSplit` or `PlannedSegment`."""

decode_head = msgspec.msgpack.Decoder(FrameHead).decode
decode_split = msgspec.msgpack.Decoder(PlannedSplit).decode


_ROW = struct.Struct("<iiI")  # place, kind, length of the head


def pack_row(row: Row) -> bytes:
    """A row as bytes, for the way between stages."""
    place, kind, head, body = row
    return b"".join((_ROW.pack(place, kind, len(head)), head, body))


def unpack_row(data: bytes) -> Row:
    """Undo `pack_row`; head and body share the bytes with it."""
    place, kind, length = _ROW.unpack_from(data)
    view = memoryview(data)
    return place, kind, view[_ROW.size : _ROW.size + length], view[_ROW.size + length :]


def length_of(codec: ArrowCodec[Any], value: object) -> float:
    """About how many bytes a value takes in a frame; 0 for one that cannot be encoded."""
    try:
        alone = len(codec.encode([value]))
        if alone > LONG_BYTES:
            return float(alone)
        # A frame of one tuple is mostly fixed cost.
        return max(0.0, (len(codec.encode([value] * SEVERAL)) - alone) / (SEVERAL - 1))
    except EncodeError:
        return 0.0


def halves(frame: Frame) -> tuple[Frame, Frame]:
    """A frame of several tuples as two without ids. A segment that is cut is in both."""
    middle = frame.size // 2
    if isinstance(frame, ColumnFrame):
        parts = [frame.columns.slice(0, middle), frame.columns.slice(middle, frame.size)]
        left, right = (ColumnFrame(frame.task, frame.component, frame.stream, part, 0, frame.source) for part in parts)
        return left, right
    cut = bisect_left(frame.ends, middle)
    is_cut_within = frame.ends[cut] != middle
    later = cut if is_cut_within else cut + 1
    ends = [*frame.ends[:cut], middle]
    rest = [end - middle for end in frame.ends[later:]]
    first = Frame(frame.task, frame.component, frame.stream, frame.values[:middle], frame.roots[: cut + 1], ends, 0)
    second = Frame(frame.task, frame.component, frame.stream, frame.values[middle:], frame.roots[later:], rest, 0)
    first.source = second.source = frame.source
    if frame.made is not None:
        first.made, second.made = frame.made[:middle], frame.made[middle:]
    return first, second


def too_long_text(length: int, longest: int) -> str:
    """What is wrong with a tuple of so many bytes."""
    return (
        f"longer than message_max_bytes: {length:,} bytes encoded, expected at most {longest:,}; raise the option and "
        "the memory of Spark's driver and executors, or send a reference to where the content is"
    )


def pack_layout(roots: Sequence[Root], ends: Sequence[int]) -> tuple[bytes, bytes, bytes]:
    """(roots, ends, widths) of a frame's segments as bytes."""
    ends_bytes = b"" if len(ends) == ends[-1] else array("I", ends).tobytes()
    try:
        return array("Q", cast("Sequence[int]", roots)).tobytes(), ends_bytes, b""
    except TypeError:  # some segment has several roots
        groups = [root if isinstance(root, tuple) else (root,) for root in roots]
        flat = [one for group in groups for one in group]
        return array("Q", flat).tobytes(), ends_bytes, array("I", map(len, groups)).tobytes()


def unpack_layout(roots: bytes, ends: bytes, widths: bytes) -> tuple[list[Root], list[int]]:
    """Undo `pack_layout`."""
    flat = array("Q", roots).tolist()
    segments: list[Root] = [*flat]
    if widths:
        segments = []
        start = 0
        for width in array("I", widths):
            segments.append(flat[start] if width == 1 else tuple(flat[start : start + width]))
            start += width
    return segments, array("I", ends).tolist() if ends else list(range(1, len(segments) + 1))


def pack_anchors(anchors: Anchors) -> tuple[bytes, bytes, bytes]:
    """As `pack_layout`."""
    ends, widths = anchors.ends, anchors.widths
    return (
        anchors.roots.tobytes(),
        b"" if len(ends) == ends[-1] else ends.astype(np.uint32).tobytes(),
        b"" if widths is None else widths.astype(np.uint32).tobytes(),
    )


def unpack_anchors(roots: bytes, ends: bytes, widths: bytes) -> Anchors:
    """Undo `pack_layout` or `pack_anchors`."""
    flat = np.frombuffer(roots, np.uint64)
    each = np.frombuffer(widths, np.uint32).astype(np.int64) if widths else None
    segments = len(flat) if each is None else len(each)
    stops = np.frombuffer(ends, np.uint32).astype(np.int64) if ends else np.arange(1, segments + 1)
    return Anchors(flat, stops, each)


FailRoot = Callable[[Root, object, "BaseException | str"], None]
"""(root, tuple, error): record that a tuple failed all its roots."""


def encode_frame(
    frame: Frame, codec: ArrowCodec[Any], place: int, source: int, sequence: int, fail: FailRoot
) -> Row | None:
    """A frame as a row.

    Tuples that cannot be encoded fail their roots and are removed from `frame`; None if nothing is left of it.
    """
    if isinstance(frame, ColumnFrame):
        body = codec.pack(frame.columns.batch)
        roots, ends, widths = pack_anchors(frame.columns.anchors)
    else:
        try:
            body = codec.encode(frame.values)
        except EncodeError:
            _drop_unencodable(frame, codec, fail)
            if not frame.values:
                return None
            body = codec.encode(frame.values)
        roots, ends, widths = pack_layout(frame.roots, frame.ends)
    made = b"" if frame.made is None else _pack_made(frame.made)
    head = FrameHead(frame.task, frame.component, frame.stream, frame.id, source, sequence, roots, ends, widths, made)
    return place, FRAME, encode_head(head), body


def _pack_made(made: Sequence[int]) -> bytes:
    return array("q", made[:1] if isinstance(made, range) else made).tobytes()


def _unpack_made(made: bytes, count: int) -> Sequence[int] | None:
    if not made:
        return None
    numbers = array("q", made)
    return range(numbers[0], numbers[0] + count) if len(numbers) == 1 else numbers.tolist()


def first_number(epoch: int, ordinal: int = 0) -> int:
    """The first number of an epoch: each has 2**31, of which each piece of a source without message ids has 2**20.

    A number says when a value was made by the run that counts: in which epoch, and where in its task's work there. So
    all that one epoch makes is newer than what any earlier one made, in any task.
    """
    return 1 + (epoch << EPOCH_BITS) + (ordinal << SPLIT_BITS)


def _drop_unencodable(frame: Frame, codec: ArrowCodec[Any], fail: FailRoot) -> None:
    errors = dict(codec.check_each(frame.values))
    drop_positions(frame, errors, fail)


def drop_positions(frame: Frame, errors: Mapping[int, BaseException | str], fail: FailRoot) -> None:
    """Remove the tuples at these positions, and all others of their roots, from a frame; the roots fail."""
    bad: set[int] = set()
    pieces: list[tuple[Root, list[int]]] = []
    start = 0
    for root, end in zip(frame.roots, frame.ends, strict=True):
        kept: list[int] = []
        for position in range(start, end):
            if position in errors:
                fail(root, frame.values[position], errors[position])
                bad.update(roots_of(root))
            else:
                kept.append(position)
        if kept:
            pieces.append((root, kept))
        start = end
    alive = [(root, kept) for root, kept in pieces if not all_failed(root, bad)]
    positions, frame.roots, frame.ends = join_segments(alive)
    frame.values = [frame.values[position] for position in positions]
    if frame.made is not None:
        frame.made = [frame.made[position] for position in positions]


def decode_frame(head: FrameHead, body: Any, codec: ArrowCodec[Any]) -> Frame:
    """A row back as a frame."""
    roots, ends = unpack_layout(head.roots, head.ends, head.widths)
    values = codec.decode(body)
    made = _unpack_made(head.made, len(values))
    return Frame(head.task, head.component, head.stream, values, roots, ends, head.id, made, head.source)


def decode_columns(head: FrameHead, body: Any, codec: ArrowCodec[Any]) -> ColumnFrame:
    """A row back as a frame of columns."""
    columns = ArrowColumns(codec.unpack(body), codec, unpack_anchors(head.roots, head.ends, head.widths))
    return ColumnFrame(head.task, head.component, head.stream, columns, head.id, head.source)


def pack_roots(roots: Iterable[int]) -> bytes:
    """Root ids as little-endian unsigned 64-bit integers."""
    return array("Q", roots).tobytes()


def unpack_roots(data: bytes | memoryview) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Undo `pack_roots`, without a copy."""
    return np.frombuffer(data, dtype=np.uint64)


def root_array(roots: Sequence[Root]) -> U64:
    """A frame's roots as one array; tuples of roots are flattened."""
    try:
        return np.frombuffer(array("Q", cast("Sequence[int]", roots)), dtype=np.uint64)
    except TypeError:  # some segment has several roots
        return np.array([one for root in roots for one in roots_of(root)], dtype=np.uint64)


def frame_roots(frame: Frame) -> U64:
    """The roots of a frame's tuples, as one array."""
    return frame.columns.anchors.roots if isinstance(frame, ColumnFrame) else root_array(frame.roots)


def pack_entries(entries: Entries) -> bytes:
    """Ledger entries: all roots, then all XORs."""
    roots, xor = entries
    return roots.tobytes() + xor.tobytes()


def unpack_entries(data: bytes | memoryview) -> Entries:
    """Undo `pack_entries`."""
    both = np.frombuffer(data, dtype=np.uint64)
    half = len(both) // 2
    return both[:half], both[half:]
