"""Processes that user code forks: a copy of a worker must not go on as if it was the worker.

A bolt that calls `os.fork` and returns in the child, or leaves it with `sys.exit`, would leave a second process that
works the same tuples, writes the same files and answers on the same sockets.
"""

from __future__ import annotations

import os
import sys


class _This:
    """This process. A system call for each frame would cost more than many a bolt."""

    process = os.getpid()

    @classmethod
    def note(cls) -> None:
        cls.process = os.getpid()


os.register_at_fork(after_in_child=_This.note)


def leave_if_forked(process: int, exit_code: object = 0) -> None:
    """End this process at once, with no word to anybody, unless its id is `process`.

    Args:
        process: the id of the process that is to go on.
        exit_code: as of `SystemExit`; no number counts as 1, None as 0.
    """
    if _This.process != process:
        sys.stderr.flush()
        code = 0 if exit_code is None else exit_code
        os._exit(code if isinstance(code, int) else 1)
