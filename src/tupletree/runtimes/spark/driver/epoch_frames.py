"""Epoch frames: what spouts gave as frames for the tasks that read it, and these as the sections of an epoch's log.

Owns the layout of frames in the log. It does not know where messages come from (`intake`) and what happens to them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from tupletree.bolts.failures import FailureMaker, safe_text
from tupletree.data.frames import UNTRACKED, Frame, Root
from tupletree.data.payloads import to_jsonable
from tupletree.ids import MessageId, mix64
from tupletree.routing.groupings import Batch, Router
from tupletree.routing.plan import NOWHERE, Plan, Task
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, Unsendable
from tupletree.runtimes.spark.format.logged_messages import openings_of
from tupletree.runtimes.spark.format.program import codecs_of
from tupletree.runtimes.spark.format.segments import SegmentRow
from tupletree.runtimes.spark.worker.splits import FRAME_TUPLES, rejection, wrong_class
from tupletree.texts import json_bytes
from tupletree.topology.components import Emit, Reject, Spout
from tupletree.topology.splits import Split
from tupletree.tracking.ledger import Entries
from tupletree.tracking.outcomes import Failure

START_BYTES = 64 * 1024
"""So much of a message that is too long is in its dead letter, as JSON."""

logger = logging.getLogger("tupletree.spark")


# More than 12 attributes: a column of the buffer each: what one spout gave that has no epoch yet.
@dataclass
class SpoutTask:
    """One spout task in the driver: the user's object and what it gave that has no epoch yet.

    `number` is its number in the accounts and the journal: the task's id at the first start on the state directory. The
    id itself changes when other components get more tasks or fewer. `made`, while an epoch is cut, where the
    stream carries it or something comes from here to an ordered input: the numbers of `roots`, then, where the stream
    carries it, those of `untracked`. `cut`: by root, the start of messages that are too long.
    `active`: the last that the spout was told. `waiting`: what it gave beyond its limit, and was not taken yet.
    `taken_bytes`: of what is in segments.
    """

    task: Task
    name: str
    stream: str
    spout: Spout[Any]
    ids: list[MessageId] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    rejected: dict[int, Reject] = field(default_factory=dict)
    cut: dict[int, bytes] = field(default_factory=dict)
    untracked: list[Any] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    planned: list[Split] = field(default_factory=list)
    waiting: deque[Emit[Any] | Reject] = field(default_factory=deque)
    fresh: int = 0
    taken_bytes: int = 0
    position: Any = None
    ended: bool = False
    number: int = -1
    active: bool = False

    def __post_init__(self) -> None:
        if self.number < 0:
            self.number = self.task.task_id

    def sort(self) -> None:
        """Put the messages in the order of their numbers: those that are tried again are among later ones."""
        order = sorted(range(len(self.made)), key=self.made.__getitem__)
        self.ids = [self.ids[at] for at in order]
        self.roots = [self.roots[at] for at in order]
        self.values = [self.values[at] for at in order]
        self.attempts = [self.attempts[at] for at in order]
        self.made = [self.made[at] for at in order]

    def clear(self) -> None:
        """All of it is in an epoch: only what waits for room stays."""
        self.ids, self.roots, self.values, self.attempts, self.made = [], [], [], [], []
        self.rejected, self.cut, self.untracked, self.again, self.fresh = {}, {}, [], [], 0
        self.taken_bytes = 0

    @property
    def buffered(self) -> int:
        """Messages without an epoch."""
        return len(self.roots) + len(self.untracked) + sum(split.rows for split in self.planned)


@dataclass
class EpochFrames:
    """Frames of one epoch, as rows, with their edges and the roots in them."""

    rows: list[wire.Row] = field(default_factory=list)
    edges: list[int] = field(default_factory=list)
    edge_roots: list[np.ndarray[Any, np.dtype[np.uint64]]] = field(default_factory=list)

    def openings(self, roots: np.ndarray[Any, np.dtype[np.uint64]]) -> Entries:
        """See `openings_of`."""
        return openings_of(roots, self.edges, self.edge_roots)

    def sections(self, header: EpochHeader, messages: bytes) -> list[bytes]:
        """The sections of the epoch's log: the messages, then the frames, which are entered in the header."""
        sections = [messages]
        offset = len(messages)
        header.frames = []
        for place, _, head, body in self.rows:
            header.frames.append((place, offset, len(head), len(body)))
            sections += [head, bytes(body)]
            offset += len(head) + len(body)
        return sections


