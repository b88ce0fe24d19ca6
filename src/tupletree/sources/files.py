"""Files as they are found: names and patterns, identity, kinds that can be read.

Owns what a name leads to now. It refuses to open a file (`line_reader`) and to keep anything (`file_table`).
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from tupletree.errors import ConfigError, ConnectorError, Finding

Paths: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
Order: TypeAlias = Literal["name", "time"]


@dataclass(slots=True, frozen=True)
class FoundFile:
    """A file that is there now.

    Attributes:
        name: as it was given, or as a pattern found it.
        path: absolute, links resolved.
        device, inode: which file it is, under any name.
        size: in bytes, as stored.
        mtime_ns: when its content was last changed.
    """

    name: str
    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int

    @property
    def identity(self) -> tuple[int, int]:
        """Equal for two names of one file."""
        return self.device, self.inode


_WRITE_TO_A_FILE = "let what writes to it append to a file, which `follow=True` reads as it grows, or write a spout"

# --- names ------------------------------------------------------------------------------------------------------


class FileList:
    """The files that a source was given: paths, patterns, or both.

    Raises ConfigError if there are none, one path twice, or files of a kind that cannot be read.
    """

    def __init__(self, given: Paths, where: str, order: Order = "name") -> None:
        several = [given] if isinstance(given, str | os.PathLike) else given
        self.given = [os.fspath(path) for path in several]
        self.order = order
        self._matched: dict[str, frozenset[str]] = {}  # by each pattern, as of the last look
        self._folder: str | None = None
        if order not in {"name", "time"}:
            raise ConfigError("no such order of files", where=where, got=str(order), expected="'name' or 'time'")
        if not self.given:
            raise ConfigError("no files to read", where=where, got="no paths", expected="at least one path")
        twice = [path for path, times in Counter(self.given).items() if times > 1]
        if twice:
            raise ConfigError(
                "a file is listed twice, so its lines would have the same message ids",
                where=where,
                got=", ".join(twice),
                expected="every path once",
            )
        findings = [finding for path in self.given if (finding := _unsupported(path))]
        if findings:
            raise ConfigError(f"{where} cannot read these files", findings=findings)

    def begin(self) -> None:
        """Note the folder of this process, which relative paths depend on, at the start of a run."""
        self._folder = None if all(map(os.path.isabs, self.given)) else os.getcwd()

    def find(self) -> Listing:
        """What is there now.

        Raises:
            ConnectorError: relative paths would lead to another folder than at `begin`.
        """
        if self._folder is not None and (here := _current_folder()) != self._folder:
            raise ConnectorError(
                "relative paths of files lead elsewhere: this process has changed its folder since the run began",
                got=here,
                expected=self._folder,
                next_step="undo that (os.chdir), and it goes on; give absolute paths from the next start on",
            )
        out = Listing()
        found: dict[str, FoundFile] = {}
        folders: dict[str, str] = {}
        for given in self.given:
            is_pattern = glob.has_magic(given) and not os.path.lexists(given)
            names = self._expanded(given) if is_pattern else [given]
            usable = 0
            for name in names:
                one = found_at(name, folders)
                if isinstance(one, FoundFile):
                    found.setdefault(name, one)
                elif is_pattern and _is_passed_over(name):
                    continue
                elif is_absent(name):
                    out.missing[name] = one
                else:
                    out.faults[name] = one
                usable += 1
            if is_pattern and not usable:
                folder = pattern_folder(given)
                if why := _not_listed(folder):
                    out.faults[given] = Finding("the folder of the pattern cannot be listed", where=folder, got=why)
                elif os.path.isdir(folder):
                    out.unmatched[given] = Finding(
                        "no file matches the pattern", given, "", "at least one; `follow=True` waits for them"
                    )
                else:
                    out.faults[given] = Finding("the folder of the pattern is not there", where=given, got=folder)
        out.files = [*found.values()]
        if self.order == "time":
            out.files.sort(key=lambda file: (file.mtime_ns, file.name))
        return out

    def _expanded(self, pattern: str) -> list[str]:
        """The names that match. `glob` says nothing of folders that it cannot list: what it found before still counts.

        It does until the file is gone.
        """
        names = {*_names_of(pattern)}
        names.update(name for name in self._matched.get(pattern, frozenset()) - names if not is_absent(name))
        self._matched[pattern] = frozenset(names)
        return sorted(names)


@dataclass(slots=True)
class Listing:
    """The files that names and patterns refer to.

    Attributes:
        files: in the order in which they are read.
        missing: names of no file.
        faults: names of what is there and cannot be read.
        unmatched: patterns that match nothing.
    """

    files: list[FoundFile] = field(default_factory=list)
    missing: dict[str, Finding] = field(default_factory=dict)
    faults: dict[str, Finding] = field(default_factory=dict)
    unmatched: dict[str, Finding] = field(default_factory=dict)

    def check(self, known: Collection[str], unread: Mapping[str, str], *, follow: bool, is_looked: bool) -> None:
        """Judge whether a source can go on.

        Args:
            known: names of files that it has begun or read.
            unread: name of one that is gone → what of it was not read, in words.
            follow: it waits for files.
            is_looked: it has looked before.

        Raises:
            ConnectorError: it cannot; every reason.
        """
        findings = [*self.faults.values()]
        for name, finding in self.missing.items():
            if name in unread and not follow:
                step = "bring it back; to go on without it, leave it out of the paths"
                findings.append(replace(finding, got=f"{unread[name]} of it are unread", next_step=step))
            elif name not in known and not (follow and is_looked):
                findings.append(finding)
        if not known and not follow:
            findings += self.unmatched.values()
        if findings:
            raise ConnectorError("cannot read the files", findings=findings)


def pattern_folder(pattern: str) -> str:
    """The folder in which a pattern begins to match."""
    folder = os.path.dirname(pattern)
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    return folder or "."


def _names_of(pattern: str) -> Iterator[str]:
    """What `glob` finds, but `**` enters no folder that it is in already: links make such, without an end."""
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    at = parts.index("**")
    above, rest = "/".join(parts[:at]), "/".join(parts[at + 1 :]) or "*"
    root = above or ("/" if pattern.startswith("/") else "")
    for start in glob.glob(root) if glob.has_magic(root) else [root]:
        for folder in _folders_in(start, ()):
            yield from _names_of(os.path.join(glob.escape(folder), rest))


def _folders_in(folder: str, inside: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """A folder and all below it that are not hidden; `inside` are the devices and inodes of those that it is in."""
    try:
        status = os.stat(folder or ".")
        if (status.st_dev, status.st_ino) in inside:
            return
        yield folder
        with os.scandir(folder or ".") as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except OSError:  # what cannot be listed has no names, as `glob` has it
        return
    for name in names:
        yield from _folders_in(os.path.join(folder, name), (*inside, (status.st_dev, status.st_ino)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that is gone"


def _is_passed_over(name: str) -> bool:
    """Whether what a pattern has found cannot be read: a folder, a pipe, or removed since."""
    try:
        return not stat.S_ISREG(os.stat(name).st_mode)
    except OSError as error:
        return _says_absent(error)


def is_absent(name: str) -> bool:
    """Whether nothing is there. A file that cannot be looked at now (its server is away) is not gone."""
    try:
        os.stat(name)
    except OSError as error:
        return _says_absent(error)
    return False


def _says_absent(error: OSError) -> bool:
    return error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def _not_listed(folder: str) -> str:
    """Why a folder that is there cannot be listed; "" if it can, or is not there."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        return "" if _says_absent(error) else error.strerror or str(error)
    return ""


