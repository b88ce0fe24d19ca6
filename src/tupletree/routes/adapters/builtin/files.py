"""`list_files`, `read_file`, `write_file`: files below one folder, and nowhere else."""

from __future__ import annotations

import errno
from pathlib import Path as FilePath
from typing import Any, Literal

from pydantic import Field

from tupletree import durable
from tupletree.errors import ConnectorError, PermanentError
from tupletree.routes import payloads
from tupletree.routes.adapters.builtin.split import pieces
from tupletree.routes.adapters.builtin.texts import TemplateText, Text
from tupletree.routes.adapters.contract import Adapter, AdapterConfig, AdapterContext, AdapterResult, PipelineContext
from tupletree.routes.adapters.paths import Path, PathText, TargetText, value_at

_NO_OUTAGE = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
    errno.EEXIST, errno.EFBIG,
}  # fmt: skip
"""What the path of a message is to blame for; other errors say that a disk is away or full."""


class ListFilesConfig(AdapterConfig):
    """Which files.

    Attributes:
        folder: below which they are; relative to where the pipeline runs.
        pattern: as of a shell: `*.txt`, and `**/` for folders within folders. What begins with a dot is left out.
        into: where each message has the file's path, relative to the folder.
    """

    folder: str = Field(min_length=1)
    pattern: str = Field(default="**/*", min_length=1)
    into: TargetText = "payload.path"


class ListFiles(Adapter[ListFilesConfig]):
    """Emits a message for each file of a folder, in the order of their paths; ends the chain. None: *filtered*."""

    Config = ListFilesConfig
    parallel = True

    def process(self, context: PipelineContext) -> AdapterResult:
        root = _root(self.config.folder)
        try:
            found = sorted(
                path.relative_to(root).as_posix() for path in root.glob(self.config.pattern) if path.is_file()
            )
        except (OSError, ValueError, NotImplementedError) as error:
            raise _fault(error, "list", self.config.folder) from error
        names = [name for name in found if not any(part.startswith(".") for part in name.split("/"))]
        into = Path(self.config.into)
        return pieces([into.put(context.message, name).payload for name in names], "no file is there")


class ReadFileConfig(AdapterConfig):
    """Which file, and as what.

    Attributes:
        folder: below which the file must be, after links have been followed.
        path: a template for its path, relative to the folder.
        into: where the content is put.
        mode: `text` or `bytes`.
        encoding: of text; a byte that is none fails the message for good.
        max_bytes: a larger file fails the message for good.
    """

    folder: str = Field(min_length=1)
    path: TemplateText = "{{ payload.path }}"
    into: TargetText = "payload.content"
    mode: Literal["text", "bytes"] = "text"
    encoding: str = "utf-8"
    max_bytes: int = Field(default=100_000_000, ge=1)


class ReadFile(Adapter[ReadFileConfig]):
    """Reads a file. One that is not there, or outside of the folder, fails the message for good."""

    Config = ReadFileConfig
    parallel = True

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        self._path = Text(self.config.path, "read_file: path")

    def process(self, context: PipelineContext) -> AdapterResult:
        config = self.config
        name = self._path.render(context)
        path = _below(_root(config.folder), name)
        try:
            data = durable.read_file(path, max_bytes=config.max_bytes)
        except (OSError, ValueError) as error:
            raise _fault(error, "read", name) from error
        content: Any = data
        if config.mode == "text":
            try:
                content = data.decode(config.encoding)
            except (UnicodeDecodeError, LookupError) as error:
                raise PermanentError(
                    "this file is no text", where=name, got=str(error), expected=f"text in {config.encoding}"
                ) from error
        return AdapterResult(Path(config.into).put(context.message, content))


class WriteFileConfig(AdapterConfig):
    """Which file, and what is in it.

    Attributes:
        folder: below which the file is written, after links have been followed; it must be there.
        path: a template for its path, relative to the folder; folders on the way are made.
        content: path of what is written: text and bytes as they are, other values as JSON.
        encoding: of text.
        mode: permissions of the file.
    """

    folder: str = Field(min_length=1)
    path: TemplateText
    content: PathText = "payload.content"
    encoding: str = "utf-8"
    mode: int = Field(default=0o644, ge=0, le=0o777)


class WriteFile(Adapter[WriteFileConfig]):
    """Writes a file, as a whole or not at all, and lets the message pass. The same message writes it again."""

    Config = WriteFileConfig
    parallel = True

    def open(self, context: AdapterContext) -> None:  # noqa: ARG002 - the contract's
        self._path = Text(self.config.path, "write_file: path")

    def process(self, context: PipelineContext) -> AdapterResult:
        config = self.config
        content = value_at(Path(config.content), context.message)
        name = self._path.render(context)
        root = _root(config.folder)
        path = _below(root, name)
        if path == root:
            raise PermanentError("this is no path of a file", where=name)
        try:
            if isinstance(content, str):
                content = content.encode(config.encoding)
            elif not isinstance(content, bytes):
                content = payloads.encode(content)
        except (UnicodeEncodeError, LookupError) as error:
            raise PermanentError(f"this text has no form in {config.encoding}", where=name, got=str(error)) from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            durable.replace_file(path, content, mode=config.mode)
        except (OSError, ValueError) as error:
            raise _fault(error, "write", name) from error
        return AdapterResult(context.message)


def _root(folder: str) -> FilePath:
    """The folder, with links followed. Raises ConnectorError if it is not there: a disk that is not mounted yet."""
    try:
        root = FilePath(folder).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ConnectorError(
            "the folder of this adapter is not there", where=folder, got=str(error), next_step="make it, or mount it"
        ) from error
    if not root.is_dir():
        raise ConnectorError("the folder of this adapter is none", where=folder)
    return root


def _below(root: FilePath, name: str) -> FilePath:
    """The path of a name below a folder, with links followed."""
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise PermanentError("this is no path of a file", where=name, got=str(error)) from error
    if not path.is_relative_to(root):
        raise PermanentError(
            "this path leads out of the adapter's folder",
            where=name,
            got=str(path),
            expected=f"a path below {root}",
        )
    return path


def _fault(error: Exception, what: str, name: str) -> PermanentError | ConnectorError:
    text = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
    if isinstance(error, OSError) and error.errno not in _NO_OUTAGE:
        return ConnectorError(f"cannot {what} files", where=name, got=text)
    return PermanentError(f"cannot {what} this file", where=name, got=text)
