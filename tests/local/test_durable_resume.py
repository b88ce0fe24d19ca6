"""What a start reads from the journal, and how checkpoints end: by an error, or with the life of a topology."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.local.running import HANG_S
from tupletree import Emit, Topology
from tupletree.clock import ManualClock
from tupletree.config import Options
from tupletree.routing.plan import Plan
from tupletree.runtimes.local.durable.checkpoints import Checkpointer, stored_record
from tupletree.runtimes.local.durable.journal import Commit, Journal
from tupletree.runtimes.local.durable.resume import resume
from tupletree.sinks import foreach
from tupletree.sources import items
from tupletree.tasks.mail import Now
from tupletree.tasks.spouts.spout_journal import SpoutJournal
from tupletree.texts import json_bytes
from tupletree.tracking.message_table import SpoutMessages
from tupletree.tracking.records import PendingCounters


class N(msgspec.Struct, frozen=True):
    number: int


def test_what_was_given_and_not_emitted_is_numbered_in_the_order_of_its_source(tmp_path: Path) -> None:
    t = Topology("given")
    t.sink("out", foreach(lambda _: None)).shuffle(t.spout("source", items([N(1)])))
    options, clock = Options(), ManualClock(wall=1_700_000_000.0)
    plan = Plan.of(t.build(), options, deputies=True)
    (task,) = plan.task_ids_of("source")
    journal = Journal(tmp_path / "journal.sqlite")
    resume(journal, plan, options, tmp_path / "dead", clock, Random(1))
    given = [Emit(N(one), one) for one in (9, 10, 4)]
    tables = SpoutMessages(task, "source", by_source=False)
    cut = SpoutJournal().cut(task, tables, given, PendingCounters(), None, Now(0.0, clock.wall()), all_told=True)
    records: list[tuple[bytes, bytes | None]] = [
        (json_bytes(one.message_id), stored_record(one)) for one in cut.changed.values() if one is not None
    ]
    journal.commit(Commit(messages={("source", 0): records}))

    resumed = resume(journal, plan, options, tmp_path / "dead", clock, Random(1))
    journal.close()
    messages = [*resumed.carried_over.spout_checkpoints[task].pending.messages_of(task).messages.values()]
    assert [one.message_id for one in messages] == [9, 10, 4]
    numbers = [one.made for one in messages]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0
    assert resumed.carried_over.numbers.take(1)[0] > numbers[-1], "what is new comes later"


class _Failing:
    """Checkpoints of which each raises what is next."""

    not_yet_told = True

    def __init__(self, *errors: BaseException) -> None:
        self.errors = [*errors]

    def take(self, *_: Any) -> bool:
        raise self.errors.pop(0)


def _checkpointer(checkpoints: Any, failed: Any, look: Any = lambda *_: None) -> tuple[Checkpointer, Any]:
    assembly: Any = SimpleNamespace(executors=[], spouts=list)
    made = Checkpointer(checkpoints, lambda: assembly, ManualClock(), failed, look, None)
    return made, assembly


def test_an_error_of_a_checkpoint_ends_this_life_and_the_next_one_and_a_stop() -> None:
    told: list[BaseException] = []
    is_told = threading.Event()

    def failed(error: BaseException) -> None:
        told.append(error)
        is_told.set()

    checkpointer, assembly = _checkpointer(_Failing(ValueError("wrong")), failed)
    checkpointer.begin()
    assert is_told.wait(HANG_S)
    with pytest.raises(ValueError, match="wrong"):
        checkpointer.begin()
    with pytest.raises(ValueError, match="wrong"):
        checkpointer.finish(assembly, lambda: None)
    assert len(told) == 1


def test_a_life_that_ends_in_the_middle_of_a_checkpoint_or_of_a_replay_ends_no_checkpoints() -> None:
    told: list[BaseException] = []
    is_told = threading.Event()

    def failed(error: BaseException) -> None:
        told.append(error)
        is_told.set()

    looks: list[BaseException | None] = [CancelledError(), None, None]

    def look(*_: Any) -> None:
        error = looks.pop(0)
        if error is not None:
            raise error

    checkpointer, assembly = _checkpointer(_Failing(CancelledError(), ValueError("last")), failed, look)
    checkpointer.begin()
    assert is_told.wait(HANG_S)
    assert [str(one) for one in told] == ["last"]
    assert checkpointer.error is told[0]
    assert not looks
    checkpointer.end()
    assert assembly.executors == []


def test_the_last_checkpoint_is_given_up_when_an_executor_has_failed_and_the_next_life_makes_others() -> None:
    checkpointer, assembly = _checkpointer(_Failing(CancelledError(), CancelledError()), pytest.fail)
    failures = [False, False, True]
    assert not checkpointer.finish(assembly, lambda: None, lambda: failures.pop(0))
    assert not failures
