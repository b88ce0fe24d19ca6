"""Logs that say which message they are about: the bolt, its task, the root and the attempt in hand.

Nothing is set up on import. `tupletree run` calls `log_to_stderr`, and Spark's workers follow it by an environment
variable that they inherit; a program of your own may call it too, or put `MessageContext` on handlers of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Literal, TextIO

from tupletree.bolts.effects import IN_HAND
from tupletree.data.frames import roots_of
from tupletree.escaping import escape_block
from tupletree.ids import hex_id

VARIABLE = "TT_LOG"
"""`LEVEL:FORMAT`, for workers. On a cluster they inherit it from `spark.executorEnv.TT_LOG`."""

MAX_ROOTS = 20
"""Messages that one record names: a window may have thousands in hand."""

LogFormat = Literal["text", "json"]

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(about)s"
_FIELDS = ("component", "task", "root", "attempt")


class MessageContext(logging.Filter):
    """Adds to each record: `component`, `task`, `root` and `attempt` of the tuple in hand, or of those of a batch.

    `root` is in hex, several with commas; of more than `MAX_ROOTS` the number of the others follows: `,+7`.
    Outside of a bolt's call they are "", -1, "" and 0. `about` has them as text to append to a line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        place = IN_HAND.get()
        about: dict[str, object] = {"component": "", "task": -1, "root": "", "attempt": 0, "about": ""}
        if place is not None and place.root is not None:
            roots = roots_of(place.root)
            others = [f"+{len(roots) - MAX_ROOTS}"] if len(roots) > MAX_ROOTS else []
            root = ",".join([*map(hex_id, roots[:MAX_ROOTS]), *others])
            text = f" [{place.component} task {place.task_id}, root {root or 'none'}]"
            about = {
                "component": place.component,
                "task": place.task_id,
                "root": root,
                "attempt": place.attempt,
                "about": text,
            }
        vars(record).update(about)
        return True


class TextFormatter(logging.Formatter):
    """Lines for people: a record begins at the left, its other lines do not, and a terminal executes nothing in it."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        return escape_block(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (UTC), level, logger, message, and where it belongs to one, its tuple."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        line = _json_head(record.created, record.levelname, record.name, record.getMessage())
        if getattr(record, "component", ""):
            line.update((name, getattr(record, name)) for name in _FIELDS)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def json_line(message: str, *, level: str = "INFO", logger: str = "tupletree.run", **more: object) -> str:
    """A line as `JsonFormatter` writes them, for what is written to stderr besides the log."""
    return json.dumps({**_json_head(time.time(), level, logger, message), **more}, default=str)


def writes_json() -> bool:
    """Whether the log on stderr is one of JSON lines."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _json_head(created_s: float, level: str, logger: str, message: str) -> dict[str, object]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
    moment = f"{seconds}.{int(created_s % 1.0 * 1000):03d}Z"
    return {"time": moment, "level": level, "logger": logger, "message": message}


def log_to_stderr(level: int, style: LogFormat = "text", *, for_workers: bool = True) -> None:
    """Let the root logger write to stderr, unless it has handlers already.

    Args:
        level: as in `logging`.
        style: lines for people, or JSON for programs.
        for_workers: let Spark's workers, which are started later, do the same.
    """
    if for_workers:
        os.environ[VARIABLE] = f"{logging.getLevelName(level)}:{style}"
    root = logging.getLogger()
    if root.handlers:
        return
    root.addHandler(_handler(style))
    _set_level(level)


@contextlib.contextmanager
def imports_may_configure(level: int, style: LogFormat = "text", *, for_workers: bool = True) -> Iterator[None]:
    """As `log_to_stderr`, but code that is imported in the block may set up logging by itself, and that stays then.

    In the block the root logger has no handler yet, so that `logging.basicConfig` has its effect; records go to stderr
    all the same.
    """
    root, last_resort = logging.getLogger(), logging.lastResort
    if not root.handlers:
        logging.lastResort = _handler(style)
        _set_level(level)
    try:
        yield
    finally:
        logging.lastResort = last_resort
        log_to_stderr(level, style, for_workers=for_workers)


def _handler(style: LogFormat) -> logging.StreamHandler[TextIO]:
    handler = logging.StreamHandler()
    handler.addFilter(MessageContext())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    return handler


def _set_level(level: int) -> None:
    logging.getLogger().setLevel(level)
    # The gateway to the JVM logs every call at INFO.
    logging.getLogger("py4j").setLevel(max(level, logging.WARNING))


@contextlib.contextmanager
def follow_environment() -> Iterator[None]:
    """Set up logging as the variable says; without it leave it alone. For workers; entering it again is harmless.

    What is imported in the block may set up logging by itself: see `imports_may_configure`.
    """
    level, _, style = os.environ.get(VARIABLE, "").partition(":")
    number = logging.getLevelNamesMapping().get(level)
    if number is None:
        yield
        return
    with imports_may_configure(number, "json" if style == "json" else "text", for_workers=False):
        yield
