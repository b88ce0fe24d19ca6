"""The inputs of an epoch: the one place that knows which kinds of `EpochMessages` an epoch's log may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from tupletree.runtimes.spark.format.entries import EpochHeader
from tupletree.runtimes.spark.format.epoch_messages import EpochMessage, EpochMessages
from tupletree.runtimes.spark.format.logged_messages import Codecs, LoggedMessages
from tupletree.runtimes.spark.format.segments import SegmentReader
from tupletree.runtimes.spark.format.split_messages import ReaderOf, SplitMessages
from tupletree.runtimes.spark.format.wire import PlannedSplit


def inputs_of(header: EpochHeader, logged: LoggedMessages, reader_of: ReaderOf | None = None) -> list[EpochMessages]:
    """The inputs of an epoch, of which `logged` are the messages that passed through the driver."""
    return [logged, SplitMessages.of_log(header, reader_of)] if header.splits else [logged]


def inputs_of_log(
    header: EpochHeader, body: memoryview, codecs: Codecs, reader_of: ReaderOf, segments: SegmentReader
) -> list[EpochMessages]:
    """The inputs of a logged epoch."""
    return inputs_of(header, LoggedMessages.of_log(header, body, codecs, segments), reader_of)


def unread_inputs(header: EpochHeader, section: bytes | memoryview) -> list[EpochMessages]:
    """The inputs of a logged epoch, for those who need no values and no runs: `section` is the first of its log."""
    return inputs_of(header, LoggedMessages.of_section(section))


def messages_of(
    section: bytes | memoryview, splits: Iterable[PlannedSplit], epoch: int, time_s: float
) -> Iterator[EpochMessage]:
    """All messages of an epoch, without their values: for those who look.

    Args:
        section: the first one of its log.
        splits: of its header.
        epoch: its number.
        time_s: its time.
    """
    return chain(LoggedMessages.of_section(section), SplitMessages(splits, epoch=epoch, time_s=time_s))
