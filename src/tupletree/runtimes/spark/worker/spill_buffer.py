"""The spill buffer: frames of a stage's partition, in memory up to a limit and beyond it in a temporary file.

One spill buffer per attempt of a partition holds the frames that wait for their tasks, those that wait for Spark and
those of a call that is not over. Its file is in the executor's local folder, has no name, and is removed with the
process. It does not know what it holds: a head and a body, both bytes.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, Any

from tupletree.errors import InternalError, ProcessingError

LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"
"""Environment variable by which Spark tells its Python workers where executors keep what they spill."""


class SpillSlot:
    """One head and body in a spill buffer. `take` it once, or `read` it any number of times and `release` it."""

    __slots__ = ("_data", "_offset", "_spill_buffer", "body_length", "head_length")

    def __init__(self, spill_buffer: SpillBuffer, head: Any, body: Any, *, in_memory: bool) -> None:
        self._spill_buffer = spill_buffer
        self.head_length, self.body_length = len(head), len(body)
        self._data: tuple[Any, Any] | None = (head, body) if in_memory else None
        self._offset = -1

    @property
    def size_bytes(self) -> int:
        """Of head and body."""
        return self.head_length + self.body_length

    def read(self) -> tuple[Any, Any]:
        """(head, body) as bytes or buffers."""
        if self._data is not None:
            return self._data
        data = memoryview(self._spill_buffer.load(self._offset, self.size_bytes))
        return data[: self.head_length], data[self.head_length :]

    def release(self) -> None:
        """It will not be read again."""
        if self._data is not None:
            self._data = None
            self._spill_buffer.give_back(self.size_bytes)
        elif self._offset >= 0:
            self._spill_buffer.forget()
        self._offset = -1

    def take(self) -> tuple[Any, Any]:
        """`read` and `release`."""
        data = self.read()
        self.release()
        return data

    def moved_to_file(self, offset: int) -> None:
        """It is in the file now, at this offset."""
        self._offset = offset


class SpillBuffer:
    """See the module docstring. Not thread-safe.

    Args:
        limit_bytes: what it holds in memory.
        folder: where its file goes; by default where the executor spills.
    """

    def __init__(self, limit_bytes: int, folder: str | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder or os.environ.get(LOCAL_FOLDERS, "").partition(",")[0] or tempfile.gettempdir()
        self._in_memory_bytes = 0
        self._file: IO[bytes] | None = None
        self._end = 0
        self._slots_in_file = 0
        self.spilled_bytes = 0

    def has_room(self, length: int) -> bool:
        """Whether so many bytes more may be held in memory."""
        return self._in_memory_bytes + length <= self.limit_bytes

    def claim(self, length: int) -> None:
        """Count so many bytes that are held elsewhere in memory, until `give_back`."""
        self._in_memory_bytes += length

    def give_back(self, length: int) -> None:
        """Undo `claim`."""
        self._in_memory_bytes -= length

    def put(self, head: Any, body: Any) -> SpillSlot:
        """Hold a head and a body: bytes or buffers.

        Raises:
            ProcessingError: the file cannot be written, as on a full disk.
        """
        length = len(head) + len(body)
        if self.has_room(length):
            self.claim(length)
            return SpillSlot(self, head, body, in_memory=True)
        slot = SpillSlot(self, head, body, in_memory=False)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tupletree-", dir=self._folder, buffering=0)  # noqa: SIM115 - lives as long as the attempt
            offset = self._end
            for part in (head, body):
                self._end += _write(self._file.fileno(), part, self._end)
        except OSError as error:
            raise ProcessingError(
                f"frames cannot be spilled to the executor's local folder: {error.strerror}",
                where=self._folder,
                got=f"{length:,} bytes more than stage_memory_bytes ({self.limit_bytes:,}) has room for",
                next_step="make room there, name another folder (spark.local.dir), or lower epoch_max_messages",
            ) from error
        slot.moved_to_file(offset)
        self._slots_in_file += 1
        self.spilled_bytes += length
        return slot

    def load(self, offset: int, length: int) -> bytes:
        """Bytes of the file."""
        assert self._file is not None, "nothing was written"
        handle = self._file.fileno()
        data = os.pread(handle, length, offset)
        while len(data) < length:  # one read is at most 2 GB
            more = os.pread(handle, length - len(data), offset + len(data))
            if not more:
                raise InternalError("a spilled frame is shorter than it was", got=f"{len(data):,} of {length:,} bytes")
            data += more
        return data

    def forget(self) -> None:
        """A slot in the file is not needed any more. When none is needed, the file is emptied."""
        self._slots_in_file -= 1
        if self._slots_in_file == 0 and self._file is not None:
            self._file.truncate(0)
            self._end = 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _write(handle: int, data: Any, offset: int) -> int:
    view = memoryview(data)
    done = 0
    while done < len(view):  # one write is at most 2 GB
        done += os.pwrite(handle, view[done:], offset + done)
    return done
