"""Batches that a sink remembers by number: whether one is there.

Owns what sinks with a transaction of their own (SQL, Delta Lake) conclude from the newest number of a writer. It
refuses to know how that is stored.
"""

from __future__ import annotations

from tupletree.errors import ConnectorError


def is_there(writer: str, newest: int | None, number: int) -> bool:
    """Whether the batch of a number is there, if `newest` is the newest one of its writer.

    Raises ConnectorError: a later one is. A run calls in order, so that another process wrote it under this writer's
    name: one that works with a copy of the state directory. Which rows it wrote is not known here.
    """
    if newest is not None and newest > number:
        raise ConnectorError(
            "a later batch of this run is there already",
            where=writer,
            got=f"batch {newest}",
            expected=f"none later than {number}, which is to be written",
            next_step="see whether another process runs on a copy of this state directory: only one of them can go on",
        )
    return newest is not None and newest == number
