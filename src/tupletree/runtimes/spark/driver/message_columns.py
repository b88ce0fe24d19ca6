"""The messages of an epoch while it is cut, as the columns that its log has."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from tupletree.runtimes.spark.driver.epoch_frames import SpoutTask
from tupletree.runtimes.spark.format.entries import Messages
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.tracking.message_ids import plain_id


class MessageColumns:
    """See the module docstring."""

    def __init__(self) -> None:
        self.tasks = array("I")
        self.ids: list[Any] = []
        self.roots = array("Q")
        self.attempts = array("I")
        self.first_emitted = array("d")
        self.made = array("q")

    def add(self, spout: SpoutTask, accounts: Accounts) -> None:
        """Add what a spout task has in the buffer, of which the accounts know since when it is open."""
        count = len(spout.roots)
        self.tasks.extend([spout.number] * count)
        self.ids.extend(spout.ids)
        self.roots.extend(spout.roots)
        self.attempts.extend(spout.attempts)
        self.first_emitted.extend(accounts.pending.first_emitted_s(spout.roots))
        if spout.made:
            self._pad(len(self.roots) - count)
            self.made.extend(spout.made)

    def _pad(self, count: int) -> None:
        """Messages of spouts without numbers have 0."""
        self.made.extend([0] * (count - len(self.made)))

    def retried(self) -> dict[int, int]:
        """Root → attempt, of those beyond the first."""
        return {root: attempt for root, attempt in zip(self.roots, self.attempts, strict=True) if attempt > 1}

    def encode(self) -> tuple[Messages, bytes]:
        """The columns, and the same as a section of the log."""
        if self.made:
            self._pad(len(self.roots))
        messages = self._messages(self.ids, plain=False)
        try:
            return messages, msgspec.msgpack.encode(messages)
        except (UnicodeEncodeError, OverflowError):  # lone surrogates, integers beyond 64 bits
            messages = self._messages(list(map(plain_id, self.ids)), plain=True)
            return messages, msgspec.msgpack.encode(messages)

    def _messages(self, ids: list[Any], *, plain: bool) -> Messages:
        return Messages(
            tasks=self.tasks.tobytes(),
            ids=ids,
            ids_are_plain=plain,
            roots=self.roots.tobytes(),
            attempts=self.attempts.tobytes(),
            first_emitted_s=self.first_emitted.tobytes(),
            made=self.made.tobytes(),
        )
