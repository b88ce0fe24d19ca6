"""`tupletree run`: start a topology, show its progress, stop it in order, and print its summary."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import threading
from concurrent import futures
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tupletree.cli.arguments import Drop, Option, Rename, RuntimeName, Set, SettingsFile, Target
from tupletree.cli.summary import print_result, real_stdout

if TYPE_CHECKING:
    from tupletree.cli.progress import ProgressDisplay
    from tupletree.runtimes.api import RunHandle, Summary

_log = logging.getLogger(__name__)

POLL_S = 0.25
"""How soon a signal or new numbers are noticed."""

EXIT_DEAD_LETTERS = 3
EXIT_OPEN = 4
EXIT_MAX_DEAD = 5
EXIT_INTERRUPTED = 130


class LogStyle(Enum):
    """How logs are written."""

    TEXT = "text"
    JSON = "json"


class SummaryFormat(Enum):
    """How the summary is printed on stdout."""

    TEXT = "text"
    JSON = "json"


def run_command(
    target: Target,
    runtime: Annotated[RuntimeName, typer.Option(help="What runs it.")] = RuntimeName.SPARK,
    settings: Set = None,
    options: Option = None,
    config: SettingsFile = None,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark master.")] = "local[2]",
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="State directory; resumes what is there. \\[default: a new one in .tupletree]"
        ),
    ] = None,
    state_snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Local runtime: go on from the state in this file, and leave it there."),
    ] = None,
    rename: Rename = None,
    drop: Drop = None,
    durable: Annotated[
        bool,
        typer.Option("--durable", help="Local runtime: go on where the last run on the state directory ended."),
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Let sinks write beside what another run wrote.")] = False,
    summary: Annotated[
        SummaryFormat | None,
        typer.Option(help="json: the last line on stdout is one object. \\[default: as --log-format]"),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="Level of the logs on stderr.")] = "warning",
    log_format: Annotated[LogStyle, typer.Option(help="json: an object per line.")] = LogStyle.TEXT,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65_535, help="Serve Prometheus metrics at this port."),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen at; any other than 127.0.0.1 lets other hosts read them."
        ),
    ] = "127.0.0.1",
) -> None:
    """Run a topology until its input has ended and every message is settled, or until it is interrupted.

    Progress and logs go to stderr, results to stdout. With --summary json whatever the topology prints goes to
    stderr too. SIGINT, SIGTERM and SIGHUP drain what is in flight; a second one stops at once.

    Exit code: 0 everything acked; 3 finished with dead letters; 4 stopped with open messages; 5 more dead than
    max_dead allows; 2 usage, topology or option error; 1 runtime failure; 130 interrupted.
    """
    from tupletree.cli.progress import ProgressDisplay
    from tupletree.cli.settings import options_of, words_of
    from tupletree.cli.summary import open_text, summary_json, summary_text
    from tupletree.cli.target import load_target
    from tupletree.logs import imports_may_configure
    from tupletree.runtimes import run

    level = _level(log_level)
    as_json = log_format is LogStyle.JSON
    summary = summary or (SummaryFormat.JSON if as_json else SummaryFormat.TEXT)
    with real_stdout(diverted=summary is SummaryFormat.JSON) as results:
        with imports_may_configure(level, log_format.value):
            topology, reference = load_target(target, settings or ())
        resolved = options_of(topology.build().options, config, options or ())
        words = words_of(rename or (), drop or ())
        with Interruption() as interruption:
            handle = run.run(
                topology,
                runtime=runtime.value,
                options=resolved,
                target=reference,
                state_dir=state_dir,
                append=append,
                master=master,
                state_snapshot=state_snapshot,
                renames=words.renames,
                drops=words.drops,
                durable=durable or None,
            )
            with (
                _metrics(handle, topology.name, runtime.value, metrics_port, metrics_host),
                ProgressDisplay(topology.name, runtime.value, as_json=as_json) as display,
            ):
                ended = wait_for(handle, display, interruption, resolved.drain_timeout_s)
                if ended.open:
                    display.say(open_text(ended))
        render = summary_json if summary is SummaryFormat.JSON else summary_text
        print_result(render(ended), results)
    raise typer.Exit(exit_code_of(ended, interrupted=interruption.count > 0))


def exit_code_of(ended: Summary, *, interrupted: bool) -> int:
    """The exit code of a run that ended without an error of its own."""
    if interrupted:
        return EXIT_INTERRUPTED
    if ended.reason:
        return EXIT_MAX_DEAD
    if ended.open:
        return EXIT_OPEN
    return EXIT_DEAD_LETTERS if ended.dead else 0


def _metrics(
    handle: RunHandle, topology: str, runtime: str, port: int | None, host: str
) -> contextlib.AbstractContextManager[Any]:
    if port is None:
        return contextlib.nullcontext()
    from tupletree.runtimes.metrics import serve_metrics

    return serve_metrics(handle, topology, runtime, port, host)


class Interruption:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered; the second one raises KeyboardInterrupt in the program.

    SIGHUP (a terminal was closed) stays ignored where it is ignored, as under nohup. A handler of the target's own
    stays, and a warning says so. In a process that a bolt forks these signals do what they did before: otherwise
    nobody, `multiprocessing.Pool` for instance, could end it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is None:
                continue
            handler = signal.getsignal(number)
            if _is_of_the_target(handler):
                of = "" if handler is None else f": {getattr(handler, '__qualname__', repr(handler))}"
                _log.warning(
                    "%s has a handler already%s. It stays, and so the signal does not drain the run. "
                    "Next: do not set one, or drain with `tupletree drain`",
                    name,
                    of,
                )
            elif name != "SIGHUP" or handler is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        _entered.append(self)
        _watch_forks()
        return self

    def __exit__(self, *_: object) -> None:
        _entered.remove(self)
        self.undo()

    @property
    def signals(self) -> list[signal.Signals]:
        """Those that it counts."""
        return [*self._before]

    def undo(self) -> None:
        """Let the signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        del number, frame
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


