import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tupletree.errors import CheckpointError, ConfigError, ConnectorError
from tupletree.runtimes.spark.settle.publish import final_name
from tupletree.sinks import files, foreach, jsonl, parquet, read_rows
from tupletree.sinks.files import FileSink, publish, sweep
from tupletree.sinks.folders import MARKER_NAME, claim_directory
from tupletree.topology.components import SinkBatch


def claim(directory: Path, run: str, *, append: bool = False) -> None:
    claim_directory(directory, run, sink="out", append=append)


def test_publishing_makes_the_rows_visible_once_and_may_be_repeated(tmp_path: Path) -> None:
    candidate, final = tmp_path / "_tt-1.jsonl", tmp_path / "1.jsonl"
    jsonl(tmp_path).write_candidate(candidate, [{"a": 1}])
    assert list(read_rows(tmp_path)) == []
    for _ in range(2):
        publish(candidate, final)
        assert list(read_rows(tmp_path)) == [{"a": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]


def test_publishing_the_same_content_again_removes_the_second_candidate(tmp_path: Path) -> None:
    candidate, final = tmp_path / "_tt-1.jsonl", tmp_path / "1.jsonl"
    for _ in range(2):
        candidate.write_bytes(b"{}\n")
        publish(candidate, final)
    assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]


@pytest.mark.parametrize("left", [(), ("candidate",)])
def test_publishing_again_makes_the_name_durable_which_a_killed_process_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...]
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    for name in ("final", *left):
        (tmp_path / name).write_text("{}\n")
    publish(tmp_path / "candidate", tmp_path / "final")
    assert synced == [tmp_path]
    assert not (tmp_path / "candidate").exists()


def test_publishing_never_replaces_other_content(tmp_path: Path) -> None:
    candidate, final = tmp_path / "_tt-1.jsonl", tmp_path / "1.jsonl"
    candidate.write_bytes(b'{"a":1}\n')
    final.write_bytes(b'{"a":2}\n')
    with pytest.raises(CheckpointError, match="other content"):
        publish(candidate, final)
    assert candidate.read_bytes() == b'{"a":1}\n'
    assert final.read_bytes() == b'{"a":2}\n'


def test_publishing_what_is_lost_names_both_files(tmp_path: Path) -> None:
    claim(tmp_path, "run-a")
    with pytest.raises(CheckpointError, match=r"no _tt-1\.jsonl and no 1\.jsonl"):
        publish(tmp_path / "_tt-1.jsonl", tmp_path / "1.jsonl")


def test_a_run_claims_a_new_folder_and_resumes_in_it_when_it_is_filled(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    claim(folder, "run-a")
    (folder / "1.jsonl").write_bytes(b"{}\n")
    claim(folder, "run-a")
    assert sorted(path.name for path in folder.iterdir()) == ["1.jsonl", MARKER_NAME]


@pytest.mark.parametrize(("umask", "folder_mode", "file_mode"), [(0o027, 0o750, 0o640), (0o002, 0o775, 0o664)])
def test_folders_and_files_are_made_as_the_umask_says(
    umask: int, folder_mode: int, file_mode: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        claim(tmp_path / "out", "run-a")
        jsonl(tmp_path / "out").write_candidate(tmp_path / "out" / "_tt-1.jsonl", [{"a": 1}])
        publish(tmp_path / "out" / "_tt-1.jsonl", tmp_path / "out" / "1.jsonl")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == folder_mode
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {file_mode}


def test_another_run_is_refused_unless_it_appends(tmp_path: Path) -> None:
    claim(tmp_path, "run-a")
    (tmp_path / "1.jsonl").write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match=r"output of another run[\s\S]*--append[\s\S]*on Spark"):
        claim(tmp_path, "run-b")
    claim(tmp_path, "run-b", append=True)
    claim(tmp_path, "run-b")
    claim(tmp_path, "run-a")


def test_a_run_that_published_nothing_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    claim(tmp_path, "run-a")
    (tmp_path / "_tt-1.jsonl").write_bytes(b"{}\n")
    claim(tmp_path, "run-b")


def test_a_folder_with_files_of_something_else_is_refused_unless_appending(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"something else[\s\S]*holiday\.jpg"):
        claim(tmp_path, "run-a")
    assert not (tmp_path / MARKER_NAME).exists()
    claim(tmp_path, "run-a", append=True)


def test_a_file_in_the_place_of_the_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    for place in ("out", "out/deeper"):
        with pytest.raises(ConfigError, match="not a folder") as caught:
            claim(tmp_path / place, "run-a")
        assert f"{tmp_path / 'out'} is a file" in str(caught.value)
        assert "next: " in str(caught.value)


def test_a_claim_sweeps_the_drafts_of_markers_that_killed_starts_left(tmp_path: Path) -> None:
    drafts = [tmp_path / f"_{MARKER_NAME}.{process}.0a1b2c3d" for process in (1, 4_000_000)]
    for draft in drafts:
        draft.write_bytes(b"{")
    (tmp_path / f"_{MARKER_NAME}").write_bytes(b"mine")
    claim_directory(tmp_path, "run", sink="out")
    assert {path.name for path in tmp_path.iterdir()} == {MARKER_NAME, f"_{MARKER_NAME}"}


def test_a_claim_whose_draft_is_swept_by_another_start_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    swept: list[Path] = []

    def sweep_first(draft: Path, target: Path) -> None:
        if not swept:
            swept.append(draft)
            draft.unlink()
        real(draft, target)

    monkeypatch.setattr(os, "link", sweep_first)
    claim_directory(tmp_path, "run", sink="out")
    claim_directory(tmp_path, "run", sink="out")
    assert len(swept) == 1
    assert {path.name for path in tmp_path.iterdir()} == {MARKER_NAME}


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1,"sink":"out","runs":[],"more":1}'])
def test_a_damaged_marker_is_never_taken_for_an_empty_folder(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MARKER_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        claim(tmp_path, "run-a")


def test_a_marker_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER_NAME).write_bytes(b'{"format":2,"sink":"out","runs":[]}')
    with pytest.raises(CheckpointError, match="format 2"):
        claim(tmp_path, "run-a")


