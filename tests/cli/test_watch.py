"""`tupletree watch`: what is seen of a run, while it goes on and when it is over."""

from __future__ import annotations

import io
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tupletree import Topology, bolt
from tupletree.cli.main import main
from tupletree.cli.runs.watch import curve, picture
from tupletree.runtimes.api import Progress
from tupletree.runtimes.control import Status
from tupletree.runtimes.run import run
from tupletree.sinks import jsonl
from tupletree.sources import rate
from tupletree.tracking.holds import Hold
from tupletree.tracking.outages import ShownOutage
from tupletree.tracking.work_done import WorkDone


def status_of(progress: Progress, **fields: Any) -> Status:
    now_s = time.time()  # a status of ten seconds ago would be that of a crash
    settings = {"process": 1, "host": "elsewhere", "started_s": now_s - 60, "updated_s": now_s, **fields}
    return Status(topology="orders", runtime="spark", progress=msgspec.to_builtins(asdict(progress)), **settings)


def seen(status: Status, width: int = 90) -> str:
    console = Console(width=width, markup=False, highlight=False, file=io.StringIO())
    console.print(picture(Path("state"), status, time.time()))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_picture_has_the_numbers_the_curves_the_bolts_and_what_waits() -> None:
    records = [
        {"acked_per_s": value, "pending": int(9 - value), "oldest_s": 1.5, "step_ms": {"run": 10.0 * value}}
        for value in (1.0, 2.0, 8.0)
    ]
    text = seen(
        status_of(
            Progress(
                emitted=1200,
                acked=1000,
                dead=3,
                open=197,
                epoch=7,
                seconds=10.0,
                state="waiting",
                outputs={"totals": 990},
                work={"total": WorkDone(1000, 5.0), "parse": WorkDone(1000, 0.1)},
                outages=[ShownOutage("totals", "ConnectionError: refused", 12.0, 3.0)],
                holds=[Hold("retry", "orders", 5, until_s=1_000_000.0)],
            ),
            recent=records,
        )
    )
    for part in (
        "orders on spark · waiting for 10 s",
        "in\xa01,200",
        "dead\xa03",
        "rows\xa0of\xa0totals\xa0990",
        "▂▃█",
        "1, the oldest for 1.5 s",
        "run ms",
        "total             5   1,000          50%",
        "waiting for totals: ConnectionError: refused since 12 s, next try in 3.0 s",
        "5 messages waiting for another attempt",
        "tupletree dead list --by-error --state-dir state",
    ):
        assert part in text, text


@pytest.mark.parametrize("width", [20, 40, 200])
def test_a_picture_fits_any_width(width: int) -> None:
    text = seen(status_of(Progress(emitted=10**9, outputs={"a sink": 10**9})), width)
    assert all(len(line) <= width for line in text.splitlines())


def test_what_a_terminal_would_execute_is_shown_as_text() -> None:
    hostile = "\x1b[2J[bold]x[/bold]"
    text = seen(
        status_of(
            Progress(
                outages=[ShownOutage(hostile, hostile, 1.0, 1.0)],
                outputs={hostile: 1},
                work={hostile: WorkDone(1, 1.0)},
                reason=hostile,
            ),
            error=hostile,
        ),
        200,
    )
    assert "\x1b[2J" not in text
    assert text.count("[bold]x[/bold]") == 6


def test_a_curve_is_as_high_as_its_highest_value() -> None:
    assert [curve([]), curve([0, 0]), curve([1]), curve([7, 0, 14])] == ["", "▁▁", "█", "▅▁█"]


@bolt
def odd(number: Numbered) -> Numbered:
    if number.number % 2 == 0:
        raise ValueError("even")
    return number


class Numbered(msgspec.Struct, frozen=True):
    number: int


def started(place: Path, total: int) -> Any:
    t = Topology("numbers")
    numbers = t.spout("numbers", rate(Numbered, 200, message_type=Numbered, total=total))
    t.sink("out", jsonl(place / "out")).shuffle(t.bolt("odd", odd).shuffle(numbers))
    return run(t, runtime="local", durable=True, state_dir=place / "state", options={"max_attempts": 1})


def test_it_watches_a_run_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = started(tmp_path, 60)
    assert main(["watch", str(tmp_path / "state"), "--interval-s", "0.1"]) == 0
    text = capsys.readouterr().out
    assert "numbers on local · stopped" in text
    assert "dead\xa030" in text
    assert handle.wait(10.0).acked == 30


def test_a_run_that_failed_and_a_place_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started(tmp_path, 2).wait(30.0)
    file = tmp_path / "state" / "status.json"
    status = msgspec.json.decode(file.read_bytes(), type=Status)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(status, error="it broke")))
    assert main(["watch", str(tmp_path / "state")]) == 1
    assert "it broke" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_several_runs_are_shown_one_below_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, total in (("b", 3), ("a", 5)):
        started(tmp_path / name, total).wait(30.0)
    assert main(["watch", str(tmp_path / "b" / "state"), str(tmp_path / "a" / "state")]) == 0
    text = capsys.readouterr().out
    assert 0 < text.index("in\xa03") < text.index("in\xa05")


def test_without_a_terminal_it_prints_lines_and_ctrl_c_ends_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tupletree.cli.progress.PLAIN_INTERVAL_S", 0.0)
    handle = started(tmp_path, 200)
    with monkeypatch.context() as patched:
        patched.setattr("tupletree.cli.runs.watch.time.sleep", interrupted)
        assert main(["watch", str(tmp_path / "state")]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"numbers ({tmp_path / 'state'}): ")
    assert handle.progress().state != "stopped"
    handle.stop()
    assert handle.wait(30.0).open == 0