def _is_of_the_target(handler: Any) -> bool:
    """Whether the target set it: not Python's, and not the one that PySpark sets for SIGINT with each session."""
    is_python_s = handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
    return not is_python_s and not str(getattr(handler, "__module__", "")).startswith("pyspark.")


_entered: list[Interruption] = []


@functools.cache
def _watch_forks() -> None:
    """Undo interruptions in forked processes; what arrives before that is done waits, or Python would forget it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold_signals, after_in_child=_undo_in_child, after_in_parent=_let_signals_in)


def _hold_signals() -> None:
    for one in _entered:
        signal.pthread_sigmask(signal.SIG_BLOCK, one.signals)


def _let_signals_in() -> None:
    for one in _entered:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, one.signals)


def _undo_in_child() -> None:
    for one in reversed(_entered):
        one.undo()
    _let_signals_in()
    _entered.clear()


def wait_for(
    handle: RunHandle, display: ProgressDisplay, interruption: Interruption, drain_timeout_s: float
) -> Summary:
    """Show progress until the run ended; on the first interruption drain it, on the second stop it at once."""
    try:
        while not interruption.count:
            with contextlib.suppress(TimeoutError):
                return handle.wait(timeout_s=POLL_S)
            display.show(handle.progress())
        display.say(f"interrupted: draining for at most {drain_timeout_s:g} s; interrupt again to stop at once")
        _drain(handle, display, drain_timeout_s)
    except KeyboardInterrupt:
        display.say("interrupted again: stopping at once; what is open counts as not processed")
        handle.stop(0.0)
    return handle.wait()


def _drain(handle: RunHandle, display: ProgressDisplay, timeout_s: float) -> None:
    """Stop the run, and show meanwhile what it waits for. Raises KeyboardInterrupt at the second interruption."""
    stopping: Future[None] = Future()

    def stop() -> None:
        try:
            stopping.set_result(handle.stop(timeout_s))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            stopping.set_exception(error)

    # A daemon: when it is interrupted again, this process ends whether or not the stop does.
    threading.Thread(target=stop, name="interrupted", daemon=True).start()
    while not futures.wait([stopping], POLL_S).done:
        display.show(handle.progress())
    stopping.result()


def _level(level: str) -> int:
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise typer.BadParameter(f"{level!r} is none of {', '.join(known).lower()}", param_hint="--log-level")
    return known[level.upper()]
