"""Message names: what a source calls the messages of roots, read from epoch logs in a worker, when user code asks.

Nothing of it travels with tuples, so it costs nothing where nobody asks. A tree that is open across epochs is named by
an earlier log: logs are kept while a root of them lives.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tupletree.durable import read_header
from tupletree.errors import CheckpointError
from tupletree.runtimes.spark.format.entries import EpochHeader, Messages, epoch_path, id_from_msgpack, numbered
from tupletree.runtimes.spark.format.rows import keys_of
from tupletree.runtimes.spark.format.wire import PlannedSplit
from tupletree.topology.components import MessageId
from tupletree.tracking.message_ids import id_from_plain

__all__ = ["MessageNames"]

_messages = msgspec.msgpack.Decoder(Messages)


class MessageNames:
    """The names of the messages of an epoch, and of those that are open since earlier ones.

    Args:
        epochs: the folder of epoch logs.
        epoch: the epoch.
    """

    def __init__(self, epochs: Path, epoch: int) -> None:
        self._epochs = epochs
        self._epoch = epoch
        self._logs: list[_Log] = []
        self._left: list[int] | None = None  # logs to read, the newest last

    def ids_of(self, roots: Sequence[int]) -> tuple[MessageId, ...]:
        """The message ids of these roots, in their order, without those that no log names."""
        found = (self._found(root) for root in roots)
        return tuple(message_id for message_id in found if message_id is not None)

    def _found(self, root: int) -> MessageId | None:
        for log in self._logs:
            if (message_id := log.id_of(root)) is not None:
                return message_id
        while (log_read := self._next_log()) is not None:
            if (message_id := log_read.id_of(root)) is not None:
                return message_id
        return None

    def _next_log(self) -> _Log | None:
        if self._left is None:
            self._left = [number for number in numbered(self._epochs, ".epoch") if number <= self._epoch]
        while self._left:
            try:
                log = _Log(epoch_path(self._epochs, self._left.pop()))
            except (CheckpointError, FileNotFoundError):
                if not self._logs:
                    raise  # that of the epoch itself
                continue  # swept meanwhile: no root of it lives
            self._logs.append(log)
            return log
        return None


class _Log:
    """The names in one epoch log."""

    def __init__(self, path: Path) -> None:
        header, offset = read_header(path, EpochHeader)
        self._ids: dict[int, MessageId] = {}
        if header.messages_length:
            with path.open("rb") as file:
                file.seek(offset)
                columns = _messages.decode(file.read(header.messages_length))
            id_of = id_from_plain if columns.ids_are_plain else id_from_msgpack
            self._ids = dict(zip(array("Q", columns.roots), map(id_of, columns.ids), strict=True))
        self._splits: list[PlannedSplit] = [one for one in header.splits if one.key]
        self._starts = [one.key for one in self._splits]

    def id_of(self, root: int) -> MessageId | None:
        if self._splits:
            key = int(keys_of([root])[0])
            planned = self._splits[max(0, bisect_right(self._starts, key) - 1)]
            if 0 <= key - planned.key < planned.split.rows:
                return planned.split.message_id(key - planned.key)
        return self._ids.get(root)
