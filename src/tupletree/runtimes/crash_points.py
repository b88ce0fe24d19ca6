"""Named points where a test may kill the process: at each step whose order the guarantee depends on.

`TT_CRASH_AT=point` kills at the first pass of that point, `point:3` at the third. Without the variable a pass
costs one dictionary look-up. The kill is SIGKILL: nothing is flushed, closed or undone. It works only in processes
that pytest started, so a variable that was left set ends no run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "TT_CRASH_AT"
UNDER_TESTS: Final = "PYTEST_VERSION"
"""pytest sets it for as long as it runs, and the processes that it starts inherit it."""

CRASH_POINTS: Final = (
    "generation.claimed",
    "upgrade.written",
    "take.before",
    "take.after",
    "epoch.before_log",
    "epoch.after_log",
    "settle.after_run",
    "settle.before_rerun",
    "settle.before_log",
    "settle.after_log",
    "publish.before_output",
    "publish.after_output",
    "publish.before_call",
    "publish.after_call",
    "publish.before_amendment",
    "publish.after_amendment",
    "publish.after_dead",
    "settle.after_publish",
    "callbacks.before",
    "callbacks.after",
    "sweep.before_history",
    "sweep.after_history",
    "sweep.after",
)

_passes: dict[str, int] = {}

on_reached: Callable[[str], None] | None = None
"""A function that a test in this process sets: called at each point that is reached; it may raise instead of a kill."""


def crash_point(name: str) -> None:
    """Kill this process here if the environment says so."""
    if on_reached is not None:
        on_reached(name)
    wanted = os.environ.get(VARIABLE)
    if wanted is None or UNDER_TESTS not in os.environ:
        return
    point, _, count = wanted.partition(":")
    if point != name:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if _passes[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
