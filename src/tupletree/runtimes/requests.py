"""Requests that other processes leave for a run: files `ID.json` in a folder of its state directory.

Every process that may write there may request; a request is data, and bad data ends no thread and no run. The decoder
for all of them: the name of the file is the id of the request and is checked, size and depth are bounded, links and
devices are not opened. A file that is no request is moved to the folder `refused` beside it, and the log names it. It
does not know what requests mean.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tupletree.durable import DECODE_ERRORS, is_for_now, is_real_folder, private_folder, read_file
from tupletree.errors import CheckpointError

logger = logging.getLogger("tupletree.runtimes")

REFUSED = "refused"
SUFFIX = ".json"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
"""An id is part of paths: no dots, no slashes, nothing that is special to a shell or a terminal."""

MAX_AT_A_TIME = 1_000
"""Files that one call reads; the others wait for the next call."""

T = TypeVar("T")


class RequestFolder(Generic[T]):
    """A folder of requests, which need not exist.

    Args:
        path: the folder.
        shape: a struct that forbids unknown fields, so that nothing of unbounded depth is read.
        max_bytes: nothing longer is a request.
        next_step: of the error about a file that is none.
        fault_of: what is wrong with a request, given its id; empty if nothing is.
    """

    def __init__(
        self,
        path: Path,
        shape: type[T],
        max_bytes: int,
        *,
        next_step: str,
        fault_of: Callable[[str, T], str] = lambda _, __: "",
    ) -> None:
        self._path = path
        self._shape = shape
        self._max_bytes = max_bytes
        self._next_step = next_step
        self._fault_of = fault_of
        self._stuck: set[str] = set()

    def read(self, complain: Callable[[CheckpointError], None]) -> dict[str, T]:
        """The requests that wait, by id, oldest first; `complain` is called for files that are none or cannot be read.

        The error has that of the file, or of the folder, as its cause.
        """
        try:
            return self._read(self._files(), lambda _, error: complain(error))
        except OSError as error:
            complain(self._fault(self._path, error))
            return {}

    def take(self) -> dict[str, T]:
        """The same, for the process of the run: a file that is none is moved aside, and the log names it.

        At most `MAX_AT_A_TIME` files are looked at; the others wait for the next call. So does what cannot be read now.
        """
        try:
            return self._read(self._files()[:MAX_AT_A_TIME], self._move_aside)
        except OSError as error:
            logger.debug("requests cannot be looked for: %s", error)
            return {}

    def path_of(self, request_id: str) -> Path:
        """The file of a request. Raises ValueError for an invalid id."""
        if not _ID.fullmatch(request_id):
            raise ValueError(f"{request_id!r} is not an id of a request")
        return self._path / f"{request_id}{SUFFIX}"

    def remove(self, request_id: str) -> None:
        """Remove a request; one that is gone is fine. Raises OSError."""
        if is_real_folder(self._path):
            self.path_of(request_id).unlink(missing_ok=True)

    def _read(self, files: Sequence[Path], refuse: Callable[[Path, CheckpointError], None]) -> dict[str, T]:
        found: dict[str, T] = {}
        for path in files:
            try:
                found[path.name.removesuffix(SUFFIX)] = self._decode(path)
            except FileNotFoundError:
                continue  # taken back
            except (OSError, ValueError, *DECODE_ERRORS) as error:
                refuse(path, self._fault(path, error))
        return found

    def _fault(self, path: Path, error: Exception) -> CheckpointError:
        fault = CheckpointError(
            "this is not a request that can be read", where=str(path), got=str(error), next_step=self._next_step
        )
        fault.__cause__ = error
        return fault

    def _files(self) -> list[Path]:
        """Files whose names are those of requests, oldest first. Raises OSError."""
        if not is_real_folder(self._path):
            return []
        entries = []
        with os.scandir(self._path) as scanned:
            for entry in scanned:
                name = entry.name
                if name.endswith(SUFFIX) and not name.startswith("_") and name not in self._stuck:
                    with suppress(FileNotFoundError):  # taken back
                        entries.append((entry.stat(follow_symlinks=False).st_mtime, name))
        return [self._path / name for _, name in sorted(entries)]

    def _decode(self, path: Path) -> T:
        """Raises OSError, ValueError or one of DECODE_ERRORS for what is no request."""
        request_id = path.name.removesuffix(SUFFIX)
        if not _ID.fullmatch(request_id):
            raise ValueError("its name is not an id: at most 64 letters, digits, - and _")
        request = msgspec.json.decode(read_file(path, self._max_bytes), type=self._shape)
        if fault := self._fault_of(request_id, request):
            raise ValueError(fault)
        return request

    def _move_aside(self, path: Path, fault: CheckpointError) -> None:
        if is_for_now(fault.__cause__):
            return
        target = self._path / REFUSED / path.name
        try:
            private_folder(target.parent)
            path.rename(target)
        except OSError as error:
            self._stuck.add(path.name)  # it is logged once, and this process ignores it from now on
            logger.warning("%s; it cannot be moved to %s: %s", fault, target, error)
        else:
            logger.warning("%s; it was moved to %s", fault, target)
