"""What a run had cannot be released at its end, as where a bolt has closed files that are not its own: `wait` ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.ordinary.conftest import HANG_S, begin_in_process
from tupletree import Topology, run
from tupletree.runtimes.local.statedir import LocalStateDirectory
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.sinks import foreach
from tupletree.sources import items


class Number(msgspec.Struct, frozen=True):
    n: int


@pytest.mark.parametrize("runtime", ["local", "spark"])
def test_who_waits_for_it_hears_why(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = LocalStateDirectory if runtime == "local" else StateDirectory
    close = kind.close

    def fail(self: LocalStateDirectory | StateDirectory) -> None:
        close(self)
        raise OSError("Bad file descriptor")

    monkeypatch.setattr(kind, "close", fail)
    t = Topology("ends")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("n", items([Number(1)])))
    handle = (
        begin_in_process(t, tmp_path / "state")
        if runtime == "spark"
        else run(t, runtime="local", state_dir=tmp_path / "state")
    )
    with pytest.raises(Exception, match="Bad file descriptor"):
        handle.wait(HANG_S)
    assert handle.progress().state == "failed"