def found_at(name: str, folders: dict[str, str] | None = None) -> FoundFile | Finding:
    """The file of a name, or why it cannot be read as a file of lines.

    Args:
        name: as it was given or found.
        folders: folders whose links were resolved in this look; more are added. Each resolution asks the disk about
            every part of a path.
    """
    try:
        path = _resolved(name, {} if folders is None else folders)
        status = os.stat(path)
    except OSError as error:
        if os.path.exists(name):  # a link to what has no path, as /dev/stdin is to a pipe
            return _not_ordinary(name)
        return Finding(error.strerror or str(error), where=name, next_step=_hint(name))
    if stat.S_ISDIR(status.st_mode):
        return Finding(
            "is a folder", where=name, expected="a file", next_step=f"give a pattern for the files in it: {name}/*"
        )
    if not stat.S_ISREG(status.st_mode):
        return _not_ordinary(name)
    if not os.access(path, os.R_OK):
        return Finding("may not be read by this user", where=name)
    unsupported = _unsupported(path)
    if unsupported is not None:
        return unsupported
    return FoundFile(name, path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _not_ordinary(name: str) -> Finding:
    return Finding(
        "is no ordinary file, so it cannot be read again after a restart", where=name, next_step=_WRITE_TO_A_FILE
    )


def _resolved(name: str, folders: dict[str, str]) -> str:
    folder, base = os.path.split(name)
    if base in {"", ".", ".."} or os.path.islink(name):
        return os.path.realpath(name)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    return os.path.join(folders[folder], base)


def _hint(name: str) -> str:
    """A name that was cut at its comma is there with what follows the comma; `-` is what others read a pipe by."""
    if name == "-":
        return f"standard input cannot be read again after a restart: {_WRITE_TO_A_FILE}"
    folder, base = os.path.split(name)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return ""
    longer = next((one for one in sorted(names) if one.startswith(base + ",")), None)
    return "" if longer is None else f"{longer} is there: --set takes a comma that belongs to a name as \\,"


def siblings(path: str) -> Iterator[tuple[str, int]]:
    """The path and the inode of everything in the folder of a path; nothing if that is gone, or not for this user.

    Raises ConnectorError: it cannot be listed now.
    """
    folder = os.path.dirname(path)
    try:
        with os.scandir(folder) as entries:
            found = sorted((os.path.join(folder, entry.name), entry.inode()) for entry in entries)
    except OSError as error:
        if _says_absent(error) or isinstance(error, PermissionError):
            return
        raise ConnectorError(
            f"a folder of files cannot be listed: {error.strerror or error}", where=folder, next_step=way_out(error)
        ) from error
    yield from found


def way_out(error: OSError) -> str:
    """What to do about a file or folder that cannot be opened."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "let this process have more open files: `ulimit -n`, or LimitNOFILE= of its service"
    return "bring it back, or let this user read it"


# --- compression --------------------------------------------------------------------------------------------------


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of files that are decompressed."""

_OTHER_ARCHIVES = (".zip", ".lz4", ".snappy", ".7z", ".br", ".z", ".tar", ".tgz", ".rar", ".lzo", ".lzma")


def compression_of(path: str) -> str:
    """The suffix that says how a file is compressed; "" for none."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix if suffix in COMPRESSED else ""


def _unsupported(path: str) -> Finding | None:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _OTHER_ARCHIVES:
        return None
    return Finding(
        f"files that end with {suffix} cannot be read",
        where=path,
        expected=f"plain text, or {', '.join(COMPRESSED)}",
        next_step="unpack it, or pack it as one of these",
    )


def without_compression(path: str) -> str:
    """The path without the suffix of its compression."""
    return path.removesuffix(path[len(path) - len(compression_of(path)) :])
