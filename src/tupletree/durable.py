"""Durable files: written once, named once, never half written; and the container format that they share.

A container is `TTRE`, a format version, a msgpack header, raw sections, and an XXH3-64 checksum over all of it.
Owns bytes on a POSIX file system; refuses to know what they mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import xxhash

from tupletree.errors import CheckpointError, ConnectorError
from tupletree.texts import msgpack_bytes

__all__ = [
    "DECODE_ERRORS",
    "DRAFT_NAME",
    "FORMAT_VERSION",
    "claim_private",
    "create_new",
    "damaged",
    "identity_of",
    "is_for_now",
    "is_real_folder",
    "missing",
    "open_file",
    "other_format",
    "pack",
    "private_folder",
    "read_container",
    "read_file",
    "read_header",
    "replace_file",
    "sync_directory",
    "unpack",
    "write_file",
    "write_once",
]

FORMAT_VERSION = 1
_BINARY = getattr(os, "O_BINARY", 0)  # only Windows has it, and needs it
_MAGIC = b"TTRE"
_LEAD = struct.Struct("<4sHI")
_SUM = struct.Struct("<Q")

DRAFT_NAME = re.compile(r"_.+\.\d+\.[0-9a-f]{8}")
"""How a file is named while it is being written: `_NAME.PROCESS.RANDOM`."""

DECODE_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeError)
"""What decoding raises for bytes that are not what was written: too deeply nested lists among them."""

_FOR_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN})

T = TypeVar("T")


def is_for_now(error: BaseException | None) -> bool:
    """Whether a file cannot be looked at for a while, and may be as it was: too many are open, its server is away."""
    return isinstance(error, OSError) and error.errno in _FOR_NOW


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    if os.name == "nt":  # Windows cannot open folders; its renames are journalled
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_real_folder(path: Path) -> bool:
    """Whether a folder is there, and not a link to one: what is removed in it is removed here."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def private_folder(path: Path) -> Path:
    """Make a folder of mode 0700, or make the one that is there private; its parent is there. Returns it.

    Raises OSError, also where a link to a folder is: what is written and removed in it would be so elsewhere.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "a link, where a folder belongs", str(path))
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def claim_private(path: Path, what: str, where: str) -> None:
    """Have a private file at this path; one that is there stays as it is. For SQLite, which would make a public one.

    Files that SQLite makes beside its own take the mode of that.

    Raises:
        ConnectorError: `what`, which is at `where`, cannot be opened.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | _BINARY, 0o600))
    except OSError as error:
        raise ConnectorError(
            f"{what} cannot be opened",
            where=where,
            got=str(error),
            next_step="see that its folder is there and that this user may write to it",
        ) from error


