"""Connections of processes that lease messages for others: kept, because a process does so again and again.

Owns one connection per queue and process. Refuses to settle what was leased: those do it that it was leased for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tupletree.queues.named import Queue
from tupletree.queues.registry import open_queue

_connected: dict[tuple[int, str, bool], Queue] = {}


@contextmanager
def leasing_from(url: str, *, ordered: bool) -> Iterator[Queue]:
    """The connection of this process; after an error it is made again. One thread at a time may have it."""
    key = os.getpid(), url, ordered  # a process that was forked must not use that of its parent
    queue = _connected.pop(key, None) or open_queue(url, ordered=ordered)
    try:
        yield queue
    except BaseException:
        queue.close()
        raise
    _connected[key] = queue
