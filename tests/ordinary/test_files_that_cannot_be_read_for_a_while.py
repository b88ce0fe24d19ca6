"""Files that cannot be read, or looked at, for a while: on a file server that is started again, or for want of handles.

What was open at a file server stays stale for ever, what is opened again is right.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import HANG_S, InProcess, begin_in_process
from tests.ordinary.reading import LONG, Reader, here, lines_of, no_file_stays_open
from tests.until import until
from tupletree import Topology
from tupletree.errors import ConnectorError, OutageLimitError
from tupletree.sinks import jsonl
from tupletree.sources import line_reader, text, text_lines, text_pieces
from tupletree.topology.components import Reject
from tupletree.topology.splits import Split

__all__ = ["here", "no_file_stays_open"]

LINES = 60_000
"""More than one read of a file gives."""


class Server:
    """Gives handles to files. After so many reads it is started again, and once more a while later.

    Attributes:
        starts: so many there were.
        refused: reads of stale handles, and of any handle while it is away.
    """

    def __init__(self, away_after: int, away_for: int) -> None:
        self.starts = self.refused = self._reads = 0
        self._away_after, self._away_for = away_after, away_for

    def read(self, started: int) -> int:
        """Count a read of a handle that was opened after so many starts. Raises OSError: it is stale."""
        self._reads += 1
        if self._reads % self._away_after == 0 and self.starts < 2:
            self.starts += 1
        if started != self.starts or 0 <= self._reads - self._away_after < self._away_for:
            self.refused += 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return self.starts


class _Handle(io.BufferedReader):
    def __init__(self, path: str, server: Server) -> None:
        super().__init__(io.FileIO(path))
        self._server, self._started = server, server.starts

    def read(self, size: int | None = -1, /) -> bytes:
        self._server.read(self._started)
        return super().read(-1 if size is None else size)


class _Io:
    """What `line_reader` opens files by."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def open(self, path: str, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return _Handle(path, self._server)


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_they_are_opened_again_and_every_line_is_there_once(
    runtime: str, in_process: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(away_after=4, away_for=2)
    monkeypatch.setattr(line_reader, "io", _Io(server))
    (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(LINES)))
    t = Topology("stale")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", text_lines([tmp_path / "in.txt"])))
    settings: dict[str, Any] = {"outage_limit_s": 30.0}
    summary = (
        run_locally(t, tmp_path / "state", **settings)
        if runtime == "local"
        else in_process(t, tmp_path / "state", **settings)
    )
    assert (summary.acked, summary.dead, server.starts) == (LINES, 0, 2)
    assert server.refused >= 2
    rows = [
        json.loads(line)["text"] for path in (tmp_path / "out").glob("[!_]*") for line in path.read_text().splitlines()
    ]
    assert sorted(rows) == sorted(f"line {number}" for number in range(LINES))


FAULTS = (errno.EMFILE, errno.ESTALE, errno.EIO, errno.ETIMEDOUT)


