"""What the JVM and its workers write to stderr, as JSON lines where the log is one of JSON lines.

Java announces modules there, Spark logs errors as text, and it copies there what bolts print in workers. A program that
reads the log of `--log-format json` would meet lines that are no objects.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator

import msgspec

from tupletree.logs import json_line, writes_json

LOGGER = "tupletree.java"
NOTHING_NEW = "WARNING: Using incubator modules: "
"""Java says so at each start, because Spark's command line asks for one."""

CHUNK = 1 << 16


@contextlib.contextmanager
def stderr_of_java() -> Iterator[dict[str, int]]:
    """Start the JVM in the block, with what is yielded as more arguments of `Popen`.

    Where the log is no JSON it is nothing: the JVM has this process's stderr. Otherwise it writes to a pipe, which a
    thread of this process reads until the JVM and its workers have ended.
    """
    if not writes_json():
        yield {}
        return
    reading, writing = os.pipe()
    threading.Thread(target=_copy, args=(reading,), name="stderr of Java", daemon=True).start()
    try:
        yield {"stderr": writing}
    finally:
        os.close(writing)  # the JVM has its own


def _copy(reading: int) -> None:
    with os.fdopen(reading, "rb", buffering=0) as stream:
        kept = b""
        while chunk := stream.read(CHUNK):
            *lines, kept = (kept + chunk).split(b"\n")
            _write(as_json_lines(lines))
        _write(as_json_lines([kept] if kept else []))


def _write(lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if sys.stderr:  # None where it was closed before the start
        # It may be closed or full by now. The run goes on then, and Java is not to wait for room in the pipe.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def as_json_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Objects as they are; what stands between them, such as a stack trace, as one record of the logger of Java."""
    texts: list[str] = []
    for line in lines:
        text = line.decode("utf-8", "backslashreplace").rstrip("\r")
        if _is_object(line):
            yield from _record(texts)
            texts = []
            yield text
        elif not text.startswith(NOTHING_NEW):
            texts.append(text)
    yield from _record(texts)


def _record(texts: list[str]) -> Iterator[str]:
    if any(texts):
        yield json_line("\n".join(texts), level="WARNING", logger=LOGGER)


def _is_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True