def test_sweeping_removes_the_orphans_among_the_candidates_and_nothing_else(tmp_path: Path) -> None:
    for name in ("_tt-1.jsonl", "_tt-2.jsonl", "_other", "1.jsonl", MARKER_NAME):
        (tmp_path / name).write_bytes(b"{}\n")
    asked: list[str] = []

    def is_orphan(name: str) -> bool:
        asked.append(name)
        return name != "_tt-2.jsonl"

    assert sweep(tmp_path, is_orphan) == 1
    assert asked == ["_tt-1.jsonl", "_tt-2.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "_other", "_tt-2.jsonl", MARKER_NAME]


def test_the_reader_says_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="no such folder"):
        list(read_rows(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(ConnectorError, match=r"notes\.txt"):
        list(read_rows(tmp_path))


def test_a_foreach_sink_calls_its_function_with_the_batch() -> None:
    batches: list[SinkBatch[int]] = []
    sink = foreach(batches.append)
    sink.write(SinkBatch("a", [1, 2]))
    assert (sink.promise, batches) == ("at_least_once", [SinkBatch("a", [1, 2])])


class Total(msgspec.Struct, frozen=True):
    key: str
    total: int


def write_locally(sink: FileSink, run: str, total: int, made: int) -> None:
    sink.write(SinkBatch(f"{run}-out-0000-1", [Total("a", total)], made=[made]))


def publish_as_on_spark(sink: FileSink, run: str, total: int, made: int) -> None:
    candidate = sink.directory / f"_tt-{run}{sink.suffix}"
    sink.write_candidate(candidate, [Total("a", total)], [made])
    publish(candidate, sink.directory / final_name(run, 0, "0000", sink.suffix))


@pytest.mark.parametrize("write", [write_locally, publish_as_on_spark])
@pytest.mark.parametrize("make", [jsonl, parquet])
def test_of_two_runs_in_one_folder_the_one_that_claimed_it_later_has_the_newest_rows_whatever_their_numbers(
    tmp_path: Path, make: Callable[..., FileSink], write: Callable[..., None]
) -> None:
    sink = make(tmp_path, made=True)
    first, second = "b" * 32, "a" * 32  # the names of the files say nothing of their age
    for run in (first, second, first):  # a restart of the first one changes nothing
        claim(tmp_path, run, append=True)
    write(sink, first, 5, made=900)
    write(sink, second, 1, made=7)
    assert list(read_rows(tmp_path, latest_by="key")) == [{"key": "a", "total": 1}]
    assert [row["total"] for row in read_rows(tmp_path)] == [1, 5], "in the order of the files"
