"""The history of a local run: facts about messages, in files of its state directory.

`history/N.jsonl` has one fact a line. Facts are written in batches, about every second, and not flushed to the disk: a
run that is killed loses the last of them. When 1,000 wait before that second is over, the thread that brings the last
of them, an executor's, writes them, so that memory is limited. The oldest file is removed when there is too much. Owns
the files; what cannot be written is counted and dropped, so a full disk does not stop a run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tupletree.durable import DECODE_ERRORS, open_file, private_folder
from tupletree.runtimes.deadletters import letters_of
from tupletree.texts import json_bytes
from tupletree.tracking.facts import Fact

logger = logging.getLogger("tupletree.local")

HISTORY = "history"

WRITE_AT = 1_000
"""Facts that are not written yet, after which the thread that brings one writes them."""

FILES = 8
"""Files at most; when there is a further one, the oldest goes."""


class LocalHistory:
    """Takes facts from any thread, which writes them when `WRITE_AT` wait.

    Args:
        folder: where its files go; made when there is something to write.
        max_bytes: the size of all files; 0 keeps nothing.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._file_bytes = max_bytes // FILES
        self._facts: list[Fact] = []
        self._guard = threading.Lock()
        # A durable run continues the newest file; whether that ends within a line is not known then.
        self._number = max((int(path.stem) for path in folder.glob("[0-9]*.jsonl")), default=0)
        self._size = 0
        self._cut_off = self._number > 0  # the file may end within a line
        self._dropped = 0

    def put(self, facts: Sequence[Fact]) -> None:
        """Take facts, in the order in which things happened."""
        if not self._file_bytes:
            return
        with self._guard:
            self._facts += facts
            if len(self._facts) >= WRITE_AT:
                self._write()

    def write(self) -> None:
        """Write what was taken; to be called from time to time, and at the end."""
        with self._guard:
            self._write()

    def _write(self) -> None:
        facts, self._facts = self._facts, []
        if not facts:
            return
        # No tuples: they may hold what must not be stored (see `Redact`).
        data = b"".join(json_bytes(_without_tuple(fact)) + b"\n" for fact in facts)
        try:
            if self._number == 0 or self._size >= self._file_bytes:
                self._next_file()
            with os.fdopen(
                os.open(self._path(self._number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
            ) as file:
                size = file.tell()  # with what a write that failed has left
                if self._cut_off:
                    # In this file: one more for each attempt on a full disk would remove all that were written before.
                    data = b"\n" + data
                self._cut_off = True
                file.write(data)
            self._cut_off = False
            self._size = size + len(data)
        except OSError as error:
            if not self._dropped:
                logger.warning("the history of messages cannot be written, so `tupletree why` lacks it: %s", error)
            self._dropped += len(facts)

    def _next_file(self) -> None:
        private_folder(self._folder)
        self._number += 1
        self._size = 0
        self._cut_off = False
        self._path(self._number - FILES).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:010d}.jsonl"


def _without_tuple(fact: Fact) -> Fact:
    failure = fact.failure
    return (
        fact
        if failure is None or not failure.failing_tuple
        else replace(fact, failure=replace(failure, failing_tuple=""))
    )


def stored_facts(state_dir: Path) -> Iterator[Fact]:
    """The facts of a run, running or not, oldest first; then the dead letters that none of them is about."""
    dead: set[tuple[str, bytes]] = set()
    for path in sorted((state_dir / HISTORY).glob("[0-9]*.jsonl")):
        try:
            with open_file(path) as lines:
                for line in lines:
                    try:
                        fact = msgspec.json.decode(line, type=Fact)
                    except DECODE_ERRORS:
                        continue  # cut off when the run was killed, or being written now
                    if fact.what == "dead":
                        dead.add((fact.spout, msgspec.json.encode(fact.message_id)))
                    yield fact
        except FileNotFoundError:
            continue  # removed meanwhile: it was the oldest one
    for letter in letters_of(state_dir, lambda _: None, with_dropped=True).values():
        if (letter.spout, msgspec.json.encode(letter.message_id)) not in dead:
            yield Fact(
                time_s=letter.died_s,
                what="dead",
                spout=letter.spout,
                message_id=letter.message_id,
                attempt=letter.attempts,
                failure=letter.failure,
            )