class Away:
    """Lets calls fail that ask the disk, for what is below a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, call: str, number: int) -> None:
        self.is_away = False
        real = getattr(os, call)

        def refuse(path: Any = ".", *given: Any, **named: Any) -> Any:
            if self.is_away and str(folder) in str(Path(str(path)).absolute()):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *given, **named)

        monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("number", FAULTS, ids=[errno.errorcode[number] for number in FAULTS])
@pytest.mark.parametrize("call", ["scandir", "stat"])
@pytest.mark.parametrize("paths", [["*.log"], ["**/*.log"], ["a.log", "b.log"]], ids=str)
def test_files_that_cannot_be_looked_at_for_a_while_are_not_taken_for_gone(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    paths: list[str],
    call: str,
    number: int,
) -> None:
    away = Away(monkeypatch, here, call, number)
    for name in ("a.log", "b.log"):
        Path(name).write_text(lines_of(3, f"a line of {name} that is long enough to be recognised "))
    reader = Reader(paths, follow=True)
    assert len(reader.ask()) == 6
    away.is_away = True
    for _ in range(3):
        with Path("a.log").open("a") as file:
            file.write("one more\n")
        with contextlib.suppress(ConnectorError):  # then it is waited for
            reader.ask()
    away.is_away = False
    reader.ask()
    reader.clock.advance(60.0)
    assert reader.ask() == []
    assert "deleted" not in caplog.text
    reader.resume()
    away.is_away = True
    with contextlib.suppress(ConnectorError):
        reader.ask()
    away.is_away = False
    with Path("a.log").open("a") as file:
        file.write("the last one\n")
    assert reader.ask() == [(("a.log", 7), "the last one")]
    assert "never read" not in caplog.text


@pytest.mark.parametrize("number", FAULTS, ids=[errno.errorcode[number] for number in FAULTS])
def test_the_rest_of_a_rotated_file_is_waited_for_where_its_folder_cannot_be_listed(
    here: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    Path("a.log").write_text(lines_of(3))
    reader = Reader(["a.log"])
    reader.spout.plan(1, 1 << 20)
    reader.position = reader.spout.snapshot()
    reader.spout.close()
    Path("a.log").rename("a.log.1")
    Path("a.log").write_text("new\n")
    away = Away(monkeypatch, here, "scandir", number)
    away.is_away = True
    reader.start()
    with pytest.raises(ConnectorError, match=r"cannot be listed") as caught:
        reader.ask()
    assert ("ulimit -n" in str(caught.value)) == (number == errno.EMFILE)
    away.is_away = False
    assert reader.texts() == [f"{LONG}2", f"{LONG}3", "new"]


class Gate:
    """Holds workers that come to read what is planned behind line 500, until its folder is away.

    What is planned later travels with the plan, since the driver has the file open, so that it needs no folder.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._has_come, self._may_read = threading.Event(), threading.Event()
        self._real = text_pieces.reread
        monkeypatch.setattr(text, "reread", self._reread)

    def _reread(self, split: Split, encoding: str) -> tuple[bytes, str, int] | Reject:
        if split.first > 500:
            self._has_come.set()
            assert self._may_read.wait(HANG_S)
        return self._real(split, encoding)

    def move_away(self) -> None:
        """The folder goes away in the middle of the run."""
        assert self._has_come.wait(HANG_S)
        Path("in").rename("elsewhere")
        self._may_read.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def read(here: Path) -> Topology:
    if not Path("in").exists():
        Path("in").mkdir()
        Path("in", "a.txt").write_text("".join(f"line {number}\n" for number in range(1_000)))
    t = Topology("away")
    t.sink("out", jsonl(here / "out")).shuffle(t.spout("lines", text_lines("in/*.txt")))
    return t


def test_workers_that_cannot_read_are_one_outage_of_the_spout(
    here: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    handle = begin_in_process(read(here), here / "state", epoch_max_messages=50, max_attempts=1)
    gate.move_away()
    until(lambda: any(one.for_s > 1.0 for one in handle.progress().outages))
    (outage,) = handle.progress().outages
    assert (outage.component, handle.progress().state) == ("lines", "waiting")
    assert "in/a.txt" in outage.error
    Path("elsewhere").rename("in")
    summary = handle.wait(HANG_S)
    assert (summary.acked, summary.failed, summary.dead) == (1_000, 0, 0)
    assert handle.progress().outage_counts == {"lines": 1}
    assert handle.progress().outages == ()
    assert caplog.text.count("it goes on") == 1


def test_workers_that_cannot_read_for_too_long_end_the_run(here: Path, gate: Gate) -> None:
    settings: dict[str, Any] = {"epoch_max_messages": 50, "max_attempts": 1}
    handle = begin_in_process(read(here), here / "state", **settings, outage_limit_s=1.0)
    gate.move_away()
    with pytest.raises(OutageLimitError, match="'lines' waited"):
        handle.wait(HANG_S)
    Path("elsewhere").rename("in")
    summary = begin_in_process(read(here), here / "state", **settings).wait(HANG_S)
    assert (summary.acked, summary.failed, summary.open) == (1_000, 0, 0)


def test_a_stop_does_not_wait_for_files_that_workers_cannot_read(here: Path, gate: Gate) -> None:
    handle = begin_in_process(read(here), here / "state", epoch_max_messages=50)
    gate.move_away()
    until(lambda: handle.progress().outages)
    handle.stop(0.5)
    assert handle.wait(HANG_S).open > 0
