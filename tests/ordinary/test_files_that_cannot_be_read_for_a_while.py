"""Files on a file server that is started again: what was open stays stale for ever, what is opened again is right."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import InProcess
from tupletree import Topology
from tupletree.sinks import jsonl
from tupletree.sources import line_reader, text_lines

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
