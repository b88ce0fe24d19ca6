"""Processes that user code forks: a copy of a worker must not go on as if it was the worker.

A bolt that calls `os.fork` and returns in the child, or leaves it with `sys.exit`, would leave a second process that
works the same tuples, writes the same files and answers on the same sockets.
"""

from __future__ import annotations

import os
import sys

__all__ = ["leave_if_forked"]


def leave_if_forked(process: int, exit_code: object = 0) -> None:
    """End this process at once, with no word to anybody, unless its id is `process`.

    Args:
        process: the id of the process that is to go on.
        exit_code: as of `SystemExit`; no number counts as 1, None as 0.
    """
    if os.getpid() != process:
        sys.stderr.flush()
        code = 0 if exit_code is None else exit_code
        os._exit(code if isinstance(code, int) else 1)