def identity_of(path: Path | str) -> tuple[int, int] | None:
    """Which file or folder is at this path now, by device and inode; None: there is none that can be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked before each write of a queue: making a Path takes longer
    except OSError:
        return None
    return found.st_dev, found.st_ino


def create_new(path: Path, mode: int = 0o600) -> int:
    """A descriptor to write a new file. An old one is removed first, so a link is not followed. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | _BINARY
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        path.unlink(missing_ok=True)
        return os.open(path, flags, mode)


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a file that others may have put there: no link is followed, no device or pipe is waited for.

    Args:
        path: the file.
        max_bytes: a longer one is refused without being read; None reads any.

    Raises OSError.
    """
    with open_file(path) as file:
        if max_bytes is None:
            return file.read()
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
    return data


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading that others may have put there; see `read_file`. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return file


def write_file(path: Path, data: bytes | Sequence[bytes]) -> None:
    """Write a file whose name no other process can choose, and fsync it and its folder."""
    _write(path, data, 0o600)
    sync_directory(path.parent)


def write_once(path: Path, data: bytes | Sequence[bytes], *, mode: int = 0o600) -> bool:
    """Create `path` with `data`, atomically, only if it is not there: True if this call created it.

    link(2) is the arbiter: unlike rename it refuses to replace, so of two writers exactly one wins. Either way the
    file is whole and durable on return. A writer that is killed may leave a draft, whose name begins with `_`.

    Raises OSError if the file system refuses, and CheckpointError if somebody else removed the draft; then nothing is
    left.
    """
    created = True
    with _draft_of(path, data, mode) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            created = False
        except FileNotFoundError as error:
            raise CheckpointError(
                "a file was removed while it was written",
                where=str(path),
                got="its draft no longer exists",
                next_step="a later start of this run may have taken over, and cleared it away: stop one of the two",
            ) from error
    sync_directory(path.parent)  # also after a loss: the winner may have been killed before it got here
    return created


def replace_file(path: Path, data: bytes | Sequence[bytes], *, mode: int = 0o600, lasts: bool = True) -> None:
    """Replace `path`, atomically: a reader sees the old content or the new one. Raises OSError.

    `lasts`: durably, too; False for what is of no use after a crash.
    """
    with _draft_of(path, data, mode, lasts=lasts) as draft:
        draft.replace(path)
    if lasts:
        sync_directory(path.parent)


@contextlib.contextmanager
def _draft_of(path: Path, data: bytes | Sequence[bytes], mode: int, *, lasts: bool = True) -> Iterator[Path]:
    """The data in a file beside `path`, which no longer exists afterwards."""
    draft = path.with_name(f"_{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _write(draft, data, mode, lasts=lasts)
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _write(path: Path, data: bytes | Sequence[bytes], mode: int, *, lasts: bool = True) -> None:
    with os.fdopen(create_new(path, mode), "wb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            file.writelines(data)
        if lasts:
            file.flush()
            os.fsync(file.fileno())


def pack(header: Any, sections: Sequence[bytes] = ()) -> list[bytes]:
    """A container as pieces to write one after the other."""
    encoded = msgpack_bytes(header)
    pieces = [_LEAD.pack(_MAGIC, FORMAT_VERSION, len(encoded)), encoded, *sections]
    checksum = xxhash.xxh3_64()
    for piece in pieces:
        checksum.update(piece)
    return [*pieces, _SUM.pack(checksum.intdigest())]


def unpack(data: bytes, header_type: type[T], where: str) -> tuple[T, memoryview]:
    """Take a container apart: its header and its sections' bytes.

    Raises CheckpointError (naming `where`) if it is truncated, damaged, or of a format this version cannot read.
    """
    view = memoryview(data)
    if len(view) < _LEAD.size + _SUM.size:
        raise damaged(where, f"{len(view)} bytes", "a whole container")
    header_end = _LEAD.size + _header_length(view[: _LEAD.size], where)
    (checksum,) = _SUM.unpack(view[-_SUM.size :])
    if xxhash.xxh3_64_intdigest(view[: -_SUM.size]) != checksum:
        raise damaged(where, "its checksum does not fit its bytes", "an undamaged file")
    return _header(view[_LEAD.size : header_end], header_type, where), view[header_end : -_SUM.size]


def read_container(path: Path, header_type: type[T]) -> tuple[T, memoryview]:
    """`unpack` a file. Raises CheckpointError for a missing or damaged one."""
    try:
        data = read_file(path)
    except FileNotFoundError as error:
        raise missing(path) from error
    return unpack(data, header_type, str(path))


def read_header(path: Path, header_type: type[T]) -> tuple[T, int]:
    """The header alone, and where the sections begin, without reading or verifying these.

    Raises CheckpointError for a missing file, another format, or a header that cannot be read.
    """
    where = str(path)
    try:
        with open_file(path) as file:
            length = _header_length(file.read(_LEAD.size), where)
            return _header(file.read(length), header_type, where), _LEAD.size + length
    except FileNotFoundError as error:
        raise missing(path) from error


def _header_length(lead: bytes | memoryview, where: str) -> int:
    if len(lead) < _LEAD.size:
        raise damaged(where, f"{len(lead)} bytes", "a whole container")
    magic, version, length = _LEAD.unpack(lead)
    if magic != _MAGIC:
        raise damaged(where, f"it starts with {magic!r}", f"it starts with {_MAGIC!r}")
    if version != FORMAT_VERSION:
        raise other_format(where, version, FORMAT_VERSION)
    return int(length)


def _header(encoded: bytes | memoryview, header_type: type[T], where: str) -> T:
    try:
        return msgspec.msgpack.decode(encoded, type=header_type)
    except DECODE_ERRORS as error:
        raise damaged(where, f"its header cannot be read: {error}", "a header of this format") from error


def missing(path: Path) -> CheckpointError:
    """The error to raise for a file that another one names and that is not there."""
    return CheckpointError(
        "a file that the state directory refers to is missing",
        where=str(path),
        next_step="restore it from a backup, or start with a fresh --state-dir",
    )


def other_format(where: str, version: int, expected: int) -> CheckpointError:
    """The error to raise for a file of a format that this version cannot read."""
    return CheckpointError(
        "this file has a format that this version of Tupletree cannot read",
        where=where,
        got=f"format {version}",
        expected=f"format {expected}",
        next_step="use the version of Tupletree that wrote it",
    )


def damaged(where: str, got: str, expected: str) -> CheckpointError:
    """The error to raise for a file that is not what was written."""
    return CheckpointError(
        "a file of the state directory is damaged",
        where=where,
        got=got,
        expected=expected,
        next_step="restore it from a backup, or start with a fresh --state-dir",
    )
