"""The contract of `EpochMessages`, for each kind of input; a new kind is one more case here."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.topology.test_splits import Numbers
from tupletree import Topology
from tupletree.data.codec import ArrowCodec
from tupletree.data.frames import Frame
from tupletree.errors import CheckpointError, EndOfInput, InternalError
from tupletree.ids import MessageId
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrames
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import EpochHeader, Messages
from tupletree.runtimes.spark.format.epoch_messages import ELSEWHERE, NOT_LOGGED, EpochMessages
from tupletree.runtimes.spark.format.logged_messages import LoggedMessages
from tupletree.runtimes.spark.format.segments import PlannedSegment, SegmentReader, write_segment
from tupletree.runtimes.spark.format.split_messages import SplitMessages
from tupletree.sinks import jsonl
from tupletree.topology.components import Reject
from tupletree.topology.splits import Lease, LeaseSpout, Split
from tupletree.topology.streams import Schema


@dataclass(frozen=True)
class Number:
    value: int


CODEC: ArrowCodec[Any] = ArrowCodec.of(Schema.of(Number))
CODECS = {("numbers", "default"): CODEC}


def refuse(root: object, value: object, error: object) -> None:
    raise AssertionError((root, value, error))


def logged() -> LoggedMessages:
    """Messages "n0" to "n4" of spout tasks 8 and 9, of which "n4" went to no task."""
    roots = [11, 12, 13, 14, 15]
    columns = Messages(
        tasks=array("I", [9, 9, 9, 8, 8]).tobytes(),
        ids=[f"n{at}" for at in range(5)],
        roots=array("Q", roots).tobytes(),
        attempts=array("I", [1, 1, 2, 1, 1]).tobytes(),
        first_emitted_s=array("d", [5.0] * 5).tobytes(),
        made=array("q", [31, 32, 7, 33, 34]).tobytes(),
    )
    frames = EpochFrames()
    for edge, at in ((100, (0, 1)), (200, (2, 3))):
        values, mine = [Number(one) for one in at], [roots[one] for one in at]
        frame = Frame(1, "numbers", "default", values, [*mine], [1, 2], edge, None, 0)
        row = wire.encode_frame(frame, CODEC, 0, 0, 1, refuse)
        assert row is not None
        frames.rows.append(row)
    header = EpochHeader(epoch=3, generation=1, time_s=7.0)
    section = msgspec.msgpack.encode(columns)
    header.messages_length = len(section)
    body = b"".join(frames.sections(header, section))
    return LoggedMessages.of_log(header, memoryview(body), CODECS)


def split() -> SplitMessages:
    """Rows ("n", 0) to ("n", 4) of spout tasks 8 and 9."""
    splits = [
        wire.PlannedSplit("numbers", 9, 0, 1000, Split(3, 0, "n"), 0),
        wire.PlannedSplit("numbers", 8, 1, 1003, Split(2, 3, "n"), 1),
    ]
    return SplitMessages(splits, lambda _: Numbers(10), epoch=3, time_s=7.0)


class Taken(LeaseSpout[Number]):
    """Makes numbers of what was taken; the rest of a spout is not needed here."""

    def plan(self, max_messages: int) -> int:
        raise EndOfInput

    def accept(self, leases: Sequence[Lease]) -> Sequence[int]:
        return []

    def take(self, max_messages: int, max_bytes: int) -> Sequence[tuple[Lease, bytes]]:
        return []

    def not_told(self) -> list[MessageId]:
        return []

    def read(self, taken: bytes) -> Number | Reject:
        return Number(int(taken))


def leased(folder: Path) -> LoggedMessages:
    """Messages "n0" to "n4" of spout tasks 9 and 8, each of which has a segment, with more in it than was accepted."""
    t = Topology("leased")
    t.sink("out", jsonl(folder / "out")).shuffle(t.spout("numbers", Taken()))
    header = EpochHeader(epoch=3, generation=1, time_s=7.0)
    for ordinal, (task, rows) in enumerate([(9, {0: 21, 1: 22, 3: 23}), (8, {1: 24, 2: 25})]):
        write_segment(folder / f"{task}.segment", [b"%d" % (one + ordinal * 2) for one in (0, 1, 9, 2)])
        header.segments.append(
            PlannedSegment(
                "numbers",
                task,
                0,
                f"{task}.segment",
                ordinal,
                array("I", rows).tobytes(),
                array("Q", rows.values()).tobytes(),
            )
        )
    columns = Messages(
        tasks=array("I", [9, 9, 9, 8, 8]).tobytes(),
        ids=[f"n{at}" for at in range(5)],
        roots=array("Q", range(21, 26)).tobytes(),
        attempts=array("I", [1] * 5).tobytes(),
        first_emitted_s=array("d", [5.0] * 5).tobytes(),
        made=array("q", range(31, 36)).tobytes(),
    )
    section = msgspec.msgpack.encode(columns)
    header.messages_length = len(section)
    return LoggedMessages.of_log(header, memoryview(section), CODECS, SegmentReader(folder, t.build()))


@pytest.fixture(params=[lambda _: logged(), lambda _: split(), leased], ids=["logged", "split", "leased"])
def messages(request: pytest.FixtureRequest, tmp_path: Path) -> EpochMessages:
    make: Callable[[Path], EpochMessages] = request.param
    return make(tmp_path)


def test_every_message_has_a_root_of_its_own_by_which_it_is_found(messages: EpochMessages) -> None:
    listed = [*messages]
    roots = messages.roots.tolist()
    assert [one.root for one in listed] == roots
    assert len({*roots, 0}) == 6
    assert messages.by_task == {9: 3, 8: 2}
    assert [messages.id_of(root) for root in roots] == [one.message_id for one in listed]
    assert messages.id_of(4711) is None
    assert messages.among([4711, *roots[3:]]) == roots[3:]
    assert messages.among([]) == []


def test_values_are_found_by_root(messages: EpochMessages) -> None:
    roots = messages.roots.tolist()
    found = {one.root: (one.task, value) for one, value in messages.find([roots[3], roots[0]])}
    assert {root: task for root, (task, _) in found.items()} == {roots[0]: 9, roots[3]: 8}
    assert [getattr(found[root][1], "value", None) for root in (roots[0], roots[3])] == [0, 3]
    assert messages.find([]) == []


def test_openings_are_of_all_roots_and_a_run_without_any_of_them_has_nothing_to_do(messages: EpochMessages) -> None:
    roots = messages.roots.tolist()
    opened, xor = messages.openings
    assert sorted(opened.tolist()) == sorted(roots)
    assert len(xor) == len(opened)
    assert messages.has_work(set())
    assert messages.has_work({*roots[1:]})
    assert not messages.has_work({*roots})
    assert messages.worked({roots[0]})[:3] == roots[1:4]
    assert messages.worked({*roots}) == []
    again = messages.for_runs()
    assert again.roots.tolist() == roots
    assert [part.tolist() for part in again.openings] == [opened.tolist(), xor.tolist()]


def test_what_a_run_leaves_over_is_in_pending_before_it_or_after_it(messages: EpochMessages) -> None:
    roots = messages.roots.tolist()
    left_over = {roots[1], 4711}
    acked, adopted = messages.acked(left_over), [one.root for one in messages.adoptions(left_over)]
    if messages.is_counted:  # Pending has none of them, and gets those that are left
        assert (acked, adopted) == ([], [roots[1]])
    else:  # Pending has all of them
        assert (acked, adopted) == ([roots[0], *roots[2:]], [])


def test_a_logged_message_that_went_to_no_task_has_no_value_and_is_not_worked() -> None:
    messages = logged()
    ((message, value),) = messages.find([15])
    assert (message.message_id, value) == ("n4", NOT_LOGGED)
    assert messages.worked(set()) == [11, 12, 13, 14]
    opened, xor = messages.openings
    assert dict(zip(opened.tolist(), xor.tolist())) == {11: 100, 12: 100, 13: 200, 14: 200, 15: 0}


def test_a_piece_that_was_not_read_is_noticed() -> None:
    messages = split()
    messages.check_read({0, 1})
    with pytest.raises(InternalError, match="not read"):
        messages.check_read({0})
    assert np.count_nonzero(messages.openings[1]) == 0


def test_the_place_of_each_message_is_that_of_its_task_and_of_its_number_which_it_keeps(
    messages: EpochMessages,
) -> None:
    roots = [*messages.roots.tolist(), 99]
    tasks, numbers = messages.places_of(np.array(roots, dtype=np.uint64))
    assert [*zip(tasks.tolist(), numbers.tolist(), strict=True)] == [
        *((one.task, one.made) for one in messages),
        (ELSEWHERE, 0),
    ]
    assert all(len(one) == 0 for one in messages.places_of(np.empty(0, np.uint64)))


def test_rows_of_pieces_are_numbered_in_their_order_however_many_pieces_there_are() -> None:
    splits = [wire.PlannedSplit("n", 9, 0, 1000 + at, Split(1, at, "n"), at) for at in range(5000)]
    made = [one.made for one in SplitMessages(splits, epoch=3)]
    assert made == [wire.first_number(3) + at for at in range(5000)]
    assert made[-1] < wire.first_number(4)


def test_messages_in_segments_are_worked_and_pending_gets_the_values_of_those_that_are_left(tmp_path: Path) -> None:
    messages = leased(tmp_path)
    assert messages.worked({21}) == [22, 23, 24, 25]
    assert messages.apart({22, 25, 4711}) == {22: Number(1), 25: Number(11)}
    assert messages.for_runs().apart([24]) == {24: Number(3)}
    messages.check_readable()
    messages.check_read({0, 1})
    with pytest.raises(InternalError, match="not read"):
        messages.check_read({1})


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_segment_that_is_damaged_is_named(tmp_path: Path, damage: str) -> None:
    messages = leased(tmp_path)
    path = tmp_path / "9.segment"
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=r"9\.segment"):
        messages.find([21])
    assert [value for _, value in messages.find([24])] == [Number(3)]
