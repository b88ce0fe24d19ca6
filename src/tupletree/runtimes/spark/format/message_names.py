"""Message names: what a source calls the messages of roots, read from epoch logs in a worker, when user code asks.

Nothing of it travels with tuples, so it costs nothing where nobody asks. A tree that is open across epochs is named by
an earlier log: logs are kept while a root of them lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tupletree.durable import read_header
from tupletree.errors import CheckpointError
from tupletree.ids import MessageId
from tupletree.runtimes.spark.format.entries import EpochHeader, epoch_path, numbered
from tupletree.runtimes.spark.format.epoch_messages import I64, U64, EpochMessages, places_in
from tupletree.runtimes.spark.format.inputs import unread_inputs


class MessageNames:
    """The names of the messages of an epoch, and of those that are open since earlier ones."""

    def __init__(self, epochs: Path, epoch: int) -> None:
        self._epochs = epochs
        self._epoch = epoch
        self._logs: list[list[EpochMessages]] = []
        self._left: list[int] | None = None  # logs to read, the newest last

    def ids_of(self, roots: Sequence[int]) -> tuple[MessageId, ...]:
        """The message ids of these roots, in their order, without those that no log names."""
        found = (self._found(root) for root in roots)
        return tuple(message_id for message_id in found if message_id is not None)

    def places_of(self, roots: U64) -> tuple[I64, I64]:
        """See `epoch_messages.places_in`, of the epoch."""
        return places_in(self._logs[0] if self._logs else self._next_log() or [], roots)

    def _found(self, root: int) -> MessageId | None:
        for inputs in chain(self._logs, iter(self._next_log, None)):
            for messages in inputs:
                if (message_id := messages.id_of(root)) is not None:
                    return message_id
        return None

    def _next_log(self) -> list[EpochMessages] | None:
        if self._left is None:
            self._left = [number for number in numbered(self._epochs, ".epoch") if number <= self._epoch]
        while self._left:
            try:
                inputs = _inputs(epoch_path(self._epochs, self._left.pop()))
            except (CheckpointError, FileNotFoundError):
                if not self._logs:
                    raise  # that of the epoch itself
                continue  # swept meanwhile: no root of it lives
            self._logs.append(inputs)
            return inputs
        return None


def _inputs(path: Path) -> list[EpochMessages]:
    """The messages of an epoch log, without their values."""
    header, offset = read_header(path, EpochHeader)
    with path.open("rb") as file:
        file.seek(offset)
        return unread_inputs(header, file.read(header.messages_length))
