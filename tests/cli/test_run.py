"""How `run` waits, is interrupted, shows progress and its summary; the runtime here is scripted."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tupletree.cli import progress, run
from tupletree.cli.progress import ProgressDisplay, progress_line
from tupletree.cli.run import Interruption, exit_code_of, wait_for
from tupletree.cli.summary import open_text, summary_json, summary_text
from tupletree.errors import ConnectorError
from tupletree.runtimes.api import Progress, RunHandle, Summary
from tupletree.runtimes.progress import Reporter
from tupletree.tracking.outages import ShownOutage

ENDED = Summary(
    topology="orders",
    runtime="spark",
    emitted=10,
    acked=8,
    failed=7,
    retried=5,
    dead=2,
    open=0,
    seconds=1.23456,
    state_dir=Path(".tupletree/orders/1"),
    outputs={"out": 12},
)


class ScriptedHandle(RunHandle):
    """Ends after `waits` calls of `wait`, or when stopped; does something at each call."""

    def __init__(
        self, waits: int, at_wait: Callable[[], None] = lambda: None, at_stop: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(Reporter("orders", None))
        self.stops: list[float | None] = []
        self._waits = waits
        self._at_wait = at_wait
        self._at_stop = at_stop

    @property
    def state_dir(self) -> Path:
        raise AssertionError

    def pause(self) -> None:
        raise AssertionError

    def resume(self) -> None:
        raise AssertionError

    def progress(self) -> Progress:
        return Progress(emitted=1234, state="processing", latency_p50_ms=80.4)

    def wait(self, timeout_s: float | None = None) -> Summary:
        if self.stops:
            return ENDED
        self._at_wait()
        self._waits -= 1
        if self._waits < 0:
            return ENDED
        raise TimeoutError

    def stop(self, drain_timeout_s: float | None = None) -> None:
        self.stops.append(drain_timeout_s)
        if len(self.stops) == 1:
            self._at_stop()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def watch(handle: ScriptedHandle, *, terminal: bool = False) -> tuple[Summary, int, str]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=120)
    with Interruption() as interruption, ProgressDisplay("orders", "spark", console) as display:
        ended = wait_for(handle, display, interruption, 30.0)
    return ended, interruption.count, shown.getvalue()


def test_a_run_that_ends_is_not_stopped() -> None:
    handle = ScriptedHandle(3)
    ended, interruptions, _ = watch(handle)
    assert (ended, interruptions, handle.stops) == (ENDED, 0, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interruption_drains(number: signal.Signals) -> None:
    handle = ScriptedHandle(3, at_wait=lambda: os.kill(os.getpid(), number))
    ended, interruptions, said = watch(handle)
    assert (ended, interruptions, handle.stops) == (ENDED, 1, [30.0])
    assert "draining for at most 30 s" in said


def assert_set(event: threading.Event) -> None:
    assert event.wait(60.0)


def test_while_it_drains_it_is_shown_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(run, "POLL_S", 0.01)
    release = threading.Event()

    class Draining(ScriptedHandle):
        def progress(self) -> Progress:
            if not self.stops:
                return super().progress()
            release.set()
            return Progress(open=7, state="draining", outages=[ShownOutage("store", "ConnectorError: away", 12.0, 1.5)])

    handle = Draining(3, at_wait=interrupt, at_stop=lambda: assert_set(release))
    ended, interruptions, said = watch(handle)
    assert (ended, interruptions, handle.stops) == (ENDED, 1, [30.0])
    line = next(line for line in said.splitlines() if "draining" in line and "open 7" in line)
    assert "waiting for store: ConnectorError: away" in line


def test_what_a_stop_raises_comes_out() -> None:
    def fail() -> None:
        raise ConnectorError("the folder is gone")

    with pytest.raises(ConnectorError, match="the folder is gone"):
        watch(ScriptedHandle(3, at_wait=interrupt, at_stop=fail))


def test_the_second_interruption_stops_at_once() -> None:
    handle = ScriptedHandle(3, at_wait=interrupt, at_stop=interrupt)
    ended, interruptions, said = watch(handle)
    assert (ended, interruptions, handle.stops) == (ENDED, 2, [30.0, 0.0])
    assert "stopping at once" in said


def test_a_session_of_spark_that_is_there_already_is_interrupted_as_any_other() -> None:
    """PySpark sets a handler for SIGINT with a session; it is not one that the target wants."""

    def handler_of_pyspark(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    handler_of_pyspark.__module__ = "pyspark.core.context"
    before = signal.signal(signal.SIGINT, handler_of_pyspark)
    try:
        ended, interruptions, _ = watch(ScriptedHandle(3, at_wait=interrupt))
        assert (ended, interruptions) == (ENDED, 1)
        assert signal.getsignal(signal.SIGINT) is handler_of_pyspark
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_terminal_shows_the_numbers_live() -> None:
    _, _, said = watch(ScriptedHandle(1), terminal=True)
    assert "1,234" in said
    assert "orders on spark" in said


def test_a_plain_line_has_every_number_and_a_dash_for_what_is_unknown() -> None:
    line = progress_line(ScriptedHandle(0).progress())
    assert "in 1,234" in line
    assert "p50 80 ms" in line
    assert "p95 –" in line


@pytest.mark.parametrize(
    ("dead", "interrupted", "code"), [(0, False, 0), (2, False, 3), (0, True, 130), (2, True, 130)]
)
def test_the_exit_code_says_how_it_ended(dead: int, interrupted: bool, code: int) -> None:
    summary = Summary("t", "spark", 2, 2 - dead, 0, 0, dead, 0, 1.0, Path("s"))
    assert exit_code_of(summary, interrupted=interrupted) == code


def test_the_summary_for_programs_is_one_line_with_the_promised_keys() -> None:
    line = summary_json(ENDED)
    assert "\n" not in line
    assert json.loads(line) == {
        "topology": "orders",
        "runtime": "spark",
        "emitted": 10,
        "acked": 8,
        "failed": 7,
        "retried": 5,
        "dead": 2,
        "open": 0,
        "open_in_flight": 0,
        "open_waiting": 0,
        "open_awaited": 0,
        "untracked": 0,
        "untracked_failed": 0,
        "joined": 0,
        "seconds": 1.235,
        "outputs": {"out": 12},
        "late": {},
        "state_dir": ".tupletree/orders/1",
        "reason": "",
    }


def test_the_summary_for_people_says_where_the_dead_letters_are() -> None:
    assert "tupletree dead list --state-dir .tupletree/orders/1" in summary_text(ENDED)


def test_the_summary_says_how_many_tuples_came_too_late_and_for_what() -> None:
    assert "late" not in summary_text(ENDED)
    ended = dataclasses.replace(ENDED, late={"joined": 4, "hourly": 1_200})
    assert "\n  1,204 tuples came too late for windows or joins: hourly 1,200, joined 4\n" in summary_text(ended)
    assert json.loads(summary_json(ended))["late"] == {"hourly": 1_200, "joined": 4}


def test_other_output_does_not_mix_with_the_results() -> None:
    program = """\
import os, subprocess, threading
from tupletree.cli.summary import real_stdout
print("before", flush=True)
with real_stdout(diverted=True) as results:
    print("a bolt prints without a line end", end="")
    os.write(1, b"a library writes to the descriptor")
    subprocess.run(["echo", "a child prints"], check=True)
    print('{"acked": 1}', file=results, flush=True)
print("a late thread prints")
"""
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert finished.stdout == 'before\n{"acked": 1}\n'
    for word in ("a bolt prints", "a library writes", "a child prints", "a late thread prints"):
        assert word in finished.stderr


@pytest.mark.parametrize(
    ("runtime", "resumes", "says"),
    [
        ("spark", True, "start it again with --state-dir .tupletree/orders/1: it goes on with them"),
        ("local", True, "start it again with --durable --state-dir .tupletree/orders/1: it goes on with them"),
        ("local", False, "they were failed to their sources; a local run is resumed only if it is durable"),
    ],
)
def test_it_is_said_what_becomes_of_messages_that_a_stop_leaves_open(runtime: str, resumes: bool, says: str) -> None:
    assert says in open_text(dataclasses.replace(ENDED, runtime=runtime, open=2, resumes=resumes))
