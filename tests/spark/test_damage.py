"""Every file of a state directory that is damaged, or gone, is named by the start that needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.statedirs import open_state_dir
from tupletree.errors import CheckpointError
from tupletree.runtimes import deadletters
from tupletree.runtimes.spark.driver.recovery import check_newest
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import Counters, SettleEntry, numbered, read_settle, write_settle
from tupletree.runtimes.spark.format.sidecars import read_sidecar, read_waiting, write_sidecar
from tupletree.runtimes.spark.format.statedir import StateDirectory
from tupletree.runtimes.spark.settle.sink_delivery import delivered_in
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind
from tupletree.tracking.pending_log import PendingChanges

SPOUTS = [(0, "left"), (1, "left"), (2, "right")]


def open_directory(path: Path) -> StateDirectory:
    return open_state_dir(path, "words", {"count": {"kind": "bolt", "parallelism": 2}})


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A state directory that a start has used and left: it has logged an epoch, and settled and published it."""
    directory = open_directory(tmp_path / "state")
    assert directory.number_spouts(SPOUTS) == [0, 1, 2]
    (directory.epochs / "0000000000.epoch").write_bytes(b"")
    entry = SettleEntry(epoch=0, generation=1, run=0, time_s=0.0, counters=Counters(), pending=PendingChanges())
    write_settle(directory.settles, entry)
    directory.close()
    return directory.path


def every_damage(path: Path) -> list[bytes]:
    """The file with each byte changed, and cut short at each."""
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    return [*flipped, *(whole[:at] for at in range(len(whole) - 1))]


def outcome(use: Callable[[], object]) -> object:
    """What it returns, or the error about the damage."""
    try:
        return use()
    except CheckpointError as error:
        return error


def refuses(path: Path, use: Callable[[], object]) -> None:
    """Each damage of a file is an error that names it and the next step, or changes nothing."""
    whole, sound = path.read_bytes(), use()
    for damage in every_damage(path):
        path.write_bytes(damage)
        got = outcome(use)
        if isinstance(got, CheckpointError):
            assert str(path) in str(got), damage
            assert got.findings[0].next_step, damage
        else:
            assert got == sound, damage
    path.write_bytes(whole)
    assert use() == sound


def test_a_damaged_identity_never_becomes_another_run(used: Path) -> None:
    def use() -> str:
        directory = open_directory(used)
        directory.close()
        return directory.run_id

    refuses(used / "tupletree.json", use)


def test_a_damaged_list_of_spouts_never_gives_a_spout_the_position_of_another(used: Path) -> None:
    directory = open_directory(used)
    refuses(directory.path / "spouts.json", lambda: directory.number_spouts(SPOUTS))


def test_damaged_notes_about_called_sinks_are_named(tmp_path: Path) -> None:
    (tmp_path / "delivered").write_bytes(b"")
    with pytest.raises(CheckpointError, match="delivered"):
        delivered_in(tmp_path)


def test_roots_of_rows_that_wait_are_read_as_they_were_written_or_not_at_all(tmp_path: Path) -> None:
    candidate, sidecar = tmp_path / "_tt-1.jsonl", tmp_path / "_tt-1.roots"
    candidate.write_bytes(b"one\ntwo\n")
    write_sidecar(sidecar, wire.pack_layout([(5, 6), 7], [1, 2]), lasting=True, waits=candidate)
    assert read_sidecar(sidecar) == [(5, 6), 7]
    refuses(sidecar, lambda: read_waiting(candidate, sidecar))
    refuses(candidate, lambda: read_waiting(candidate, sidecar))
    for path in (candidate, sidecar):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(CheckpointError, match="missing"):
            read_waiting(candidate, sidecar)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["tupletree.json", "spouts.json"])
def test_what_the_first_start_wrote_is_not_written_a_second_time(used: Path, name: str) -> None:
    (used / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        open_directory(used).number_spouts(SPOUTS)


def newest(used: Path, published: Path) -> None:
    """What a start does that reads the journal."""
    directory = open_directory(used)
    try:
        check_newest(directory, numbered_entries(directory), {"out": str(published)})
    finally:
        directory.close()


def numbered_entries(directory: StateDirectory) -> list[SettleEntry]:
    return [read_settle(directory.settles, epoch) for epoch in numbered(directory.settles, ".settle")]


def test_generations_that_are_gone_are_missed_before_their_names_are_used_again(used: Path, tmp_path: Path) -> None:
    newest(used, tmp_path)
    for path in (used / "generations").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="generations/000001"):
        newest(used, tmp_path)


def test_a_newest_entry_that_is_gone_is_missed_by_what_was_published(used: Path, tmp_path: Path) -> None:
    run_id = msgspec.json.decode((used / "tupletree.json").read_bytes())["run_id"]
    (used / "settles" / "0000000000.settle").unlink()
    newest(used, tmp_path)  # nothing came of it: the epoch may run again
    published = tmp_path / "out"
    published.mkdir()
    (published / "part-someone-00000009-0000.jsonl").touch()
    (published / f"part-{run_id[:8]}-00000000-0000.jsonl").touch()
    with pytest.raises(CheckpointError, match=r"0000000000\.settle"):
        newest(used, published)
    (used / "dead" / "0000000001.jsonl").touch()
    with pytest.raises(CheckpointError, match=r"0000000001\.settle"):
        newest(used, tmp_path)


def test_an_amendment_that_is_gone_is_missed_by_its_letters(used: Path, tmp_path: Path) -> None:
    letter = DeadLetter(
        topology="words",
        spout="left",
        message_id=1,
        payload=None,
        payload_type="",
        failure=Failure(kind=FailureKind.PUBLISH, error="refused"),
        attempts=1,
        first_emitted_s=0.0,
        died_s=0.0,
    )
    deadletters.write_letters(used / "dead", 0, [letter])
    with pytest.raises(CheckpointError, match=r"0000000000\.amendment"):
        newest(used, tmp_path)


def test_strange_files_in_the_inbox_are_named_and_end_nothing(used: Path) -> None:
    inbox = used / "inbox"
    inbox.mkdir()
    (inbox / "a.json").write_text("nonsense")
    (inbox / "b.json").mkdir()
    (inbox / "c.json").write_bytes(msgspec.json.encode(deadletters.ReplayRequest("c", ["0-0"])))
    complaints: list[CheckpointError] = []
    assert [one.id for one in deadletters.requests(used, complaints.append)] == ["c"]
    assert sorted(one.findings[0].where for one in complaints) == [str(inbox / name) for name in ("a.json", "b.json")]
