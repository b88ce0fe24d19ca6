"""How a run on Spark ends: what made it fail becomes an error that names the next step."""

from __future__ import annotations

import logging
import re
import site
import sys
import sysconfig
import traceback
from pathlib import Path

from tupletree import errors
from tupletree.errors import (
    PROGRAMMING_ERRORS,
    CheckpointError,
    ConfigError,
    InternalError,
    OutageLimitError,
    RuntimeUnavailableError,
    SourceChangedError,
    SpoutCodeError,
    TopologyError,
    TupletreeError,
    UnavailableAtStartError,
)

logger = logging.getLogger("tupletree.spark")

BEYOND_RESTARTS = (
    CheckpointError,
    ConfigError,
    OutageLimitError,
    RuntimeUnavailableError,
    SourceChangedError,
    SpoutCodeError,
    TopologyError,
    UnavailableAtStartError,
)
"""Errors that the next start would raise again."""

MAX_TRACEBACK = 4_000

_PACKAGE = errors.__file__.rpartition("/")[0]
"""As tracebacks have it: not through Path, which makes another text of `./tupletree.zip`."""

_FINAL: dict[str, type[TupletreeError]] = {
    one.__name__: one for one in (CheckpointError, RuntimeUnavailableError, TopologyError)
}
"""Errors of workers that no other execution can fix."""

_IN_WORKER = re.compile(rf"tupletree\.errors\.({'|'.join(_FINAL)}): (.+?)\n((?:  (?:got|expected|next): .*\n?)*)")
"""The text of such an error at the end of Spark's own."""


_NO_WORKER = re.compile(r"Error from python worker:\s*\n(.*?)\n\s*PYTHONPATH was:", re.DOTALL)
"""What the process said that was to become a worker, as Spark tells it."""

_OF_IMPORTS = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "SyntaxError", "TypeError")
"""Errors that it raises again at every start."""


class Closing(Exception):  # noqa: N818 - a signal to the settling thread, not an error
    """The run ends: the present epoch is not committed, and runs again at the next start."""


def is_session_lost(error: BaseException) -> bool:
    """Whether the Spark session, or the connection to it, has ended.

    A job that failed (`Py4JJavaError`) and a service that refuses a connection are no such ends.
    """
    one: BaseException | None = error
    while one is not None:
        kind = type(one)
        if kind.__module__.startswith("py4j.") and kind.__name__ != "Py4JJavaError":
            return True
        if isinstance(one, ConnectionError | EOFError) and _is_of_spark(one):
            return True
        one = one.__cause__
    return False


def _is_of_spark(error: BaseException) -> bool:
    """Whether an error came up in a call of Spark's own client."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in {"py4j", "pyspark"}:
            return True
        trace = trace.tb_next
    return False


def reason(error: BaseException, state_dir: Path) -> TupletreeError:
    """An error of Spark, a worker or a spout, as one that names the next step."""
    if isinstance(error, TupletreeError):
        return error
    text = str(error).strip()
    raised: TupletreeError | None = _from_worker(text)
    if raised is None:
        place, next_step = _place_of(error), f"fix the cause and resume with --state-dir {state_dir}: nothing is lost"
        if place and isinstance(error, PROGRAMMING_ERRORS):
            return SpoutCodeError.of("code of the topology failed in the driver", error, place, next_step=next_step)
        if (start := text.find("Traceback (most recent call last)")) >= 0:
            logger.error("a worker failed: %s", text[start : start + MAX_TRACEBACK])
        failed = InternalError if isinstance(error, AssertionError) else TupletreeError
        raised = failed(
            "the run failed",
            where=place,
            got=first_line(error),
            next_step=next_step,
        )
    raised.__cause__ = error
    return raised


def first_line(error: BaseException) -> str:
    """An error in one line; of an error in a worker only its own text, without Spark's around it."""
    text = str(error).strip()
    if (found := _NO_WORKER.search(text)) is not None:
        return found[1].strip().rpartition("\n")[2].strip()[:500]
    if (start := text.find("Traceback (most recent call last)")) >= 0:
        block = text[start:].split("\n\n", 1)[0].splitlines()
        raised = [line for line in block[1:] if line and not line[0].isspace()]
        if raised:
            return raised[0].strip()[:500]
    if (start := text.find("Job aborted due to")) >= 0:
        return text[start:].partition("\n")[0][:500]
    return f"{type(error).__qualname__}: {text.partition(chr(10))[0][:500]}"


def is_final(error: BaseException) -> bool:
    """Whether no other execution can fix Spark's error, such as a damaged file of the state directory."""
    return isinstance(error, TupletreeError) or _from_worker(str(error).strip()) is not None


def _place_of(error: BaseException) -> str:
    """The line of the user's own code, usually a source's, that raised this in the driver; empty if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    packages = (_PACKAGE, *site.getsitepackages(), sysconfig.get_path("stdlib"))
    own = [frame for frame in frames if not frame.filename.startswith(packages)]
    return f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""


def _from_worker(text: str) -> TupletreeError | None:
    """The error that a worker raised: it crosses the process boundary as text only."""
    found = _IN_WORKER.search(f"{text}\n")
    if found is None:
        return _no_worker(text)
    where, _, what = found[2].rpartition(": ")
    parts = dict(line.strip().split(": ", 1) for line in found[3].splitlines())
    return _FINAL[found[1]](
        what,
        where=where,
        got=parts.get("got", ""),
        expected=parts.get("expected", ""),
        next_step=parts.get("next", ""),
    )


def _no_worker(text: str) -> ConfigError | None:
    """The error of a worker's Python that ended before any code of a run was there: what it imports first is wrong."""
    found = _NO_WORKER.search(text)
    if found is None:
        return None
    said = found[1].strip()
    raised = said.rpartition("\n")[2].strip()
    if not raised.startswith(_OF_IMPORTS):
        return None  # such as too little memory: the next one may start
    hiding = [path for path in _hiding_modules() if str(path) in said]
    return ConfigError(
        "Spark's Python workers cannot start",
        where=", ".join(map(str, hiding)),
        got=raised,
        expected="a Python that imports its own modules" if hiding else "a Python that runs `-m pyspark.daemon`",
        next_step="rename the file: it hides a module of Python's own, for workers look into the current folder first"
        if hiding
        else "see what `tupletree doctor` says of the workers' Python, and whether a file in the current folder, or on "
        "PYTHONPATH, has the name of one that this needs",
    )


def _hiding_modules() -> list[Path]:
    """What lies in the current folder and has the name of a module of Python's own."""
    try:
        folder = Path.cwd()
        return sorted(path for path in folder.iterdir() if path.name.removesuffix(".py") in sys.stdlib_module_names)
    except OSError:  # the folder is gone
        return []
