"""How a run ended, as text for people and as one line of JSON for programs, and the streams where it is printed.

Results stay apart from what else is printed. What a run did is its exit code's to say: a terminal that was closed, a
pipe that no process reads and a log file on a full disk end no run and change no exit code, and what cannot be shown is
dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from tupletree.escaping import escape
from tupletree.texts import counted

if TYPE_CHECKING:
    from tupletree.runtimes.api import Summary


def summary_json(summary: Summary) -> str:
    """One line, one object; keys are added in later versions, never renamed."""
    return json.dumps(
        {
            "topology": summary.topology,
            "runtime": summary.runtime,
            "emitted": summary.emitted,
            "acked": summary.acked,
            "failed": summary.failed,
            "retried": summary.retried,
            "dead": summary.dead,
            "open": summary.open,
            "open_in_flight": summary.left.in_flight,
            "open_waiting": summary.left.waiting,
            "open_awaited": summary.left.awaited,
            "untracked": summary.untracked,
            "untracked_failed": summary.untracked_failed,
            "joined": summary.joined,
            "seconds": round(summary.seconds, 3),
            "reason": summary.reason,
            "outputs": dict(summary.outputs),
            "late": dict(summary.late),
            "state_dir": str(summary.state_dir),
        }
    )


def open_text(summary: Summary) -> str:
    """The text about messages that a stopped run leaves open, and what happens to them next."""
    if summary.resumes:
        durable = "--durable " if summary.runtime == "local" else ""
        then = f"start it again with {durable}--state-dir {summary.state_dir}: it goes on with them"
    else:
        then = "they were failed to their sources; a local run is resumed only if it is durable (--durable)"
    count = counted(summary.open, "message is", "messages are")
    return f"{count} open: {summary.left.text() or 'in flight'}\n  next: {then}"


def summary_text(summary: Summary) -> str:
    """A few lines that account for every message."""
    lines = [
        f"{summary.topology} on {summary.runtime}: {counted(summary.emitted, 'message')} in {summary.seconds:.1f} s",
        f"  acked  {summary.acked:>12,}",
        f"  dead   {summary.dead:>12,}",
        f"  open   {summary.open:>12,}",
        f"  failed attempts {summary.failed:,}, retried {summary.retried:,}",
    ]
    if summary.reason:
        lines.append(f"  ended early: {summary.reason}")
    if summary.untracked or summary.untracked_failed:
        lines.append(f"  untracked {summary.untracked:,}, failed tuples of no message {summary.untracked_failed:,}")
    if summary.joined:
        lines.append(f"  delivered again while they were open {summary.joined:,}")
    if summary.late:
        lines.append(f"  {late_text(summary.late)}")
    if summary.outputs:
        width = max(map(len, summary.outputs))
        lines += [f"  sink {name:<{width}}  {counted(rows, 'row')}" for name, rows in summary.outputs.items()]
    lines.append(f"  state in {summary.state_dir}")
    if summary.dead:
        lines.append(f"  next: tupletree dead list --state-dir {summary.state_dir}")
    return "\n".join(map(escape, lines))


def late_text(late: Mapping[str, int]) -> str:
    """How many tuples came too late, and for what: component → tuples."""
    where = ", ".join(f"{name} {count:,}" for name, count in sorted(late.items(), key=lambda one: -one[1]))
    return f"{counted(sum(late.values()), 'tuple')} came too late for windows or joins: {where}"


def open_standard_streams() -> None:
    """Open what was closed when the process was started, on the null device.

    Otherwise the next file that is opened, a journal's for instance, would get the number of stdout or stderr, and with
    it whatever a library prints.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDONLY if descriptor == 0 else os.O_WRONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = _null_stream()
    if sys.stderr is None:
        sys.stderr = _null_stream()


def print_result(text: str, stream: TextIO) -> None:
    """Print a result. Where that is not possible stderr says so, unless it is a pipe whose reader has gone."""
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError) as error:
        _drop_rest(stream)
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError, ValueError):
                print(f"the result cannot be printed: {error}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Let what is left to print on stdout go nowhere, because no process reads it any more."""
    _drop_rest(sys.stdout)


@contextlib.contextmanager
def real_stdout(*, diverted: bool) -> Iterator[TextIO]:
    """Yield the stream for results; if `diverted`, everything else that is printed goes to stderr from now on.

    Also for child processes and libraries that write to the descriptor: they must not break the last line. The
    diversion lasts until the process ends, because a late thread may still print.
    """
    standard = sys.stdout
    if not diverted:
        yield standard
        return
    with contextlib.suppress(OSError, ValueError):
        standard.flush()
    if _descriptor_of(standard) != 1:  # replaced, as in a test or a notebook: only this process can print to it
        sys.stdout = sys.stderr
        try:
            yield standard
        finally:
            sys.stdout = standard
        return
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as kept:
        os.dup2(2, 1)
        yield kept


def _null_stream() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _drop_rest(stream: TextIO) -> None:
    """Let what a stream could not write go nowhere: closing it at the end would raise again."""
    descriptor = _descriptor_of(stream)
    if descriptor is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


def _descriptor_of(stream: TextIO) -> int | None:
    fileno: Callable[[], int] | None = getattr(stream, "fileno", None)
    try:
        return fileno() if fileno else None
    except (OSError, ValueError):
        return None
