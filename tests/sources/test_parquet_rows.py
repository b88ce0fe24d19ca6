"""Parquet files as messages: each row once, whatever is done to the files."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.places import Place
from tests.sources.sales import Sale, numbers, opened, planned, rows, write
from tupletree import Topology
from tupletree.clock import ManualClock
from tupletree.errors import CheckpointError, ConfigError, ConnectorError, EndOfInput, SourceChangedError, TopologyError
from tupletree.runtimes.run import run
from tupletree.sinks import jsonl, read_rows
from tupletree.sources import parquet_files, parquet_rows
from tupletree.sources.packed_records import SEALED
from tupletree.topology.components import Reject
from tupletree.topology.splits import read_split


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in range(3):
        write(tmp_path / "sales" / f"part-{part}.parquet", *range(10 * part, 10 * part + 10), row_group_size=4)
    return tmp_path / "sales"


@pytest.mark.parametrize("limits", [{"max_rows": 1}, {"max_rows": 7}, {"max_rows": 100}, {"max_bytes": 1}])
def test_every_row_comes_once_in_order_with_its_number_whatever_the_pieces(
    folder: Path, limits: dict[str, int]
) -> None:
    assert numbers(opened(folder), **limits) == [*range(30)]
    ids = [split.message_id(at) for split in planned(opened(folder), **limits) for at in range(split.rows)]
    assert ids == [(str(folder / f"part-{part}.parquet"), row) for part in range(3) for row in range(10)]


def test_a_folder_stands_for_what_its_writers_have_finished(folder: Path) -> None:
    write(folder / "day=1" / "deep" / "a.parquet", 30)
    for name in ("_temporary/0/a.parquet", ".hidden/a.parquet", "_a.parquet", ".a.parquet", "day=1/_b/a.parquet"):
        write(folder / name, 1000)
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()
    assert sorted(numbers(opened(folder))) == [*range(31)]
    assert numbers(opened(folder / "_a.parquet")) == [1000]  # given itself


def test_a_position_goes_on_with_the_next_row_and_then_with_new_files(folder: Path) -> None:
    first = opened(folder, follow=True, clock=ManualClock())
    given_ = [row.number for split in first.plan(13, 1 << 30) or () for row in read_split(first, split)]
    write(folder / "late.parquet", 30, 31)
    second = opened(folder, position=first.snapshot(), follow=True)
    assert sorted(given_ + numbers(second)) == [*range(32)]
    assert second.plan(10, 1 << 30) is None
    third = opened(folder, position=second.snapshot())
    assert numbers(third) == []


def test_new_files_are_looked_for_at_intervals(folder: Path) -> None:
    clock = ManualClock()
    spout = opened(folder, follow=True, poll_interval_s=5.0, clock=clock)
    assert len(numbers(spout)) == 30
    write(folder / "late.parquet", 30)
    assert numbers(spout) == []
    clock.advance(5.0)
    assert numbers(spout) == [30]


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def rename(path: Path) -> None:
    path.rename(path.with_name("renamed.parquet"))


def restore_from_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    path.unlink()
    copy.rename(path)


@pytest.mark.parametrize("change", [touch, rename, restore_from_a_copy])
@pytest.mark.parametrize("read", [0, 3, 10, 14, 30])
def test_a_file_is_the_same_whatever_is_done_to_its_name_and_times(
    folder: Path, change: Callable[[Path], None], read: int
) -> None:
    first = opened(folder)
    splits = [*(first.plan(read, 1 << 30) or ())] if read else []
    change(folder / "part-0.parquet")
    second = opened(folder, position=first.snapshot())
    # What was planned before is read after the change, and from where the file is now.
    before = [row.number for split in splits for row in read_split(second, split)]
    assert sorted(before + numbers(second)) == [*range(30)]


def test_files_that_were_read_may_be_removed(folder: Path) -> None:
    first = opened(folder)
    assert len(numbers(first)) == 30
    shutil.rmtree(folder)
    folder.mkdir()
    write(folder / "part-9.parquet", 90)
    second = opened(folder, position=first.snapshot())
    assert numbers(second) == [90]


def test_a_file_that_is_written_again_is_a_new_one_once_it_was_read(folder: Path) -> None:
    first = opened(folder)
    assert len(numbers(first)) == 30
    write(folder / "part-1.parquet", 500, 501)
    second = opened(folder, position=first.snapshot())
    (split,) = planned(second)
    assert [row.number for row in read_split(second, split)] == [500, 501]
    assert split.message_id(1) == (str(folder / "part-1.parquet"), 2, 1)


@pytest.mark.parametrize("what", ["written again", "removed"])
def test_rows_that_can_never_be_read_are_reported(folder: Path, what: str) -> None:
    first = opened(folder)
    first.plan(13, 1 << 30)
    path = folder / "part-1.parquet"
    path.unlink()
    if what == "written again":
        write(path, 500)
    second = opened(folder, position=first.snapshot())
    lost, *others = rows(second)
    assert isinstance(lost, Reject)
    assert lost.message_id == (str(path), "unread", 3)
    assert "7 rows of it, from row 3, were never read" in lost.reason
    assert [row.number for row in others] == [*([500] if what == "written again" else []), *range(20, 30)]
    assert rows(opened(folder, position=second.snapshot())) == []


def test_a_file_that_was_given_is_waited_for(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    first = opened(*paths)
    first.plan(13, 1 << 30)
    away = paths[1].with_suffix(".away")
    paths[1].rename(away)
    second = opened(*paths, position=first.snapshot())
    with pytest.raises(ConnectorError, match="7 rows of it are unread") as raised:
        second.plan(10, 1 << 30)
    assert raised.value.is_outage
    away.rename(paths[1])
    assert numbers(second) == [*range(13, 30)]


def test_planned_rows_whose_file_was_written_again_are_named(folder: Path) -> None:
    spout = opened(folder)
    split, *_ = planned(spout)
    write(folder / "part-0.parquet", *range(100, 110))
    with pytest.raises(SourceChangedError, match=r"part-0\.parquet, rows 0 to 9"):
        list(read_split(spout, split))
    (folder / "part-0.parquet").unlink()
    with pytest.raises(SourceChangedError, match="no file"):
        list(read_split(spout, split))


@pytest.mark.parametrize("how", ["written to its end", "replaced"])
def test_a_file_that_changed_since_it_was_found_is_the_one_that_was_opened(folder: Path, how: str) -> None:
    clock = ManualClock()
    spout = opened(folder, follow=True, clock=clock)
    assert len(numbers(spout)) == 30
    path, whole = folder / "slow.parquet", write(folder.parent / "whole.parquet", 30, 31, 32, 33)
    path.write_bytes(whole.read_bytes()[:100])
    os.utime(path, (clock.wall(), clock.wall()))
    clock.advance(4.0)
    assert rows(spout) == []  # it was found
    if how == "replaced":
        whole.replace(path)
    else:
        path.write_bytes(whole.read_bytes())
    (split,) = spout.plan(2, 1 << 30) or ()
    assert [row.number for row in read_split(spout, split)] == [30, 31]
    assert split.size_bytes == path.stat().st_size // 2
    clock.advance(4.0)
    resumed = opened(folder, position=spout.snapshot())
    assert [(split.series, split.first, split.rows) for split in planned(spout)] == [(None, 2, 2)]
    assert numbers(resumed) == [32, 33]


def test_a_file_that_cannot_be_looked_into_now_is_no_other_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(folder)
    assert len(numbers(first)) == 30
    os.utime(folder / "part-1.parquet", (7, 7))  # so that its footer says which it is
    resumed = opened(folder, position=first.snapshot())
    with monkeypatch.context() as away:
        away.setattr(parquet_files, "_checksum", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        with pytest.raises(ConnectorError, match="Input/output error"):
            resumed.plan(10, 1000)
    assert numbers(resumed) == []


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"not Parquet, but long enough to be read", b"PAR1" + bytes(20) + b"PAR1"]
)
def test_a_file_that_is_none_is_a_dead_letter_and_the_others_are_read(folder: Path, content: bytes) -> None:
    path = folder / "part-1.parquet"
    path.write_bytes(content)
    first = opened(folder)
    made = rows(first)
    (lost,) = (row for row in made if isinstance(row, Reject))
    assert lost.message_id == (str(path), "unreadable", 0)
    assert str(path) in lost.reason
    assert len(made) == 21
    write(path, 77)  # mended
    assert numbers(opened(folder, position=first.snapshot())) == [77]


def test_with_follow_a_file_is_waited_for_while_it_is_written(folder: Path) -> None:
    clock = ManualClock()
    spout = opened(folder, follow=True, clock=clock)
    assert len(numbers(spout)) == 30
    whole = write(folder.parent / "whole.parquet", 30).read_bytes()
    path = folder / "slow.parquet"
    for length in (100, 200):
        path.write_bytes(whole[:length])
        os.utime(path, (clock.wall(), clock.wall()))
        clock.advance(4.0)
        assert rows(spout) == []
    path.write_bytes(whole)
    os.utime(path, (clock.wall(), clock.wall()))
    clock.advance(4.0)
    assert numbers(spout) == [30]
    torn = folder / "torn.parquet"
    torn.write_bytes(whole[:100])
    os.utime(torn, (clock.wall(), clock.wall()))
    clock.advance(2.0)
    assert rows(spout) == []
    torn.write_bytes(whole[:200])
    os.utime(torn, (clock.wall() - 6.0, clock.wall() - 6.0))
    (lost,) = rows(spout)  # of the file that was found before
    assert "not written to its end" in lost.reason
    clock.advance(6.0)
    assert rows(spout) == []


def test_rows_of_a_damaged_part_are_dead_letters_and_the_others_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *range(30), row_group_size=10, compression="zstd")
    start: Any = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    made = rows(opened(path), max_rows=7)
    assert [row.number for row in made if isinstance(row, Sale)] == [*range(10), *range(20, 30)]
    lost = [row for row in made if isinstance(row, Reject)]
    assert [row.message_id for row in lost] == [(str(path), row) for row in range(10, 20)]
    assert "a.parquet, row 10: the file is damaged here" in lost[0].reason


def test_a_file_that_lacks_a_column_is_one_dead_letter(folder: Path) -> None:
    pq.write_table(pa.table({"number": [1, 2]}), folder / "part-1.parquet")
    made = rows(opened(folder))
    (lost,) = (row for row in made if isinstance(row, Reject))
    assert "no column for shop" in lost.reason
    assert len(made) == 21


def test_what_cannot_be_read_is_said_before_a_run(tmp_path: Path) -> None:
    def said(path: Path, cls: type = Sale, **options: Any) -> str:
        return "\n".join(map(str, parquet_rows(path, message_type=cls, **options).faults()))

    good = write(tmp_path / "good" / "a.parquet", 1)
    assert said(good) == said(good.parent) == ""
    assert "No such file" in said(tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    assert "no file matches the pattern" in said(tmp_path / "empty")
    assert said(tmp_path / "empty", follow=True) == ""
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(good.read_bytes()[:50])
    assert "cannot be read as Parquet" in said(torn)
    pq.write_table(pa.table({"number": ["x"], "shop": ["a"]}), tmp_path / "text.parquet")
    assert "no row fits Sale" in said(tmp_path / "text.parquet")
    assert "Sale.number: got" in said(tmp_path / "text.parquet")
    pq.write_table(pa.table({"number": [1]}), tmp_path / "short.parquet")
    assert "no column for shop" in said(tmp_path / "short.parquet")
    write_deltalake(tmp_path / "delta", pa.table({"number": [1]}))
    with pytest.raises(ConfigError, match="delta_rows"):
        parquet_rows(tmp_path / "delta", message_type=Sale)
    with pytest.raises(ConfigError, match="listed twice"):
        parquet_rows([good, good], message_type=Sale)
    with pytest.raises(TopologyError):
        parquet_rows(good, message_type=int)


def test_files_without_rows_and_second_names_of_files_give_nothing(folder: Path) -> None:
    write(folder / "empty.parquet")
    (folder / "link.parquet").symlink_to(folder / "part-0.parquet")
    os.link(folder / "part-1.parquet", folder / "other.parquet")
    assert sorted(numbers(opened(folder))) == [*range(30)]


def test_one_task_of_several_plans(folder: Path) -> None:
    spout = parquet_rows(folder, message_type=Sale, follow=True)
    spout.open(Place(task_index=1, parallelism=2))
    with pytest.raises(EndOfInput):
        spout.plan(10, 1 << 30)


def test_a_position_of_many_files_is_stored_in_blocks(tmp_path: Path) -> None:
    for number in range(2 * SEALED + 3):
        write(tmp_path / "sales" / f"{number:04}.parquet", number)
    first = opened(tmp_path / "sales")
    assert len(numbers(first)) == 2 * SEALED + 3
    first.snapshot()
    position = first.snapshot()
    assert [type(block) for block in position["files"]] == [str, str, list]
    write(tmp_path / "sales" / "late.parquet", 999)
    assert numbers(opened(tmp_path / "sales", position=position)) == [999]
    with pytest.raises(CheckpointError):
        opened(tmp_path / "sales", position={"files": "?"})


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "plan", "restart", "rename", "touch", "copy", "remove"]), st.integers(0, 9)),
    max_size=25,
)


@given(operations=OPERATIONS)
def test_each_row_comes_once_whatever_is_done_to_files_between(
    operations: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sales")
    expected, found = Counter[int](), Counter[int]()
    ids = Counter[Any]()
    clock = ManualClock()
    spout = opened(folder, follow=True, poll_interval_s=0.0, clock=clock)
    made = 0
    read_to_end = True

    def take(max_rows: int) -> bool:
        splits = spout.plan(max_rows, 1 << 30) or ()
        for split in splits:
            ids.update(split.message_id(at) for at in range(split.rows))
            found.update(row.number for row in read_split(spout, split))
        return bool(splits)

    for what, argument in operations:
        files = sorted(folder.iterdir())
        path = files[argument % len(files)] if files else None
        if what == "add":
            new = [*range(made, made + argument)]
            write(folder / f"{argument}-{made}.parquet", *new, row_group_size=3)
            expected.update(new)
            made += max(1, argument)
            read_to_end = False
        elif what == "plan":
            read_to_end = not take(argument + 1)
        elif what == "restart":
            spout = opened(folder, position=spout.snapshot(), follow=True, poll_interval_s=0.0, clock=clock)
        elif path is not None:
            if what == "rename":
                path.rename(path.with_name(f"renamed-{made}-{path.name[-60:]}"))
                made += 1
            elif what == "touch":
                os.utime(path, ns=(made, made))
            elif what == "copy":
                restore_from_a_copy(path)
            elif read_to_end:
                path.unlink()
            spout = opened(folder, position=spout.snapshot(), follow=True, poll_interval_s=0.0, clock=clock)
            # A file that gets another name and another inode between two looks cannot be known again.
            spout._plans._look()
    while take(1000):
        pass
    assert found == expected
    assert max(ids.values(), default=1) == 1


@pytest.mark.parametrize("durable", [False, True])
def test_a_local_run_reads_them_and_a_durable_one_goes_on(folder: Path, tmp_path: Path, durable: bool) -> None:
    def copy() -> Topology:
        t = Topology("copy")
        t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("sales", parquet_rows(folder, message_type=Sale)))
        return t

    (folder / "torn.parquet").write_bytes(b"PAR1 and no end")
    state = tmp_path / "state" if durable else None
    ended = run(copy(), runtime="local", durable=durable, state_dir=state).wait(30.0)
    assert (ended.acked, ended.dead, ended.open) == (30, 1, 0)
    if durable:
        write(folder / "late.parquet", 30)
        ended = run(copy(), runtime="local", durable=True, state_dir=state).wait(30.0)
        assert (ended.acked, ended.dead) == (31, 1)
        assert Counter(row["number"] for row in read_rows(tmp_path / "out")) == Counter(range(31))
