"""Carry-over files: frames that tasks keep for later epochs, in immutable files that a settle entry names.

Two kinds of frames are kept for a task. *Held*: the task has seen them, and its holder still holds them (`bolts.held`).
*Arriving*: another task emitted them along the back edge of a cycle, or their messages wait for another attempt; the
task has not seen them, and gets them like any other frame. Each partition of a stage writes one file per run, with a
part for each task whose kept frames changed; a version of a task's kept frames is a list of such parts: a base, then
deltas, keyed by frame id. Nothing here decides about messages.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tupletree.bolts.held import HeldFrame, Holder
from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import Frame, Root, fewer, join_segments, roots_of, segments_of
from tupletree.durable import pack, read_container, write_file
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.carryover import CarryOver, CarryOverPart, CarryOverReport
from tupletree.tasks.making import carried, released

MAX_PARTS = 32
"""Parts of one version: each may be a file to open."""

Codecs = Mapping[tuple[str, str], ArrowCodec[Any]]
Key = tuple[int, bool]
"""(frame id, whether it is arriving): a frame may be held for some of its roots and arriving for others."""


class _Placed(msgspec.Struct, array_like=True):
    offset: int
    head_length: int
    body_length: int
    since_s: float
    arrives: bool


class _Part(msgspec.Struct, array_like=True):
    """`memory` is the holder's, as msgpack; None where another task wrote the part."""

    component: str
    task_index: int
    is_base: bool
    gone: list[Key]
    frames: list[_Placed]
    memory: bytes | None


class _Header(msgspec.Struct):
    parts: list[_Part]


@dataclass
class _Stored:
    head: bytes
    body: Any
    since_s: float
    arrives: bool


class CarryOverFiles:
    """The carry-over of one attempt of a stage's partition: reads earlier files, and gathers its own parts."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self.name = name
        self._read: dict[str, tuple[_Header, memoryview]] = {}
        self._parts: list[_Part] = []
        self._sections: list[bytes] = []
        self._offset = 0
        self._carried: dict[tuple[str, int], list[wire.Row]] = {}
        self.reports: list[CarryOverReport] = []

    def part(self, part: CarryOverPart) -> tuple[_Part, memoryview]:
        """A part of an earlier epoch, verified. Raises CheckpointError."""
        if part.file not in self._read:
            self._read[part.file] = read_container(self._directory / part.file, _Header)
        header, body = self._read[part.file]
        return header.parts[part.number], body

    def carry(self, component: str, task_index: int, row: wire.Row) -> None:
        """Keep a frame that is to arrive at a task in the next epoch."""
        self._carried.setdefault((component, task_index), []).append(row)

    def add(
        self,
        component: str,
        task_index: int,
        frames: Iterable[_Stored],
        *,
        is_base: bool = False,
        gone: Collection[Key] = (),
        memory: bytes | None = None,
    ) -> CarryOverPart:
        """Add a part to this attempt's file."""
        placed: list[_Placed] = []
        for one in frames:
            body = bytes(one.body)
            placed.append(_Placed(self._offset, len(one.head), len(body), one.since_s, one.arrives))
            self._sections += [one.head, body]
            self._offset += len(one.head) + len(body)
        self._parts.append(_Part(component, task_index, is_base, [*gone], placed, memory))
        return CarryOverPart(self.name, len(self._parts) - 1, len(placed), is_base)

    def write(self) -> None:
        """Write the file, if there is anything to write."""
        for (component, task_index), rows in self._carried.items():
            part = self.add(component, task_index, [_Stored(head, body, 0.0, True) for _, _, head, body in rows])
            self.reports.append(CarryOverReport(component, task_index, part))
        if self._parts:
            write_file(self._directory / self.name, pack(_Header(self._parts), self._sections))


