"""Replay requests from the inbox: other processes request, the loop emits dead letters again as new messages."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tupletree.clock import Clock
from tupletree.errors import ProcessingError
from tupletree.runtimes.deadletters import ReplayableLetters, ReplayRequest, carried_out, inbox_of, value_of
from tupletree.runtimes.spark.format.upgrades import NO_UPGRADES, Upgrades
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.tracking.message_ids import id_from_plain
from tupletree.tracking.outcomes import DeadLetter
from tupletree.tracking.records import RetryAt

logger = logging.getLogger("tupletree.spark")

READ_EVERY_S = 0.5


class Replays:
    """Reads the inbox from time to time.

    A request is part of the accounts once accepted, and leaves the inbox once a settled
    epoch names it: after a kill in between it is read again, and then its messages are known already. `upgrades` knows
    the present names of components: letters have those of their time.
    """

    def __init__(self, state_dir: Path, accounts: Accounts, clock: Clock, upgrades: Upgrades = NO_UPGRADES) -> None:
        self._upgrades = upgrades
        self._state_dir = state_dir
        self._inbox = inbox_of(state_dir)
        self._accounts = accounts
        self._clock = clock
        self._next_read_s = 0.0
        self._replayable = ReplayableLetters(state_dir, self._read, logger)

    @property
    def has_accepted(self) -> bool:
        """Whether a request waits for an epoch that names it."""
        return bool(self._accounts.accepted)

    def read_inbox(self) -> bool:
        """Accept new requests, remove those that are in the journal; whether there were new ones."""
        now_s = self._clock.monotonic()
        if now_s < self._next_read_s:
            return False
        self._next_read_s = now_s + READ_EVERY_S
        came = False
        for request in self._inbox.take().values():
            # Under one lock: a settle in between may name the request, and ack its messages.
            with self._accounts.lock:
                if request.id in self._accounts.replays:
                    self._clear(request)
                elif request.id not in self._accounts.accepted:
                    came = self._accept(request) or came
        return came

    def clear_inbox(self) -> None:
        """Remove requests that are in the journal, so that replayed letters are no longer listed."""
        for request in self._inbox.take().values():
            if request.id in self._accounts.replays:
                self._clear(request)

    def _accept(self, request: ReplayRequest) -> bool:
        accounts = self._accounts
        letters = self._replayable.of(request)
        if letters is None:
            return False  # later
        for letter, task, value in letters.values():
            now_s, wall_s = self._clock.monotonic(), self._clock.wall()
            back = accounts.pending.replay(task, id_from_plain(letter.message_id), value, now_s, wall_s)
            if isinstance(back, RetryAt):
                accounts.totals.dead -= 1
                accounts.totals.replayed += 1
        accounts.accepted.append(request.id)
        return True

    def _clear(self, request: ReplayRequest) -> None:
        """Move a request out of the inbox; letters that could not be replayed stay."""
        letters = self._replayable.of(request)
        if letters is None:
            return  # later
        carried_out(self._state_dir, request.id, list(letters))
        # It may be forgotten: if it came again, its letters would not be dead letters any more.
        self._accounts.replays.discard(request.id)

    def _read(self, letter_id: str, letter: DeadLetter) -> tuple[int, Any]:
        if self._upgrades.is_of_dropped(letter.spout, letter_id):
            raise ProcessingError(f"its spout {letter.spout!r} was dropped")
        spout = self._upgrades.today(letter.spout)
        task = next((task for task, name in self._accounts.spout_of.items() if name == spout), None)
        if task is None:
            raise ProcessingError(f"there is no spout {letter.spout!r}")
        return task, value_of(letter, self._accounts.spec.components[spout].body, self._accounts.message_class(task))
