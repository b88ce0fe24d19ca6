"""Processes of their own that begin with everything imported: forked from a server, which has no threads.

A process that lives for half a second would spend another one on imports. It is killed, and dies, as any other.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Forked", "Process", "fork"]

PRELOADED = [
    "pandas",
    "pyspark.cloudpickle",
    "tests.spark.every_sink",
    "tests.spark.held",
    "tests.spark.timed",
    "tupletree.runtimes.spark.runtime",
    "tupletree.testing.in_process",
]

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(PRELOADED)


class Process(Protocol):
    """A process of the tests, forked or not."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> object:
        """Raises subprocess.TimeoutExpired."""


class Forked:
    """See `Process`."""

    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)


def fork(main: str, plan: object, said: Path, environment: Mapping[str, str]) -> Forked:
    """Call `main` (`module:function`) with a plan, in a process and a session of its own.

    Args:
        main: what to call.
        plan: its argument.
        said: the file to which goes what it prints.
        environment: variables, on top of those of this process.
    """
    process = _SERVER.Process(target=_begin, args=(main, plan, str(said), dict(environment)))
    process.start()
    return Forked(process)


def _begin(main: str, plan: object, said: str, environment: dict[str, str]) -> None:
    os.setsid()
    os.environ.update(environment)
    output = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    module, _, name = main.partition(":")
    getattr(importlib.import_module(module), name)(plan)