# More than 12 attributes: one list for each thing that a task may keep.
@dataclass
class TaskCarryOver:
    """One task's kept frames during one run.

    Make it with `of`; `split` says what the task gets, and `update` what is kept after it. `carries`: the task works on
    frames whose roots carry their numbers in the order of making (`tasks.making`); they are kept, too. `renamed`:
    earlier names of components → their names now. `inputs`: (component, stream) of each input. Frames of one that is no
    more are dropped without a word: a user has agreed to that, and `driver.dropped` has taken them out of their trees.
    """

    component: str
    task_id: int
    task_index: int
    files: CarryOverFiles
    codecs: Codecs
    version: CarryOver
    memory: bytes = b""
    carries: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    inputs: Container[tuple[str, str]] = ()
    _stored: dict[Key, _Stored] = field(default_factory=dict)
    _parked: list[tuple[Frame, float]] = field(default_factory=list)
    _waits: bool = False
    _before: dict[int, set[int]] = field(default_factory=dict)
    _shapes: dict[Key, tuple[int, list[Root]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        component: str,
        task_id: int,
        task_index: int,
        files: CarryOverFiles,
        codecs: Codecs,
        version: CarryOver | None,
    ) -> TaskCarryOver:
        """Read a version. Raises CheckpointError for a missing or damaged file."""
        keep = cls(component, task_id, task_index, files, codecs, version or CarryOver([]))
        for reference in keep.version.parts:
            part, body = files.part(reference)
            if part.is_base:
                keep._stored.clear()
            for key in part.gone:
                keep._stored.pop((key[0], key[1]), None)
            if part.memory is not None:
                keep.memory = part.memory
            for placed in part.frames:
                middle = placed.offset + placed.head_length
                head = bytes(body[placed.offset : middle])
                stored = _Stored(head, body[middle : middle + placed.body_length], placed.since_s, placed.arrives)
                keep._stored[wire.decode_head(head).id, placed.arrives] = stored
        return keep

    def split(self, gone: Collection[int], parked: Collection[int]) -> tuple[list[HeldFrame], list[Frame]]:
        """What the task gets: (held frames, arriving ones in the order of their emission).

        Held frames are whole: their holder must know what waits, and finds its marks by position (`Holder.restore`).

        Args:
            gone: roots that died: their arriving tuples are dropped, and tuples that they share with others are no
                longer withheld.
            parked: roots that wait for another attempt. A tuple that is to arrive waits while any of its roots does.
        """
        held: list[HeldFrame] = []
        arriving: list[tuple[int, int, Frame]] = []
        for key, stored in self._stored.items():
            head = wire.decode_head(stored.head)
            head.task = self.task_id
            head.component = self.renamed.get(head.component, head.component)
            source = head.component, head.stream
            if source not in self.inputs:
                continue
            frame = wire.decode_frame(head, stored.body, self.codecs[source])
            if self.carries:
                frame = carried(frame)
            self._shapes[key] = len(frame.values), list(frame.roots)
            live, waiting = _split(frame, gone, parked)
            for piece in (live, waiting):
                self._note(self._before, piece)
            self._waits = self._waits or bool(waiting.values)
            if not stored.arrives:
                if live.values or waiting.values:
                    held.append(HeldFrame(frame, stored.since_s))
                continue
            if waiting.values:
                self._parked.append((waiting, stored.since_s))
            if live.values:
                arriving.append((head.source, head.sequence, live))
        arriving.sort(key=lambda one: one[:2])
        return held, [frame for _, _, frame in arriving]

    def edges(self) -> dict[int, int]:
        """Root → the XOR of the edges that are kept, without those of `inputs`."""
        named: set[tuple[int, int]] = set()
        for stored in self._stored.values():
            head = wire.decode_head(stored.head)
            if (self.renamed.get(head.component, head.component), head.stream) not in self.inputs:
                named.update((head.id, root) for root in wire.unpack_roots(head.roots).tolist())
        found: dict[int, int] = {}
        for edge, root in named:
            found[root] = found.get(root, 0) ^ edge
        return found

    def tuples(self) -> dict[tuple[str, str], int]:
        """(component, stream) → tuples of it that are kept."""
        found: dict[tuple[str, str], int] = {}
        for stored in self._stored.values():
            head = wire.decode_head(stored.head)
            of = self.renamed.get(head.component, head.component), head.stream
            found[of] = found.get(of, 0) + wire.unpack_layout(head.roots, head.ends, head.widths)[1][-1]
        return found

    def restore(self, holder: Holder, held: list[HeldFrame], parked: Collection[int], gone: Collection[int]) -> None:
        """Restore a new task's holder with what `split` gave."""
        holder.restore(held, msgspec.msgpack.decode(self.memory) if self.memory else None, parked)
        if gone:
            holder.forget(gone)

    def since_s(self, root: int) -> tuple[float | None, bool]:
        """Since when tuples of this attempt are held here (None: none is), and whether some are to arrive."""
        mine = [one for one in self._stored.values() if root in wire.unpack_roots(wire.decode_head(one.head).roots)]
        held = [one.since_s for one in mine if not one.arrives]
        return min(held, default=None), any(one.arrives for one in mine)

    def update(
        self, held: Iterable[HeldFrame], memory: Any, own: CarryOver, fail: wire.FailRoot
    ) -> list[tuple[int, list[int]]]:
        """Keep what is held now and what is to arrive later; returns (frame id, roots) of changed edges.

        Args:
            held: what the task holds after its work.
            memory: as `Holder.memory` gave it.
            own: what the holder says of it; the rest is entered here.
            fail: called with tuples that cannot be kept.
        """
        after: dict[Key, tuple[Frame, float]] = {}
        parked = ((frame, since_s, True) for frame, since_s in self._parked)
        for frame, since_s, arrives in [*parked, *((one.frame, one.since_s, False) for one in held)]:
            known = after.get((frame.id, arrives))
            after[frame.id, arrives] = (frame, since_s) if known is None else (_joined(known[0], frame), known[1])
        stored: dict[Key, _Stored] = {}
        changed: dict[Key, _Stored] = {}
        edges: dict[int, set[int]] = {}
        for key, (frame, since_s) in after.items():
            if self._shapes.get(key) == (len(frame.values), frame.roots):
                stored[key] = self._stored[key]
            else:
                row = self._encoded(key, frame, fail)
                if row is None:
                    continue
                stored[key] = changed[key] = _Stored(row[2], row[3], since_s, key[1])
            self._note(edges, frame)
        packed = b"" if memory is None else msgspec.msgpack.encode(memory)
        own.waits, own.tuples = self._waits, sum(len(after[key][0].values) for key in stored)
        self._report(stored, changed, packed, own)
        return [
            (frame_id, sorted(self._before.get(frame_id, set()) ^ edges.get(frame_id, set())))
            for frame_id in self._before.keys() | edges.keys()
        ]

    def _report(self, stored: dict[Key, _Stored], changed: dict[Key, _Stored], memory: bytes, own: CarryOver) -> None:
        gone = [key for key in self._stored if key not in stored]
        part: CarryOverPart | None = None
        is_empty = not stored and not memory
        if not is_empty and (changed or gone or memory != self.memory):
            is_base = self._needs_base(len(changed) + len(gone))
            frames = stored if is_base else changed
            part = self.files.add(
                self.component,
                self.task_index,
                frames.values(),
                is_base=is_base,
                gone=[] if is_base else gone,
                memory=memory,
            )
        self.files.reports.append(CarryOverReport(self.component, self.task_index, part, own, is_empty))

    def _needs_base(self, changes: int) -> bool:
        """As for state: once the deltas outweigh their base, or there are too many of them."""
        parts = self.version.parts
        base = parts[0].frames if parts and parts[0].is_base else 0
        deltas = sum(part.frames for part in parts if not part.is_base) + changes
        return deltas > base or len(parts) >= MAX_PARTS

    def _encoded(self, key: Key, frame: Frame, fail: wire.FailRoot) -> wire.Row | None:
        known = self._stored.get(key)
        head = wire.decode_head(known.head) if known is not None else None
        source, sequence = (head.source, head.sequence) if head is not None else (0, 0)
        return wire.encode_frame(released(frame), self.codecs[frame.component, frame.stream], 0, source, sequence, fail)

    @staticmethod
    def _note(edges: dict[int, set[int]], frame: Frame) -> None:
        for root in frame.roots:
            edges.setdefault(frame.id, set()).update(roots_of(root))


def _split(frame: Frame, gone: Collection[int], parked: Collection[int]) -> tuple[Frame, Frame]:
    """The frame without the roots that are gone: (what is to be worked, what waits)."""
    live: list[tuple[Root, list[Any]]] = []
    waiting: list[tuple[Root, list[Any]]] = []
    for root, values in segments_of(frame.values, frame.roots, frame.ends):
        tracked = roots_of(root)
        kept = tuple(one for one in tracked if one not in gone)
        if tracked and not kept:
            continue
        left = root if len(kept) == len(tracked) else fewer(root, kept)
        (waiting if any(one in parked for one in kept) else live).append((left, values))
    return _with(frame, live), _with(frame, waiting)


def _with(frame: Frame, pieces: list[tuple[Root, list[Any]]]) -> Frame:
    values, roots, ends = join_segments(pieces)
    return Frame(frame.task, frame.component, frame.stream, values, roots, ends, frame.id, None, frame.source)


def _joined(frame: Frame, other: Frame) -> Frame:
    return _with(frame, [*frame.segments(), *other.segments()])
