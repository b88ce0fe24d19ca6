"""Numbers that the documents write out are those of the code; tests of what they mean take them from there."""

from __future__ import annotations

import pytest

from tests.docs.sentences import document as path_of
from tests.docs.sentences import sentences_of
from tupletree.bolts import call_retry, collector
from tupletree.runtimes import control, progress
from tupletree.runtimes.local.durable import checkpoints
from tupletree.runtimes.spark.driver import epoch_size
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.settle import epoch_runs, sink_delivery
from tupletree.runtimes.spark.worker import async_bolts, crash_markers
from tupletree.tasks import async_context, pending_limit, source_calls, spout
from tupletree.tasks import bolt as bolt_task
from tupletree.tracking import outages, rate_limit

NUMBERS = [
    ("semantics", "at most the calls of 50 ms, or one call, are made up for", rate_limit.SLACK_S, 0.05),
    ("semantics", "locally after 10 seconds at the latest", bolt_task.PATIENCE_S, 10.0),
    ("semantics", "or yielded 10,000 tuples before", call_retry.HELD_AT_MOST, 10_000),
    ("semantics", "after 100 failed calls in a row", sink_delivery.MAX_FAILED_CALLS, 100),
    ("semantics", "the last 10,000 of a task may still be named as anchors", collector.MAX_OVER, 10_000),
    ("semantics", "Frames of more than 16 MB travel as several", wire.FRAME_BYTES, 16 * 1024 * 1024),
    ("semantics", "doubles with each measured message, up to 128", spout.DEFAULT_MAX_PENDING, 128),
    ("semantics", "up to 8,192, it grows where", pending_limit.HIGHEST, 8_192),
    ("semantics", "where the last one would wait for less than 5 ms", pending_limit.QUICK_S, 0.005),
    ("semantics", "would wait for less than a quarter of the timeout", pending_limit.WAITING_SHARE, 0.25),
    ("semantics", "makes the call again after 0.1 s, 0.2 s and so on", outages.FIRST_PAUSE_S, 0.1),
    ("semantics", "at most 1.5 s apart", outages.LONGEST_PAUSE_S, 1.5),
    ("semantics", "before a first answer of `next`, and within 60 s", source_calls.START_S, 60.0),
    ("semantics", "as the slowest rate allows in 10 seconds", epoch_size.PACED_S, 10.0),
    ("semantics", "A checkpoint is made 50 ms after the last one", checkpoints.LEAST_PAUSE_S, 0.05),
    ("semantics", "or nine times as long after it as it took", checkpoints.PAUSE_FACTOR, 9.0),
    ("semantics", "abandoned if it goes on for 5 s more", async_bolts.PATIENCE_S, 5.0),
    ("semantics", "one that goes on for 5 s even so is abandoned", async_context.PATIENCE_S, 5.0),
    ("semantics", "One that two attempts died on fails as `poison`", crash_markers.CRASHES_BEFORE_BLAME, 2),
    ("semantics", "up to four times in which no further message is found", epoch_runs.BROKEN_EXECUTIONS, 4),
    ("operations", "has the last 20 as `recent`", control.SHOWN_RECORDS, 20),
    ("operations", "`handle.recent_progress()` has the last 100", progress.KEPT_RECORDS, 100),
    ("operations", "where the run stands, written every second", control.WRITE_EVERY_S, 1.0),
]


@pytest.mark.parametrize(("document", "words", "in_code", "in_words"), NUMBERS)
def test_a_number_in_a_sentence_is_that_of_the_code(document: str, words: str, in_code: float, in_words: float) -> None:
    sentences = [one.text for one in sentences_of(path_of(document).read_text(encoding="utf-8")) if words in one.text]
    assert sentences, f"docs/{document}.md does not say {words!r} any more"
    assert in_code == in_words
