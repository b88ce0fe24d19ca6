"""The archive: what is kept of epochs whose files are removed; compressed, the oldest blocks are removed first.

A block holds the messages and the verdicts of a run of epochs, as in the journal, without payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from tupletree.durable import pack, read_container, write_once
from tupletree.runtimes.spark.format.entries import SettleEntry
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.texts import msgpack_bytes
from tupletree.tracking.pending_log import PendingChanges

CODEC: Final = "zstd"


@dataclass(frozen=True)
class ArchivedEpoch:
    """An epoch as the archive keeps it: `Messages` as bytes, settle entry without state and payloads, and splits."""

    messages: bytes
    entry: SettleEntry
    splits: Sequence[PlannedSplit] = ()


class _Place(msgspec.Struct, array_like=True):
    epoch: int
    messages_length: int
    entry_length: int
    splits_length: int = 0


class _Block(msgspec.Struct):
    plain_length: int
    epochs: list[_Place]


def archive(directory: Path, epochs: Sequence[ArchivedEpoch]) -> None:
    """Store epochs as one block; storing the same ones again changes nothing."""
    parts: list[bytes] = []
    places: list[_Place] = []
    for one in epochs:
        entry = msgpack_bytes(_lightened(one.entry))
        splits = msgspec.msgpack.encode([*one.splits]) if one.splits else b""
        parts += [one.messages, entry, splits]
        places.append(_Place(one.entry.epoch, len(one.messages), len(entry), len(splits)))
    plain = b"".join(parts)
    compressed: bytes = pa.compress(plain, codec=CODEC, asbytes=True)
    name = f"{places[0].epoch:010d}-{places[-1].epoch:010d}.history"
    write_once(directory / name, pack(_Block(len(plain), places), [compressed]))


def read_archive(directory: Path) -> Iterator[ArchivedEpoch]:
    """Every archived epoch, oldest first. Raises CheckpointError for a damaged block."""
    for path in sorted(directory.glob("[0-9]*.history")):
        block, body = read_container(path, _Block)
        plain: bytes = pa.decompress(
            pa.py_buffer(body), decompressed_size=block.plain_length, codec=CODEC, asbytes=True
        )
        start = 0
        for place in block.epochs:
            middle = start + place.messages_length
            end = middle + place.entry_length
            entry = msgspec.msgpack.decode(plain[middle:end], type=SettleEntry)
            after = end + place.splits_length
            splits = msgspec.msgpack.decode(plain[end:after], type=list[PlannedSplit]) if after > end else []
            yield ArchivedEpoch(plain[start:middle], entry, splits)
            start = after


def trim(directory: Path, max_bytes: int) -> None:
    """Remove the oldest blocks until the rest is small enough; the newest always stays."""
    paths = sorted(directory.glob("[0-9]*.history"))
    total = sum(path.stat().st_size for path in paths)
    for path in paths[:-1]:
        if total <= max_bytes:
            return
        total -= path.stat().st_size
        path.unlink()


def _lightened(entry: SettleEntry) -> SettleEntry:
    """The entry with its verdicts only; dead letters have files of their own."""
    dead = [
        msgspec.structs.replace(one, letter=msgspec.structs.replace(one.letter, payload=None)) for one in entry.dead
    ]
    return msgspec.structs.replace(
        entry, dead=dead, outputs=[], waiting=[], state={}, kept={}, pending=PendingChanges(), base=None
    )
