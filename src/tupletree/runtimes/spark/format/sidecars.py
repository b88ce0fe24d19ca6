"""Sidecars: the roots of the rows of a candidate file, beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from tupletree.data.columns import Anchors
from tupletree.data.frames import Root
from tupletree.durable import damaged, missing, pack, read_container
from tupletree.runtimes.spark.format import wire
from tupletree.sinks.files import written


def part_text(part: int) -> str:
    """What the name of a further candidate of a task has after that of the first."""
    return f"-{part:03d}" if part else ""


def sidecar_of(candidate: Path) -> Path:
    """The sidecar of a candidate."""
    return candidate.with_suffix(".roots")


class _Sidecar(msgspec.Struct, array_like=True):
    """Lengths of the three parts of the layout that follow, and the XXH3-64 of the candidate if its rows wait."""

    lengths: tuple[int, int, int]
    candidate: int | None = None


def write_sidecar(path: Path, layout: tuple[bytes, bytes, bytes], *, lasting: bool, waits: Path | None = None) -> None:
    """Write the roots of a candidate's rows.

    Args:
        path: of the sidecar.
        layout: the roots, packed.
        lasting: they are read after the commit, too.
        waits: the candidate, if rows of it wait for later epochs: the sidecar then has its checksum.
    """
    digest = None if waits is None else _digest(waits)
    data = pack(_Sidecar((len(layout[0]), len(layout[1]), len(layout[2])), digest), layout)
    if lasting:
        with written(path) as file:
            file.writelines(data)
    else:
        path.write_bytes(b"".join(data))


def read_anchors(path: Path) -> Anchors:
    """What the rows of a candidate are anchored to. Raises CheckpointError for a missing or damaged sidecar."""
    return _read(path)[1]


def read_sidecar(path: Path) -> list[Root]:
    """The root of each row of a candidate. Raises as `read_anchors`."""
    return rows_of(read_anchors(path))


def rows_of(anchors: Anchors) -> list[Root]:
    """The root of each row."""
    roots, ends = anchors.layout()
    if len(roots) == ends[-1]:  # as almost always
        return roots
    per_row: list[Root] = []
    for root, end in zip(roots, ends, strict=True):
        per_row += [root] * (end - len(per_row))
    return per_row


def read_waiting(candidate: Path, sidecar: Path) -> list[Root]:
    """The same for a candidate whose rows have waited, which is verified too.

    Raises CheckpointError for either file that is missing or damaged.
    """
    digest, anchors = _read(sidecar)
    if not candidate.exists():
        raise missing(candidate)
    if _digest(candidate) != digest:
        raise damaged(str(candidate), "its checksum does not match its bytes", "the rows that were committed")
    return rows_of(anchors)


def _read(path: Path) -> tuple[int | None, Anchors]:
    header, body = read_container(path, _Sidecar)
    first, second, third = header.lengths
    parts = body[:first], body[first : first + second], body[first + second : first + second + third]
    return header.candidate, wire.unpack_anchors(*map(bytes, parts))


def _digest(path: Path) -> int:
    return xxhash.xxh3_64_intdigest(path.read_bytes())