class EpochFrameMaker:
    """Makes the frames of the messages of all spout tasks.

    Args:
        plan: the topology laid out.
        spouts: the spout tasks.
        longest: bytes of a message at most, encoded.

    Attributes:
        plan: the topology laid out.
        tasks: component → first id and number of its tasks, of those that read: what frames are addressed by.
    """

    def __init__(self, plan: Plan, spouts: Sequence[SpoutTask], longest: int = wire.FRAME_BYTES * 4) -> None:
        self.plan = plan
        self._longest = longest
        self._codecs = codecs_of(plan)
        self._routers = {
            spout.number: Router.of(
                plan, spout.task.task_id, spout.stream, NOWHERE if plan.readers(spout.name) else None
            )
            for spout in spouts
        }
        self._fail = {spout.number: FailureMaker(spout.name, spout.task.task_id) for spout in spouts}
        self._sequence = 0
        readers = [one.name for one in plan.spec.components.values() if one.kind != "spout"]
        self.tasks = {name: (plan.task_ids_of(name).start, plan.parallelism(name)) for name in readers}

    def length_of(self, spout: SpoutTask, value: Any) -> float:
        """About how many bytes of an epoch's log a message takes."""
        return wire.length_of(self._codecs[spout.name, spout.stream], value)

    def add_frames(
        self, epoch: int, spout: SpoutTask, failures: dict[int, Failure], frames: EpochFrames
    ) -> list[Unsendable]:
        """Add the frames of what a spout task gave; what cannot be sent is added to `failures`, and returned."""
        for frame in self._frames(epoch, spout, failures):
            for sent, row in self._encode(epoch, spout, frame, failures):
                frames.rows.append(row)
                frames.edges.append(sent.id)
                frames.edge_roots.append(wire.root_array(sent.roots))
        return self._unsendable(spout, failures) if failures else []

    def _unsendable(self, spout: SpoutTask, failures: dict[int, Failure]) -> list[Unsendable]:
        """Messages that failed before any bolt saw them.

        A value that cannot be encoded cannot wait for another attempt either: it could not be read back from the
        journal, and no attempt could send it.
        """
        codec = self._codecs[spout.name, spout.stream]
        found: list[Unsendable] = []
        for root, value in zip(spout.roots, spout.values, strict=True):
            failure = failures.get(root)
            if failure is None:
                continue
            if not failure.permanent and codec.check_each([value]):
                failure = failures[root] = msgspec.structs.replace(failure, permanent=True)
            found.append(Unsendable(root, to_jsonable(value), failure))
        return found

    def _sendable(self, spout: SpoutTask, failures: dict[int, Failure]) -> tuple[list[Any], list[Root]]:
        """What goes to bolts from here: not what the source rejected, and what is in segments."""
        values: list[Any] = spout.values
        roots: list[Root] = list(spout.roots)
        if spout.taken_bytes:
            kept = [(value, root) for value, root in zip(values, roots, strict=True) if type(value) is not SegmentRow]
            values, roots = [value for value, _ in kept], [root for _, root in kept]
        if spout.rejected:
            kept = [(value, root) for value, root in zip(values, roots, strict=True) if root not in spout.rejected]
            values, roots = [value for value, _ in kept], [root for _, root in kept]
            for root, reject in spout.rejected.items():
                failures[root] = rejection(reject, self._fail[spout.number])
        if spout.untracked:
            values = values + spout.untracked
            roots = roots + [0] * len(spout.untracked)
        return values, roots

    def _frames(self, epoch: int, spout: SpoutTask, failures: dict[int, Failure]) -> list[Frame]:
        values, roots = self._sendable(spout, failures)
        if not values:
            return []
        values, roots = self._of_class(spout, values, roots, failures)
        ends = list(range(1, len(values) + 1))
        made: Sequence[int] | None = None
        if spout.made and self.plan.carries_order(spout.name, spout.stream):
            made_of, others = dict(zip(spout.roots, spout.made)), iter(spout.made[len(spout.roots) :])
            made = [made_of[cast("int", root)] if root else next(others) for root in roots]
        batches, refused = self._routers[spout.number].route(values, roots, ends, made)
        for position, error in refused:
            self._note(spout, failures, roots[position], values[position], error)
        frames: list[Frame] = []
        for batch in batches:
            for piece in _chunks(batch):
                self._sequence += 1
                edge = mix64(epoch, 0, -1, spout.task.task_id, piece.task, self._sequence)
                frames.append(
                    Frame(
                        piece.task,
                        spout.name,
                        spout.stream,
                        piece.values,
                        piece.roots,
                        piece.ends,
                        edge,
                        piece.made,
                        spout.task.task_id,
                    )
                )
        return frames

    def _note(
        self, spout: SpoutTask, failures: dict[int, Failure], root: Root, value: object, error: BaseException | str
    ) -> None:
        if root == UNTRACKED:
            logger.warning("%s: an untracked value is lost: %s", spout.name, safe_text(str(error), 500))
        self._fail[spout.number].note(failures, root, value, error)

    def _of_class(
        self, spout: SpoutTask, values: list[Any], roots: list[Root], failures: dict[int, Failure]
    ) -> tuple[list[Any], list[Root]]:
        """Remove values that are not of the stream's class; their roots fail."""
        expected = self.plan.spec.components[spout.name].outputs[spout.stream].schema.cls
        if set(map(type, values)) <= {expected}:
            return values, roots
        kept_values: list[Any] = []
        kept_roots: list[Root] = []
        for value, root in zip(values, roots, strict=True):
            if type(value) is expected:
                kept_values.append(value)
                kept_roots.append(root)
            else:
                self._note(spout, failures, root, value, wrong_class(value, expected))
        return kept_values, kept_roots

    def _encode(
        self, epoch: int, spout: SpoutTask, frame: Frame, failures: dict[int, Failure]
    ) -> Iterator[tuple[Frame, wire.Row]]:
        """The frame as a row; one that is too long for a row is halved, as often as needed."""
        source = spout.task.task_id
        fail = partial(self._note, spout, failures)
        codec = self._codecs[spout.name, spout.stream]
        self._sequence += 1
        row = wire.encode_frame(frame, codec, self.plan.placement(frame.task), source, self._sequence, fail)
        if row is None:
            return
        length = len(row[3])
        if length <= min(wire.FRAME_BYTES, self._longest) or len(frame.values) == 1:
            if length <= self._longest:
                yield frame, row
            else:
                self._refuse_long(spout, failures, frame, length)
            return
        for half in wire.halves(frame):
            half.id = mix64(epoch, 0, -1, source, frame.task, self._sequence)
            yield from self._encode(epoch, spout, half, failures)

    def _refuse_long(self, spout: SpoutTask, failures: dict[int, Failure], frame: Frame, length: int) -> None:
        """Fail a message that is too long; from here on, its start stands for it."""
        reason = wire.too_long_text(length, self._longest)
        (root,), (value,) = frame.roots, frame.values
        if root == UNTRACKED:
            self._note(spout, failures, root, f"a {type(value).__qualname__}", reason)
            return
        place = spout.roots.index(cast("int", root))
        start = json_bytes(to_jsonable(value))[:START_BYTES]
        reject = Reject(start, spout.ids[place] if spout.ids else "", reason)
        failures[spout.roots[place]] = rejection(reject, self._fail[spout.number])
        spout.values[place] = start
        spout.cut[spout.roots[place]] = start


def _chunks(batch: Batch) -> list[Batch]:
    """Cut a target's batch into frames of bounded size. Spout tuples are one to a segment."""
    if len(batch.values) <= FRAME_TUPLES:
        return [batch]
    pieces: list[Batch] = []
    for start in range(0, len(batch.values), FRAME_TUPLES):
        values = batch.values[start : start + FRAME_TUPLES]
        roots = batch.roots[start : start + FRAME_TUPLES]
        made = None if batch.made is None else batch.made[start : start + FRAME_TUPLES]
        pieces.append(Batch(batch.task, values, roots, list(range(1, len(values) + 1)), made))
    return pieces
