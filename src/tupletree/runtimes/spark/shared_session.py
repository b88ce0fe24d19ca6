"""The Spark session that runs of this process made, and how many of them use it.

Owns when it is stopped: with its last user. A session that was there before belongs to somebody else, and is left
alone. What is left of a session whose JVM died is cleared away, so that the next one starts a JVM.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from tupletree.runtimes.spark.session import open_session


class SharedSession:
    """See the module docstring. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Any = None
        self._users = 0

    def enter(self, name: str, master: str) -> Any:
        """A session for one more run; see `open_session`, and raises what that does. `leave` it once."""
        with self._lock:
            if forget_dead_jvm():
                self._context, self._users = None, 0
            session, started = open_session(name, master)
            if started:
                self._context, self._users = session.sparkContext, 0
            if session.sparkContext is self._context:
                self._users += 1
            return session

    def leave(self, session: Any) -> None:
        """A run needs it no longer."""
        with self._lock:
            if self._context is None or session.sparkContext is not self._context:
                return  # somebody else's, or of a JVM that died meanwhile
            self._users -= 1
            if self._users:
                return
            self._context = None
            if not forget_dead_jvm():
                with contextlib.suppress(Exception):  # a session that has failed cannot be stopped
                    session.stop()


SESSIONS = SharedSession()


def forget_dead_jvm() -> bool:
    """Clear what PySpark keeps of a JVM that it started and that has ended; whether there was one.

    PySpark would go on to talk to it, and every session after it would fail with "Connection refused".
    """
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - pyspark has no public word for any of it
    if process is None or process.poll() is None:
        return False
    context = SparkContext._active_spark_context  # noqa: SLF001 - as above
    accumulators = getattr(context, "_accumulatorServer", None)
    if accumulators is not None:
        with contextlib.suppress(Exception):
            accumulators.shutdown()
    if context is not None:
        context._jsc = None  # noqa: SLF001 - as above
    SparkContext._active_spark_context = None  # noqa: SLF001 - as above
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - as above
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001 - as above
    return True
