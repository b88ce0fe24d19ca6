"""The spill buffer holds bytes in memory up to a limit and in a file beyond it, and gives back what was put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tupletree.errors import InternalError, ProcessingError
from tupletree.runtimes.spark.worker.spill_buffer import SpillBuffer


def test_what_was_put_comes_back_from_memory_and_file(tmp_path: Path) -> None:
    spill_buffer = SpillBuffer(10, str(tmp_path))
    slots = [spill_buffer.put(bytes([number]), bytes([number]) * number) for number in range(9)]
    assert spill_buffer.spilled_bytes > 0
    assert [*tmp_path.iterdir()] == [], "its file has no name"
    for number, slot in reversed([*enumerate(slots)]):
        assert [bytes(part) for part in slot.read()] == [bytes([number]), bytes([number]) * number]
        slot.release()
    assert spill_buffer.has_room(10)
    assert bytes(spill_buffer.put(b"a", b"b" * 20).take()[1]) == b"b" * 20, "the file is used anew"
    spill_buffer.close()


def test_a_file_that_was_cut_off_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    spill_buffer = SpillBuffer(0, str(tmp_path))
    slot = spill_buffer.put(b"head", b"body")
    assert spill_buffer._file is not None
    os.truncate(spill_buffer._file.fileno(), 5)
    with pytest.raises(InternalError, match="5 of 8 bytes"):
        slot.read()
    spill_buffer.close()


def test_a_folder_that_cannot_be_written_is_named_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ProcessingError, match=r"nowhere[\s\S]*next: make room there"):
        SpillBuffer(0, str(tmp_path / "nowhere")).put(b"head", b"body")
