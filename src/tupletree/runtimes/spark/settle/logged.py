"""Messages of epoch logs, with the values that their frames hold."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import msgspec

from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import roots_of
from tupletree.durable import read_header
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import (
    EpochHeader,
    Messages,
    SettleEntry,
    epoch_path,
    id_from_msgpack,
    read_epoch,
)
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.accounts import StoredPayload
from tupletree.runtimes.spark.settle.source_rows import Rows
from tupletree.topology.components import MessageId
from tupletree.tracking.message_ids import id_from_plain

__all__ = ["LoggedMessage", "acked_in", "acked_rows", "logged_messages", "values_of"]

_messages = msgspec.msgpack.Decoder(Messages)


Codecs = Mapping[tuple[str, str], ArrowCodec[Any]]


@dataclass
class LoggedMessage:
    """One message of an epoch log."""

    task: int
    message_id: MessageId
    root: int
    attempt: int
    first_emitted_s: float
    made: int = 0


def acked_in(directory: StateDirectory, entry: SettleEntry) -> list[LoggedMessage]:
    """The messages of a settled epoch that were acked in it, except rows that executors read."""
    header, body = read_epoch(directory.epochs, entry.epoch)
    other = _not_acked(entry)
    return [one for one in logged_messages(body[: header.messages_length]) if one.root not in other]


def acked_rows(directory: StateDirectory, entry: SettleEntry, roots: Collection[int]) -> set[int]:
    """Those of these roots that are rows of a settled epoch and were acked in it."""
    header, _ = read_header(epoch_path(directory.epochs, entry.epoch), EpochHeader)
    return {*Rows(header.splits).among(roots)} - _not_acked(entry)


def _not_acked(entry: SettleEntry) -> set[int]:
    other = {root for attempt in entry.failed for root in attempt.roots}
    other.update(entry.put_back, (tree.root for tree in entry.opened), (one.root for one in entry.dead))
    return other


def logged_messages(section: bytes | memoryview) -> list[LoggedMessage]:
    """The messages of an epoch log, from its first section."""
    columns = _messages.decode(section)
    id_of = id_from_plain if columns.ids_are_plain else id_from_msgpack
    return [
        LoggedMessage(task, id_of(stored), root, attempt, first_s, made)
        for task, stored, root, attempt, first_s, made in zip(
            array("I", columns.tasks),
            columns.ids,
            array("Q", columns.roots),
            array("I", columns.attempts),
            array("d", columns.first_emitted_s),
            array("q", columns.made) if columns.made else repeat(0, len(columns.ids)),
            strict=True,
        )
    ]


def values_of(header: EpochHeader, body: memoryview, codecs: Codecs) -> dict[int, Any]:
    """Root → value, from the frames that carry it and from what could not be sent."""
    values: dict[int, Any] = {one.root: StoredPayload(one.payload) for one in header.unsendable}
    for _, offset, head_length, body_length in header.frames:
        head = wire.decode_head(body[offset : offset + head_length])
        start = offset + head_length
        codec = codecs[head.component, head.stream]
        frame = wire.decode_frame(head, body[start : start + body_length], codec)
        for root, found in frame.segments():
            for one in roots_of(root):  # a spout tuple has one root, or none
                values.setdefault(one, found[0])
    return values
