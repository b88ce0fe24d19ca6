"""The watermark of a partition, and what is known of the offsets behind it."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("confluent_kafka")
from tupletree.queues.kafka.offsets import MOST_MARKS, Marks


def reached(marks: Marks, *offsets: int) -> list[int]:
    return [offset for offset in offsets if marks.reach(offset)]


def test_the_watermark_waits_for_the_first_one_that_is_not_settled() -> None:
    marks = Marks(10)
    assert reached(marks, 10, 11, 12, 13) == [10, 11, 12, 13]
    for offset in (12, 11):
        marks.settle(offset)
    assert (marks.base, marks.open, marks.settled) == (10, 4, 2)
    marks.settle(10)
    assert (marks.base, marks.open) == (13, 1)
    marks.settle(13)
    assert (marks.base, marks.open, marks.text()) == (14, 0, "")


def test_who_has_the_partition_next_reads_on_where_the_last_one_was() -> None:
    marks = Marks(5)
    reached(marks, *range(5, 15))
    for offset in range(5, 12):
        marks.deliver(offset)
    marks.deliver(9)
    for offset in (6, 7, 10):
        marks.settle(offset)
    base, text = marks.text_without({5})
    assert (marks.base, base) == (5, 8)  # nothing changes here before it is committed
    after = Marks(base, text)
    assert reached(after, *range(8, 15)) == [8, 9, 11, 12, 13, 14]
    assert [after.deliveries(offset) for offset in (8, 9, 11, 12)] == [1, 2, 1, 0]


def test_offsets_without_a_record_are_no_gap() -> None:
    marks = Marks(0)
    assert reached(marks, 100, 101, 105) == [100, 101, 105]  # deleted, or the end of a transaction
    assert (marks.base, marks.open, marks.settled) == (100, 6, 3)
    for offset in (100, 101, 105):
        marks.settle(offset)
    assert marks.base == 106


def test_records_that_vanished_before_they_were_settled_do_not_hold_the_watermark() -> None:
    marks = Marks(0)
    reached(marks, *range(6))
    [marks.deliver(offset) for offset in range(6)]
    marks.settle(4)
    again = Marks(*marks.text_without(set()))
    assert reached(again, 3, 4, 5) == [3, 5]
    assert again.base == 3


def test_settled_offsets_ahead_of_what_was_read_are_skipped() -> None:
    marks = Marks(0)
    reached(marks, *range(4))
    for offset in (1, 2):
        marks.settle(offset)
    after = Marks(*marks.text_without(set()))
    assert reached(after, 0) == [0]
    after.settle(0)
    assert after.base == 3
    assert reached(after, 1, 2, 3, 7) == [3, 7]
    after.settle(3)
    assert after.base == 7


@pytest.mark.parametrize("text", ["", "of another program", "1:", "1:!!", "1:AAAA"])
def test_a_text_of_others_says_nothing(text: str) -> None:
    marks = Marks(3, text)
    assert (marks.base, marks.open) == (3, 0)


def test_the_text_fits_a_server_whatever_became_of_the_offsets() -> None:
    draw = random.Random(7)
    marks = Marks(1)
    reached(marks, *range(1, MOST_MARKS + 600))
    for offset in range(2, MOST_MARKS + 600):
        for _ in range(draw.randrange(1, 200)):
            marks.deliver(offset)
        if draw.random() < 0.5:
            marks.settle(offset)
    text = marks.text()
    assert len(text) < 4096
    after = Marks(1, text)
    assert (after.open, after.settled) == (marks.open, marks.settled)  # how often is forgotten, whether is not
    assert {after.deliveries(offset) for offset in range(2, 600)} <= {1, 255}
