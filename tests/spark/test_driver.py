"""What the driver does between Spark's batches: no session is needed for it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.statedirs import open_state_dir
from tests.tasks.streams import Line, Script, Word
from tupletree import Bolt, Collector, Emit, TaskContext, Topology, bolt
from tupletree.bolts.failures import FailureMaker
from tupletree.clock import SystemClock
from tupletree.config import Options
from tupletree.errors import CheckpointError, ConfigError
from tupletree.routing.plan import Plan
from tupletree.runtimes import run as api_run
from tupletree.runtimes.deadletters import write_letters
from tupletree.runtimes.local.statedir import LocalStateDirectory
from tupletree.runtimes.spark.driver.archive import ArchivedEpoch, archive
from tupletree.runtimes.spark.driver.callbacks import Callbacks, ask_again, tell_last
from tupletree.runtimes.spark.driver.epoch_frames import EpochFrameMaker, SpoutTask
from tupletree.runtimes.spark.driver.history import all_facts
from tupletree.runtimes.spark.driver.intake import Intake
from tupletree.runtimes.spark.driver.loop import Loop, LoopEvents
from tupletree.runtimes.spark.driver.recovery import Recovered
from tupletree.runtimes.spark.driver.settling_thread import SettlingThread
from tupletree.runtimes.spark.format import wire
from tupletree.runtimes.spark.format.entries import Counters, DeadEntry, EpochHeader, Messages, SettleEntry, write_epoch
from tupletree.runtimes.spark.format.logged_messages import LoggedMessages
from tupletree.runtimes.spark.format.program import EpochControl, Program, codecs_of
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochOutcomes
from tupletree.runtimes.spark.settle.epoch_record import EpochRecord
from tupletree.runtimes.spark.settle.open_trees import OpenTrees
from tupletree.runtimes.spark.settle.outages import Outages
from tupletree.runtimes.spark.settle.reports import EpochSettlement, Reports
from tupletree.runtimes.spark.settle.run_parts import RunParts
from tupletree.runtimes.spark.worker.crash_markers import CrashMarker
from tupletree.runtimes.spark.worker.stage import StageRun
from tupletree.sinks import jsonl
from tupletree.sources import items
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_log import PendingChanges
from tupletree.tracking.records import Acked, AlreadySettled, Died, Emission, SourceRetry
from tupletree.tracking.retry import RetryPolicy

FAILURE = Failure(kind=FailureKind.ERROR, error="boom")
NOTHING = np.empty(0, np.uint64)


class Source:
    """A spout task, `task`, whose source replays by itself, with the accounts of a run that has only this one."""

    def __init__(self, tmp_path: Path) -> None:
        t = Topology("driver")
        t.spout("lines", Script([]), replay="source").stream(Line, unconsumed=True)
        spec = t.build()
        self.options = Options()
        self.plan = Plan.of(spec, self.options, partitions=1)
        (task,) = self.plan.tasks_of("lines")
        self.task = task.task_id
        self.script = Script([])
        self.spout = SpoutTask(task, "lines", next(iter(spec.components["lines"].outputs)), self.script, ended=True)
        pending = Pending(RetryPolicy(), lambda bits: 1 << (bits - 1), lambda: 0.5, record_changes=True)
        pending.register(self.task, "lines", "source")
        self.accounts = Accounts(spec, pending, {self.task: "lines"}, ended={self.task})
        self.directory = open_state_dir(tmp_path / "state", "driver", {})

    def loop(self, *records: EpochRecord, retold: tuple[AlreadySettled, ...] = ()) -> Loop:
        told = deque(retold)
        clock: Any = SystemClock()
        intake = Intake(
            EpochFrameMaker(self.plan, [self.spout]), self.options, self.accounts, [self.spout], clock, told.append
        )
        outages = Outages(clock, None)
        unused: Any = None
        parts = RunParts(self.plan, self.options, self.directory, self.accounts, {}, clock, outages)
        return Loop(
            parts,
            intake,
            SettlingThread(unused, unused, self.accounts.settled),
            Callbacks([self.spout], intake, parts, told),
            unused,
            Recovered(records=[*records], next_epoch=len(records)),
            LoopEvents(),
            active=True,
        )

    def record(self, epoch: int) -> EpochRecord:
        """An epoch without messages, cut when the input was over."""
        header = EpochHeader(epoch=epoch, generation=1, time_s=0.0, ended=[self.task])
        return EpochRecord(header, [LoggedMessages(Messages(), header, (NOTHING, NOTHING))])


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_an_epoch_that_was_cut_at_the_end_of_input_gives_up_nothing_that_the_source_was_asked_for_since(
    source: Source,
) -> None:
    ahead = source.record(1)
    loop = source.loop(source.record(0), ahead)
    loop._outcomes.append(EpochOutcomes(0, source_retries=[SourceRetry(source.task, "m", 2, FAILURE, 7)]))
    loop._call_back()
    assert source.script.failed == [("m", FAILURE)]
    assert ahead.header.ended == []
    assert not source.spout.ended


def test_a_source_that_delivers_a_dead_message_again_is_told_that_this_is_final(source: Source) -> None:
    loop = source.loop(retold=(AlreadySettled(Outcome.DEAD, source.task, "m"),))
    loop._call_back()
    ((message_id, failure),) = source.script.failed
    assert message_id == "m"
    assert failure.permanent


def letter_of(message_id: object, failure: Failure, spout: str = "lines") -> DeadLetter:
    return DeadLetter(
        topology="driver", spout=spout, message_id=message_id, payload=None, payload_type="Line",
        failure=failure, attempts=1, first_emitted_s=0.0, died_s=9.0,
    )  # fmt: skip


def test_a_source_that_delivers_dead_messages_again_is_told_what_they_died_of_the_last_time(source: Source) -> None:
    last = Failure(kind=FailureKind.REJECTED, component="lines", error="no number")
    number = 1 << 70
    write_letters(source.directory.dead, 3, [letter_of("m", FAILURE), letter_of({"int": str(number)}, last)])
    write_letters(source.directory.dead, 7, [letter_of("n", FAILURE), letter_of("m", last)])
    write_letters(source.directory.dead, 8, [letter_of("m", FAILURE, "others"), letter_of("o", FAILURE)])
    settled = [AlreadySettled(Outcome.DEAD, source.task, one) for one in ("m", number)]
    source.loop(retold=(*settled, AlreadySettled(Outcome.ACKED, source.task, "n")))._call_back()
    assert source.script.failed == [(one, replace(last, permanent=True)) for one in ("m", number)]
    assert source.script.acked == ["n"]


@pytest.mark.parametrize("refused", [False, True])
def test_what_comes_again_while_its_epoch_is_published_is_told_once_that_is_done(source: Source, refused: bool) -> None:
    """A sink may refuse its row until then: it is dead, and its source is not to hear that it was acked."""
    loop = source.loop(
        retold=(AlreadySettled(Outcome.ACKED, source.task, "m"), AlreadySettled(Outcome.ACKED, source.task, "before"))
    )
    source.accounts.settled = 0  # its callbacks are still to be made
    loop._call_back()
    assert (source.script.acked, source.script.failed) == ([], [])
    loop._records[0] = source.record(0)
    outcomes = EpochOutcomes(0)
    if refused:
        outcomes.died.append(Died(source.task, "lines", "m", Line("x"), FAILURE, 1, 0.0, 0.0, 11))
    else:
        outcomes.acked.append(Acked(source.task, "m", 0.0, 1))
    loop._outcomes.append(outcomes)
    loop._call_back()
    loop._call_back()
    assert source.script.acked == (["before"] if refused else ["m", "before"])
    assert source.script.failed == ([("m", replace(FAILURE, permanent=True))] if refused else [])


def test_letters_that_cannot_be_read_do_not_keep_a_source_from_being_told_that_a_message_is_dead(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    write_letters(source.directory.dead, 3, [letter_of("m", FAILURE)])
    [path] = source.directory.dead.glob("*.jsonl")
    path.write_bytes(b"{")
    source.loop(retold=(AlreadySettled(Outcome.DEAD, source.task, "m"),))._call_back()
    ((message_id, failure),) = source.script.failed
    assert (message_id, failure.permanent) == ("m", True)
    assert str(path) in caplog.text


def test_a_log_that_another_start_wrote_is_never_settled_as_if_it_were_ours(source: Source) -> None:
    loop = source.loop()
    settling = loop._settling
    assert isinstance(settling, SettlingThread)
    assert write_epoch(source.directory.epochs, source.record(0).header, [])
    with pytest.raises(CheckpointError, match="another start of this run has taken over"):
        loop._cut()
    assert not settling._records


def test_a_start_asks_the_source_again_for_what_it_is_to_emit_again(source: Source) -> None:
    emitted = source.accounts.pending.emit(source.task, "m", Line("x"), 0.0, 0.0)
    assert isinstance(emitted, Emission)
    source.accounts.pending.fail(emitted.root, FAILURE, 1.0, 1.0)
    unsettled = source.record(3)
    ask_again(source.accounts, Recovered(records=[unsettled]), [source.spout])
    assert source.script.failed == [("m", FAILURE)]
    assert not source.spout.ended
    assert source.accounts.ended == set()
    assert unsettled.header.ended == []


def test_a_start_repeats_the_callbacks_of_dead_messages_also_of_earlier_epochs(source: Source) -> None:
    messages = msgspec.msgpack.encode(Messages())
    header = EpochHeader(epoch=4, generation=1, time_s=0.0, messages_length=len(messages))
    write_epoch(source.directory.epochs, header, [messages])
    letter = letter_of({"int": str(1 << 70)}, FAILURE)
    entry = SettleEntry(
        epoch=4,
        generation=1,
        run=0,
        time_s=9.0,
        dead=[DeadEntry(11, source.task, letter)],
        counters=Counters(),
        pending=PendingChanges(),
    )
    tell_last(source.directory, entry, [source.spout])
    ((message_id, failure),) = source.script.failed
    assert message_id == 1 << 70
    assert failure.permanent


def test_a_message_that_went_to_no_task_is_not_deferred_with_those_that_an_epoch_does_not_finish() -> None:
    roots = np.arange(1, 10, dtype=np.uint64)
    edges = roots * 2
    edges[8] = 0  # the ninth went to nobody
    header = EpochHeader(epoch=0, generation=1, time_s=0.0)
    messages = LoggedMessages(Messages(roots=roots.tobytes()), header, (roots, edges))
    settlement = EpochSettlement.start(EpochRecord(header, [messages]), OpenTrees())
    for failing in (1, 2, 3):
        alive = np.array(messages.acked(settlement.left_out), dtype=np.uint64)
        reports = Reports(
            deltas=[(alive, edges[alive.astype(np.int64) - 1])], touched=[alive], failures={failing: FAILURE}
        )
        assert not settlement.judge_run(reports, lambda _: [])
    assert settlement.put_back == [5, 6, 7, 8]
    assert messages.acked(settlement.left_over) == [4, 9]


def test_an_epoch_that_was_archived_twice_is_shown_once(source: Source) -> None:
    columns = Messages(
        tasks=np.array([source.task], np.uint32).tobytes(),
        ids=["m"],
        roots=np.array([5], np.uint64).tobytes(),
        attempts=np.array([1], np.uint32).tobytes(),
        first_emitted_s=np.array([0.0]).tobytes(),
    )
    messages = msgspec.msgpack.encode(columns)
    epochs = [
        ArchivedEpoch(
            messages,
            SettleEntry(epoch=epoch, generation=1, run=0, time_s=0.0, counters=Counters(), pending=PendingChanges()),
        )
        for epoch in (0, 1)
    ]
    archive(source.directory.history, epochs[:1])
    archive(source.directory.history, epochs)
    assert [event.epoch for event in all_facts(source.directory.path)] == [0, 1]


def test_the_state_directory_of_a_local_run_is_named_as_such(tmp_path: Path) -> None:
    LocalStateDirectory.make(tmp_path / "state", "words")
    with pytest.raises(CheckpointError) as refused:
        open_state_dir(tmp_path / "state", "words", {})
    assert "a local run of 'words'" in str(refused.value)
    assert "damaged" not in str(refused.value)


def test_an_untracked_value_that_cannot_be_sent_is_named_in_the_log(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.spout.untracked = [Word("no line")]
    clock: Any = SystemClock()
    intake = Intake(
        EpochFrameMaker(source.plan, [source.spout]),
        source.options,
        source.accounts,
        [source.spout],
        clock,
        lambda _: None,
    )
    record, _ = intake.cut(0, 1)
    assert record.failures == {}
    assert "lines: an untracked value is lost: the spout emitted a Word, its stream is Line" in caplog.text


def test_the_first_epoch_is_limited_in_bytes_too(source: Source) -> None:
    clock: Any = SystemClock()
    source.spout.spout = Script([[Emit(Line("x" * 2**20), "long")]])
    source.spout.ended = False
    options = Options(epoch_max_bytes=2**20)
    frame_maker = EpochFrameMaker(source.plan, [source.spout])
    intake = Intake(frame_maker, options, source.accounts, [source.spout], clock, lambda _: None)
    assert not intake.is_full
    intake.pull(0)
    assert intake.is_full


@bolt
def word(line: Line) -> Word:
    return Word(line.text)


def test_untracked_tuples_that_a_stage_loses_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    t = Topology("lossy")
    t.bolt("word", word).shuffle(t.spout("lines", Script([]))).stream(Word, unconsumed=True)
    plan = Plan.of(t.build(), Options(), partitions=1)
    control = EpochControl(run_id="0" * 32, epoch=0, run=0, generation=1, time_s=0.0)
    marker = CrashMarker(tmp_path, (1, 0, 0, 0), (0, 0), one_host=True)
    run = StageRun(Program(plan, codecs_of(plan)), control, 0, partition=0, attempt=0, marker=marker)
    for text in ("a", "b"):
        run._fail(FailureMaker("word", 3), 0, Word(text), ValueError("cannot travel"))
    list(run.work())
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("word: 2 errors that fail no message")
    assert "cannot travel" in message


class Closed(Bolt[Line]):
    tick_interval_s = 1.0

    def open(self, context: TaskContext) -> None:
        raise OSError("no such service")

    def process(self, value: Line, collector: Collector[Any]) -> None: ...


def test_a_bolt_that_cannot_be_opened_for_a_tick_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    t = Topology("closed")
    t.bolt("closed", Closed).shuffle(t.spout("lines", Script([])))
    plan = Plan.of(t.build(), Options(), partitions=1)
    control = EpochControl(run_id="0" * 32, epoch=0, run=0, generation=1, time_s=0.0, ticks=["closed"])
    marker = CrashMarker(tmp_path, (1, 0, 0, 0), (0, 0), one_host=True)
    run = StageRun(Program(plan, codecs_of(plan)), control, 0, partition=0, attempt=0, marker=marker)
    list(run.read([(0, wire.WAKE, b"", b"")]))
    list(run.work())
    assert "closed could not be opened: OSError: no such service" in caplog.text


def test_a_start_that_is_refused_leaves_no_folder_that_would_count_as_the_latest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-of-something-else.jsonl").write_text("{}\n")
    t = Topology("refused")
    t.sink("out", jsonl(tmp_path / "out")).shuffle(t.spout("lines", items([Line("a")])))
    with pytest.raises(ConfigError, match="files of something else"):
        api_run.run(t)
    assert list((tmp_path / ".tupletree" / "refused").iterdir()) == []
