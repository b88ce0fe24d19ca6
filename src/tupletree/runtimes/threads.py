"""Threads and event loops that users' code runs on: what the system refuses, and what ends a program, ends no run.

Refuses to know what runs there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tupletree.errors import ConnectorError

T = TypeVar("T")


def start_thread(thread: threading.Thread) -> threading.Thread:
    """Start a thread, and return it.

    Raises:
        ConnectorError: there are too many threads and processes. No message is to blame for that.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if thread.ident is not None:  # it was started before, which is a fault of the caller
            raise
        raise ConnectorError(
            "no thread can be started",
            where=thread.name,
            got=str(error),
            next_step="raise the limit of processes (`ulimit -u`, `pids.max` of a container), or end what has too many",
        ) from error
    return thread


def run_until_complete(
    loop: asyncio.AbstractEventLoop, awaitable: Awaitable[T], tell: Callable[[BaseException], None]
) -> T:
    """What the awaitable gives, or raises.

    A loop ends in the middle of what it does when one of its tasks raises SystemExit or KeyboardInterrupt. If that is a
    task that users' code has started, the loop goes on: who awaits the task gets what it raised, and so does `tell`.
    """
    process = os.getpid()
    task = asyncio.ensure_future(awaitable, loop=loop)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or os.getpid() != process:  # a process that users' code has forked off ends
                raise
            tell(error)
    return task.result()
