"""Files change between two starts, and while a run reads them: nothing comes twice, and nothing is lost unsaid."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.local.running import run as run_locally
from tests.ordinary.conftest import HANG_S, begin_in_process
from tests.ordinary.reading import LONG, Reader, here, lines_of, no_file_stays_open
from tupletree import Topology, bolt
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConnectorError, EndOfInput, SourceChangedError
from tupletree.runtimes import deadletters
from tupletree.runtimes.api import RunHandle
from tupletree.runtimes.run import run as start_run
from tupletree.runtimes.spark.format.entries import numbered, read_epoch
from tupletree.runtimes.spark.start_folder import refuse_other_folder
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import Line, text_lines
from tupletree.sources.text import TextLines
from tupletree.topology.splits import Split

__all__ = ["here", "no_file_stays_open"]

# --- S1: another list of files --------------------------------------------------------------------------------------


def test_a_resumed_run_reads_what_was_added_to_the_list_and_nothing_twice(here: Path) -> None:
    Path("mon.txt").write_text("mon 1\nmon 2\n")
    Path("sun.txt").write_text("sun\n")
    Path("tue.txt").write_text("tue\n")
    reader = Reader(["mon.txt"])
    assert reader.texts() == ["mon 1", "mon 2"]
    reader.resume(["sun.txt", "mon.txt"])
    assert reader.ask() == [(("sun.txt", 1), "sun")]
    Path("mon.txt").unlink()
    reader.resume(["sun.txt", "mon.txt", "tue.txt"])
    assert reader.texts() == ["tue"]
    reader.resume(["tue.txt"])
    assert reader.ask() == []


def test_a_file_that_is_not_read_to_its_end_is_missed(here: Path) -> None:
    Path("mon.txt").write_text(lines_of(3))
    Path("tue.txt").write_text("tue\n")
    reader = Reader(["mon.txt"])
    reader.spout.plan(1, 1 << 20)
    Path("mon.txt").rename("../elsewhere")
    reader.resume(["mon.txt", "tue.txt"])
    with pytest.raises(
        ConnectorError, match=r"mon\.txt: No such file[\s\S]*got: 108 bytes of it are unread[\s\S]*bring it back"
    ):
        reader.ask()
    reader.resume(["tue.txt"])
    lost, tue = reader.ask()
    assert lost[0] == ("mon.txt", "unread", 54)
    assert "108 bytes of it, behind line 1, were never read" in lost[1]
    assert tue == (("tue.txt", 1), "tue")
    Path("../elsewhere").rename("mon.txt")
    reader.resume(["mon.txt", "tue.txt"])
    assert reader.ask() == [(("mon.txt", 2), f"{LONG}2"), (("mon.txt", 3), f"{LONG}3")]


# --- S2: rotated, truncated, replaced, restored, linked -------------------------------------------------------------


def begun(name: str, count: int = 4, taken: int = 2, **options: Any) -> Reader:
    Path(name).write_text(lines_of(count))
    reader = Reader([name], **options)
    reader.spout.plan(taken, 1 << 20)
    reader.position = reader.spout.snapshot()
    reader.spout.close()
    return reader


def test_the_rest_of_a_rotated_file_is_read_and_the_new_one_from_its_start(here: Path) -> None:
    reader = begun("a.log")
    Path("a.log").rename("a.log.1")
    Path("a.log").write_text(lines_of(9, "another line, of a longer file "))
    reader.start()
    found = reader.ask()
    assert found[:2] == [(("a.log", 3), f"{LONG}3"), (("a.log", 4), f"{LONG}4")]
    assert found[2:] == [(("a.log", 2, n), f"another line, of a longer file {n}") for n in range(1, 10)]


def test_a_file_whose_rest_is_gone_is_reported_and_the_new_one_read_from_its_start(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = begun("a.log")
    Path("a.log").write_text(lines_of(9, "another line, of a longer file "))
    reader.start()
    lost, *found = reader.ask()
    assert lost[0] == ("a.log", "unread", 108)
    assert "is another file now, or was truncated: 108 bytes of it, behind line 2, were never read" in lost[1]
    assert [message_id for message_id, _ in found] == [("a.log", 2, n) for n in range(1, 10)]
    assert "it is read from its start" in caplog.text


def test_a_changed_file_is_refused_where_that_is_asked_for(here: Path) -> None:
    reader = begun("a.log", changed="refuse")
    Path("a.log").write_text("short\n")
    reader.start()
    with pytest.raises(
        SourceChangedError, match=r"not the one that was begun[\s\S]*got: 6 bytes[\s\S]*at least the 108 bytes"
    ):
        reader.ask()
    Path("a.log").write_text(lines_of(9, "another line, of a longer file "))
    reader.resume()
    with pytest.raises(SourceChangedError, match="other content before byte 108"):
        reader.ask()
    Path("a.log").write_text(lines_of(4))
    reader.resume()
    assert reader.texts() == [f"{LONG}3", f"{LONG}4"]


def rotate() -> None:
    Path("a.log").rename("a.log.1")
    Path("a.log").write_text("new\n")


def copy_and_truncate() -> None:
    Path("a.log.1").write_bytes(Path("a.log").read_bytes())
    Path("a.log").write_text("new\n")


def pack() -> None:
    Path("a.log.1.gz").write_bytes(gzip.compress(Path("a.log").read_bytes()))
    Path("a.log").write_text("new\n")


def lead_elsewhere() -> None:
    Path("a.log").rename("behind.log")
    Path("next.log").write_text("new\n")
    Path("a.log").symlink_to("next.log")


def lead_the_link_elsewhere() -> None:
    Path("next.log").write_text("new\n")
    Path("a.log").unlink()
    Path("a.log").symlink_to("next.log")


@pytest.mark.parametrize(
    ("away", "is_link"),
    [
        (rotate, False),
        (rotate, True),
        (copy_and_truncate, False),
        (pack, False),
        (lead_elsewhere, False),
        (lead_elsewhere, True),
        (lead_the_link_elsewhere, True),
    ],
)
def test_the_rest_of_a_file_that_has_left_its_name_is_read_over_any_number_of_stops(
    here: Path, away: Callable[[], None], is_link: bool
) -> None:
    """The list has its name alone, as `text_lines("app.log")` has: where the rest lies is not in it."""
    Path("first.log" if is_link else "a.log").write_text(lines_of(6))
    if is_link:
        Path("a.log").symlink_to("first.log")
    reader = Reader(["a.log"])
    reader.spout.plan(2, 1 << 20)
    reader.position = reader.spout.snapshot()
    reader.spout.close()
    away()
    reader.start()
    for _ in range(2):
        reader.spout.plan(1, 1 << 20)
        reader.resume()
    assert reader.ask() == [(("a.log", 5), f"{LONG}5"), (("a.log", 6), f"{LONG}6"), (("a.log", 2, 1), "new")]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_file_that_came_and_was_rotated_away_between_two_starts_is_named(
    here: Path, caplog: pytest.LogCaptureFixture, packed: bool
) -> None:
    """As an hour of rotations does while a run is stopped: the list has one name, and no pattern."""
    Path("a.log.1").write_text("from before the first start\n")
    os.utime("a.log.1", (1e9, 1e9))
    reader = begun("a.log")
    Path("a.log.1").rename("a.log.3")
    Path("a.log").rename("a.log.2")
    os.utime("a.log.2", (2e9, 2e9))
    if packed:
        Path("a.log.1.gz").write_bytes(gzip.compress(b"between\n"))
    else:
        Path("a.log.1").write_text("between\n")
    os.utime("a.log.1.gz" if packed else "a.log.1", (3e9, 3e9))
    Path("a.log").write_text("new\n")
    reader.start()
    assert reader.texts() == [f"{LONG}3", f"{LONG}4", "new"]
    assert caplog.text.count("for a while, when nobody looked: it is not read") == 1
    assert f"a.log.1{'.gz' * packed} was a.log for a while" in caplog.text
    caplog.clear()
    Path("b.log").write_text("other\n")
    reader.resume(["a.log*", "b.log"])  # a pattern reads it
    assert "between" in reader.texts()
    assert "nobody looked" not in caplog.text


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_the_rest_of_a_file_that_was_copied_and_truncated_is_read_in_the_copy(here: Path, packed: bool) -> None:
    reader = begun("a.log")
    content = Path("a.log").read_bytes()
    if packed:
        Path("a.log.2.gz").write_bytes(gzip.compress(content))
    else:
        Path("a.log.1").write_bytes(content)
    Path("a.log").write_text("new\n")
    reader.start()
    assert reader.ask() == [(("a.log", 3), f"{LONG}3"), (("a.log", 4), f"{LONG}4"), (("a.log", 2, 1), "new")]


def test_renamed_moved_and_restored_files_go_on_where_they_were(here: Path) -> None:
    reader = begun("a.log")
    Path("a.log").rename("b.log")
    reader.start("*.log")
    reader.spout.plan(1, 1 << 20)
    content = Path("b.log").read_bytes()
    Path("b.log").unlink()
    Path("other").write_text("takes the inode")
    Path("b.log").write_bytes(content + b"more\n")
    reader.resume()
    assert reader.ask() == [(("a.log", 4), f"{LONG}4"), (("a.log", 5), "more")]


def test_two_names_of_one_file_are_read_once(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("a.log").write_text(lines_of(2))
    os.link("a.log", "b.log")
    Path("c.log").symlink_to("a.log")
    reader = Reader(["a.log", "b.log", "../here/a.log", "c.log"])
    assert [message_id for message_id, _ in reader.ask()] == [("a.log", 1), ("a.log", 2)]
    for name in ("b.log", "../here/a.log", "c.log"):
        assert f"{name} is another name of a.log: it is read once" in caplog.text
    Path("a.log").unlink()
    reader.resume(["b.log"])
    assert reader.ask() == []


def test_files_of_the_same_content_are_read_each(here: Path) -> None:
    Path("day1.txt").write_text(lines_of(3))
    reader = Reader("*.txt")
    assert len(reader.ask()) == 3
    Path("day1.txt").unlink()
    Path("day2.txt").write_text(lines_of(3))
    os.utime("day2.txt", (5e9, 5e9))
    reader.resume()
    assert [message_id for message_id, _ in reader.ask()] == [("day2.txt", 1), ("day2.txt", 2), ("day2.txt", 3)]


# --- S3: lines that come later --------------------------------------------------------------------------------------


def test_lines_that_were_appended_after_the_end_are_read_on_resume(here: Path) -> None:
    Path("a.log").write_text("one\nhalf")
    reader = Reader("a.log")
    assert reader.texts() == ["one", "half"]
    with Path("a.log").open("a") as file:
        file.write("\ntwo\nthr")
    reader.resume()
    assert reader.ask() == [(("a.log", 3), "two"), (("a.log", 4), "thr")]
    with Path("a.log").open("a") as file:
        file.write("ee\nfour\n")
    reader.resume()
    rest, four = reader.ask()
    assert rest[0] == ("a.log", "rest", 16)
    assert "line 4 was taken as whole when the file ended there" in rest[1]
    assert four == (("a.log", 5), "four")


def test_a_source_that_follows_keeps_an_unfinished_line_back(here: Path) -> None:
    Path("a.log").write_text("one\nhal")
    reader = Reader("a.log", follow=True)
    assert reader.texts() == ["one"]
    assert reader.texts() == []
    reader.resume()
    with Path("a.log").open("a") as file:
        file.write("f\n")
    assert reader.ask() == [(("a.log", 2), "half")]


def test_a_file_that_rotates_while_it_is_followed_is_read_to_its_end_and_then_the_new_one(here: Path) -> None:
    Path("a.log").write_text(lines_of(2))
    reader = Reader("a.log", follow=True)
    assert len(reader.ask()) == 2
    with Path("a.log").open("a") as file:
        Path("a.log").rename("a.log.1")
        assert reader.ask() == []
        file.write("the last line, whose end never ca")
    os.utime("a.log.1", (3e9, 3e9))
    Path("a.log").write_text("new\n")
    assert reader.ask() == [(("a.log", 3), "the last line, whose end never ca"), (("a.log", 2, 1), "new")]


def test_a_file_that_is_truncated_and_written_while_it_is_followed_is_read_from_its_start(here: Path) -> None:
    Path("a.log").write_text(lines_of(2))
    reader = Reader("a.log", follow=True)
    assert len(reader.ask()) == 2
    with Path("a.log").open("r+") as file:
        file.truncate()
        file.write(lines_of(3, "lines of another content, and more of them than before "))
    os.utime("a.log", (3e9, 3e9))
    assert [message_id for message_id, _ in reader.ask()] == [("a.log", 2, n) for n in (1, 2, 3)]


# --- S9: another folder ---------------------------------------------------------------------------------------------


def test_relative_paths_are_refused_in_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.log").write_text("a\n")
    reader = Reader("a.log")
    assert reader.texts() == ["a"]
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    with pytest.raises(CheckpointError, match=r"relative paths[\s\S]*here/other[\s\S]*expected"):
        reader.resume()
    reader.start(str(here / "a.log"))
    assert reader.ask() == []


def test_a_relative_folder_of_a_sink_is_refused_in_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "state").mkdir()
    (here / "other").mkdir()
    relative = copy(text_lines("/a.log"), Path("out")).build()
    options = Options(progress_file="progress.jsonl")
    refuse_other_folder(here / "state", relative, options)
    refuse_other_folder(here / "state", relative, options)
    monkeypatch.chdir(here / "other")
    with pytest.raises(CheckpointError) as raised:
        refuse_other_folder(here / "state", relative, options)
    assert (
        f"sink 'out': a relative path means a different folder from the one at the first start\n  got: {here}/other/out"
        in str(raised.value)
    )
    assert "option progress_file" in str(raised.value)
    refuse_other_folder(here / "state", copy(text_lines("/a.log"), here / "out").build(), Options())
    here.rename(here.with_name("moved"))
    refuse_other_folder(here.with_name("moved") / "state", relative, options)


# --- both runtimes --------------------------------------------------------------------------------------------------


@bolt
def same(line: Line) -> Line:
    return line


class UpTo(TextLines[Line]):
    """As if the run were stopped after so many lines."""

    def __init__(self, paths: Any, most: int) -> None:
        super().__init__(paths, message_type=Line)
        self.most = most

    def plan(self, max_rows: int, max_bytes: int) -> Sequence[Split] | None:
        if self.most <= 0:
            raise EndOfInput
        splits = super().plan(min(max_rows, self.most), max_bytes)
        self.most -= sum(split.rows for split in splits or ())
        return splits


def copy(spout: TextLines[Line], out: Path) -> Topology:
    t = Topology("copy")
    t.sink("out", jsonl(out)).shuffle(t.bolt("same", same).shuffle(t.spout("lines", spout)))
    return t


def test_the_local_runtime_reads_folders_and_tells_what_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(lines_of(5000))
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(lines_of(5000).encode())[:-9])
    summary = run_locally(copy(text_lines(str(tmp_path / "*.log*")), tmp_path / "out"), tmp_path / "state")
    rows = [*read_rows(tmp_path / "out")]
    assert summary.dead == 1
    assert len({(row["path"], row["number"]) for row in rows}) == len(rows) == summary.acked > 5000
    (letter,) = deadletters.read(tmp_path / "state")
    assert letter.message_id[1] == "damaged"


Begin = Callable[[Topology, int], RunHandle]


def check_that_runs_go_on_whatever_becomes_of_files(folder: Path, begin: Begin) -> None:
    """Three runs; between them files are rotated, packed, renamed, deleted, and lines come while the last one reads."""
    out, mon, sun = folder / "out", folder / "mon.log", folder / "sun.log"
    mon.write_text(lines_of(100))
    begin(copy(UpTo([mon], 40), out), 30).wait(HANG_S)
    mon.rename(folder / "mon.log.1")
    mon.write_text(lines_of(200, "quite another line, of the file that came after "))
    sun.write_bytes(gzip.compress(b"sun\n"))
    sun.rename(sun := folder / "sun.log.gz")
    begin(copy(text_lines([sun, mon]), out), 1000).wait(HANG_S)
    (folder / "mon.log.1").unlink()
    handle = begin(copy(text_lines(str(folder / "*.log*"), follow=True, poll_interval_s=0.1), out), 1000)
    with mon.open("a") as file:
        file.write("appended\nnot yet a line")
    (folder / "wed.log").write_text("came later\n")
    found: set[Any] = set()
    while not {("mon.log", 201), ("wed.log", 1)} <= found:
        with pytest.raises(TimeoutError):
            handle.wait(0.05)
        found = {(Path(row["path"]).name, row["number"]) for row in read_rows(out)}
    handle.stop()
    assert handle.progress().dead == 0
    rows = sorted((Path(row["path"]).name, row["number"], row["text"]) for row in read_rows(out))
    expected = [("mon.log", n, text) for n, text in enumerate(lines_of(100).splitlines(), 1)]
    second = lines_of(200, "quite another line, of the file that came after ") + "appended\n"
    expected += [("mon.log", n, text) for n, text in enumerate(second.splitlines(), 1)]
    assert rows == sorted([*expected, ("sun.log.gz", 1, "sun"), ("wed.log", 1, "came later")])


def test_a_run_on_spark_goes_on_whatever_became_of_its_files(tmp_path: Path) -> None:
    state = tmp_path / "state"
    taken: list[list[int]] = []

    def begin(topology: Topology, most: int) -> RunHandle:
        if (state / "epochs").exists():
            logged = [read_epoch(state / "epochs", epoch)[0] for epoch in numbered(state / "epochs", ".epoch")]
            taken.append([sum(planned.split.rows for planned in epoch.splits) for epoch in logged])
        return begin_in_process(topology, state, epoch_max_messages=most)

    check_that_runs_go_on_whatever_becomes_of_files(tmp_path, begin)
    assert sum(taken[0]) == 40
    assert max(taken[0]) <= 30


def test_a_durable_local_run_goes_on_whatever_became_of_its_files(tmp_path: Path) -> None:
    """Its runs end in order: nothing comes twice."""

    def begin(topology: Topology, most: int) -> RunHandle:
        return start_run(topology, runtime="local", state_dir=tmp_path / "state", durable=True)

    check_that_runs_go_on_whatever_becomes_of_files(tmp_path, begin)
