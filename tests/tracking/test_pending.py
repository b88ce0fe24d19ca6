"""Pending messages, rule by rule."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.tracking.logging_pending import snapshot, take_changes
from tupletree.errors import CheckpointError, ConnectorError, InternalError
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_log import PendingChanges, fold
from tupletree.tracking.records import (
    Acked,
    AlreadySettled,
    Died,
    Emission,
    Joined,
    MessageStatus,
    Released,
    RetryAt,
    SourceRetry,
)
from tupletree.tracking.retry import RetryPolicy

if TYPE_CHECKING:
    from tupletree.ids import MessageId

SPOUT, QUEUE = 3, 4  # the runtime retries the first one's messages, the second one's source retries its own
FAILURE = Failure(kind=FailureKind.ERROR, component="split", error="boom")
PERMANENT = Failure(kind=FailureKind.ERROR, error="never", permanent=True)
POLICY = RetryPolicy(max_attempts=3, backoff_initial_ms=1000, backoff_factor=2, jitter=0)


def pending(policy: RetryPolicy = POLICY, *, record_changes: bool = False) -> Pending:
    seeded = random.Random(1)
    fresh = Pending(policy, seeded.getrandbits, seeded.random, record_changes=record_changes)
    fresh.register(SPOUT, "lines")
    fresh.register(QUEUE, "orders", "source")
    return fresh


def emit(
    messages: Pending,
    message_id: MessageId,
    value: Any = "v",
    *,
    spout_task: int = SPOUT,
    now_s: float = 0.0,
    wall_s: float = 1000.0,
) -> Emission:
    emission = messages.emit(spout_task, message_id, value, now_s, wall_s)
    assert isinstance(emission, Emission)
    return emission


def encode(spout_task: int, value: Any) -> Any:
    return {"of": spout_task, "value": value}


def decode(spout_task: int, plain: Any) -> Any:
    assert plain["of"] == spout_task
    return plain["value"]


def through_json(changes: PendingChanges) -> PendingChanges:
    return msgspec.json.decode(msgspec.json.encode(changes), type=PendingChanges)


# --- the rules ---


def test_rule_5_an_emission_without_an_id_is_never_pending() -> None:
    messages = pending()
    assert messages.emit(SPOUT, None, "v", 0.0, 0.0) == Emission(0, SPOUT, None, "v", 1)
    assert (messages.open_count(SPOUT), messages.size, messages.counters.untracked) == (0, 0, 1)


def test_rule_6_the_first_verdict_wins() -> None:
    messages = pending()
    root = emit(messages, "m").root
    assert messages.ack_many([root], 2.5) == [Acked(SPOUT, "m", 2.5, 1)]
    assert messages.ack_many([root], 3.0) == []
    assert messages.fail(root, FAILURE, 3.0, 0.0) is None
    assert not messages.put_back(root)
    assert messages.fail(0, FAILURE, 3.0, 0.0) is None  # an untracked tuple's root
    assert (messages.counters.acked, messages.counters.failed, messages.counters.late_verdicts) == (1, 0, 4)


def test_rule_9_each_attempt_has_its_own_root_and_number() -> None:
    messages = pending()
    first = emit(messages, "m")
    messages.fail(first.root, FAILURE, 0.0, 0.0)
    (second,) = messages.due(1.0, 10)
    assert (second.attempt, second.message_id, second.value) == (2, "m", "v")
    assert second.root != first.root
    assert messages.ack_many([first.root], 1.0) == [], "a callback of the old attempt does not touch the new one"
    assert messages.in_flight(SPOUT) == 1
    assert messages.ack_many([second.root], 4.0) == [Acked(SPOUT, "m", 4.0, 2)]


def test_rule_9_roots_that_collide_and_zero_are_redrawn() -> None:
    draws: Iterator[int] = iter([0, 5, 5, 0, 6])
    messages = Pending(POLICY, lambda bits: next(draws), lambda: 0.5)
    messages.register(SPOUT, "lines")
    assert [emit(messages, message_id).root for message_id in ("a", "b")] == [5, 6]


def test_rule_9_a_batch_redraws_collisions_too() -> None:
    def batch(*roots: int) -> int:
        return sum(root << 64 * index for index, root in enumerate(roots))

    draws: Iterator[int] = iter([batch(5, 8), batch(5, 0, 5), 6, 0, 6, 9, 7, batch(7, 4), 4, 3])
    messages = Pending(POLICY, lambda bits: next(draws), lambda: 0.5)
    messages.register(SPOUT, "lines")
    sent = [messages.emit_many(SPOUT, [*ids], [*ids], 0.0, 0.0) for ids in ("ab", "cde", "fg")]
    assert [one.roots for one in sent] == [[5, 8], [6, 9, 7], [4, 3]]


def test_rule_14_a_failed_attempt_waits_longer_each_time_until_the_message_is_dead() -> None:
    messages = pending()
    root = emit(messages, "m", now_s=10.0, wall_s=1000.0).root
    assert messages.fail(root, FAILURE, 11.0, 1001.0) == RetryAt(SPOUT, "m", 2, 12.0, root)
    assert messages.due(11.9, 10) == []
    (second,) = messages.due(12.0, 10)
    assert messages.fail(second.root, FAILURE, 12.0, 1002.0) == RetryAt(SPOUT, "m", 3, 14.0, second.root)
    (third,) = messages.due(14.0, 10)
    died = messages.fail(third.root, FAILURE, 15.0, 1005.0)
    assert died == Died(SPOUT, "lines", "m", "v", FAILURE, 3, 1000.0, 1005.0, third.root)
    assert (messages.size, messages.counters.failed, messages.counters.dead) == (0, 3, 1)


def test_rule_14_a_permanent_failure_skips_retries() -> None:
    for spout_task in (SPOUT, QUEUE):
        messages = pending()
        died = messages.fail(emit(messages, "m", spout_task=spout_task).root, PERMANENT, 0.0, 0.0)
        assert isinstance(died, Died)
        assert (died.attempts, messages.size) == (1, 0)


def test_a_dead_letter_says_everything_in_plain_data() -> None:
    messages = pending()
    died = messages.fail(emit(messages, ("m", b"\1"), 7, wall_s=5.0).root, PERMANENT, 0.0, 6.0)
    assert isinstance(died, Died)
    letter = died.letter("orders", 7, "int", note="n")
    assert msgspec.json.decode(msgspec.json.encode(letter), type=type(letter)) == letter
    assert (letter.message_id, letter.spout, letter.payload) == (["m", {"bytes": "01"}], "lines", 7)
    assert (letter.attempts, letter.first_emitted_s, letter.died_s) == (1, 5.0, 6.0)


# --- redeliveries ---


@pytest.mark.parametrize("message_id", [0, "", False, b"", (), ("", 0)])
def test_an_open_message_that_comes_again_joins_its_root(message_id: MessageId) -> None:
    messages = pending()
    root = emit(messages, message_id).root
    assert messages.emit(SPOUT, message_id, "again", 1.0, 1.0) == Joined(root, SPOUT, message_id)
    messages.fail(root, FAILURE, 1.0, 1.0)
    assert messages.emit(SPOUT, message_id, "again", 1.0, 1.0) == Joined(root, SPOUT, message_id)
    assert messages.due(9.0, 9)[0].value == "v"
    assert (messages.counters.emitted, messages.counters.joined) == (1, 2)


def test_ids_that_look_the_same_and_ids_of_other_tasks_are_other_messages() -> None:
    messages = pending()
    lookalikes: list[MessageId] = [0, False, "", b"", (), (0,), (False,)]
    emitted = messages.emit_many(SPOUT, lookalikes, list("abcdefg"), 0.0, 0.0)
    assert (len(set(emitted.roots)), emitted.known) == (7, [])
    assert emit(messages, 0, spout_task=QUEUE).root not in emitted.roots


def test_a_settled_message_that_is_not_confirmed_is_answered_at_once() -> None:
    messages = pending()
    messages.ack_many([emit(messages, "m").root], 0.0)
    messages.mark_unconfirmed(SPOUT, "m", Outcome.ACKED)
    assert messages.emit(SPOUT, "m", "v", 0.0, 0.0) == AlreadySettled(Outcome.ACKED, SPOUT, "m")
    assert messages.locate("m") == [MessageStatus(SPOUT, "m", Outcome.ACKED)]
    messages.confirm(SPOUT, "m")
    messages.confirm(SPOUT, "m")
    assert messages.size == 0
    assert emit(messages, "m").attempt == 1


def test_a_batch_is_taken_like_its_messages_one_by_one() -> None:
    messages = pending()
    root = emit(messages, "open").root
    messages.mark_unconfirmed(SPOUT, "settled", Outcome.DEAD)
    emitted = messages.emit_many(SPOUT, ["a", "open", None, "settled", b"b", "a"], [1, 2, 3, 4, 5, 6], 0.0, 0.0)
    first = emitted.roots[0]
    assert (emitted.values, emitted.attempts, emitted.roots[1]) == ([1, 3, 5], [1, 1, 1], 0)
    assert emitted.known == [
        Joined(root, SPOUT, "open"),
        AlreadySettled(Outcome.DEAD, SPOUT, "settled"),
        Joined(first, SPOUT, "a"),
    ]
    assert messages.open_count(SPOUT) == 3
    assert [acked.message_id for acked in messages.ack_many([root, first, 0, emitted.roots[2]], 1.0)] == [
        "open",
        "a",
        b"b",
    ]
    assert messages.counters.late_verdicts == 1


def test_a_batch_with_an_impossible_id_is_refused_whole() -> None:
    messages = pending()
    with pytest.raises(ConnectorError, match="message id"):
        messages.emit_many(SPOUT, ["a", 1.5], [1, 2], 0.0, 0.0)  # type: ignore[list-item]  # the fault under test
    assert messages.size == 0


# --- sources that retry themselves ---


def test_a_source_that_retries_is_told_each_failure_and_its_next_emit_is_the_next_attempt() -> None:
    messages = pending()
    roots: list[int] = []
    for attempt in (1, 2):
        emission = emit(messages, "m", f"v{attempt}", spout_task=QUEUE, wall_s=float(attempt))
        roots.append(emission.root)
        assert emission.attempt == attempt
        verdict = messages.fail(emission.root, FAILURE, 0.0, 0.0)
        assert verdict == SourceRetry(QUEUE, "m", attempt + 1, FAILURE, emission.root)
        assert messages.due(1e9, 10) == []
        assert (messages.open_count(QUEUE), messages.awaiting_source(QUEUE)) == (0, 1)
    last = messages.emit_many(QUEUE, ["m"], ["v3"], 0.0, 3.0)
    assert last.attempts == [3]
    died = messages.fail(last.roots[0], FAILURE, 0.0, 9.0)
    assert died == Died(QUEUE, "orders", "m", "v3", FAILURE, 3, 1.0, 9.0, last.roots[0])
    assert (messages.size, messages.counters.emitted, messages.counters.retried) == (0, 1, 2)


def test_messages_that_their_source_never_emits_again_can_be_given_up() -> None:
    messages = pending()
    for message_id, failed_s in (("old", 0.0), ("new", 50.0)):
        messages.fail(emit(messages, message_id, spout_task=QUEUE).root, FAILURE, failed_s, 0.0)
    assert [one.message_id for one in messages.give_up(QUEUE, 60.0, 0.0, silent_for_s=30.0)] == ["old"]
    assert [one.message_id for one in messages.give_up(QUEUE, 60.0, 0.0)] == ["new"]
    assert (messages.size, messages.counters.dead) == (0, 2)


# --- the retry queue ---


def test_retries_come_by_due_time_and_no_more_than_asked_for() -> None:
    messages = pending()
    roots = [emit(messages, number).root for number in range(4)]
    for root, now_s in zip(roots, (3.0, 1.0, 2.0, 9.0), strict=True):
        messages.fail(root, FAILURE, now_s, 0.0)
    assert messages.next_due_s() == 2.0
    assert [one.message_id for one in messages.due(5.0, 2)] == [1, 2]
    assert [one.message_id for one in messages.due(5.0, 2)] == [0]
    assert (messages.next_due_s(), messages.open_count(SPOUT), messages.in_flight(SPOUT)) == (10.0, 4, 3)


def test_attempts_that_are_deferred_come_first_in_order_and_do_not_count() -> None:
    messages = pending()
    roots = [emit(messages, number).root for number in range(3)]
    messages.fail(roots[0], FAILURE, 0.0, 0.0)
    assert [messages.put_back(root) for root in roots[1:]] == [True, True]
    assert messages.next_due_s() == float("-inf")
    emissions = messages.due(1.0, 10)
    assert [(one.message_id, one.attempt) for one in emissions] == [(1, 1), (2, 1), (0, 2)]
    assert (messages.counters.retried, messages.counters.put_back) == (1, 2)


def test_a_dead_letter_comes_back_as_a_fresh_message_that_the_runtime_retries() -> None:
    messages = pending()
    assert isinstance(messages.fail(emit(messages, "m", spout_task=QUEUE).root, PERMANENT, 0.0, 0.0), Died)
    messages.mark_unconfirmed(QUEUE, "m", Outcome.DEAD)
    assert messages.replay(QUEUE, "m", "corrected", 5.0, 1005.0) == RetryAt(QUEUE, "m", 1, 5.0, 0)
    assert messages.replay(QUEUE, "m", "twice", 5.0, 1005.0) == Joined(0, QUEUE, "m")
    (emission,) = messages.due(5.0, 10)
    assert (emission.attempt, emission.value) == (1, "corrected")
    assert messages.emit(QUEUE, "m", "source", 5.0, 0.0) == Joined(emission.root, QUEUE, "m")
    assert isinstance(messages.fail(emission.root, FAILURE, 5.0, 0.0), RetryAt)


def test_later_attempts_keep_their_number_in_the_order_of_emission_and_a_replayed_dead_letter_gets_a_new_one() -> None:
    messages, numbers = pending(), itertools.count(1)

    def number(root: int) -> int:
        return messages.number([root], lambda count: [next(numbers) for _ in range(count)])[0]

    first, second = emit(messages, "first").root, emit(messages, "second").root
    assert (number(first), number(second)) == (1, 2)
    messages.fail(first, FAILURE, 0.0, 0.0)
    (again,) = messages.due(1e6, 10)
    assert number(again.root) == 1
    messages.fail(again.root, PERMANENT, 0.0, 0.0)
    messages.replay(SPOUT, "first", "corrected", 0.0, 0.0)
    (replayed,) = messages.due(1e6, 10)
    assert number(replayed.root) == 3


def test_release_gives_every_open_message_back_unsettled() -> None:
    messages = pending()
    flying, waiting = emit(messages, "flying"), emit(messages, "waiting")
    messages.fail(waiting.root, FAILURE, 0.0, 0.0)
    told = emit(messages, "told", spout_task=QUEUE)
    messages.fail(told.root, FAILURE, 0.0, 0.0)
    assert messages.roots_in_flight() == [flying.root]
    assert messages.release() == [
        Released(SPOUT, "flying", 1, flying.root),
        Released(SPOUT, "waiting", 1, waiting.root),
        Released(QUEUE, "told", 1, told.root),
    ]
    assert messages.size == 0


def test_the_status_of_a_message_can_be_asked() -> None:
    messages = pending()
    root = emit(messages, "m", wall_s=7.0).root
    assert messages.locate("m") == [MessageStatus(SPOUT, "m", Outcome.OPEN, root, 1, None, 7.0)]
    messages.fail(root, FAILURE, 3.0, 0.0)
    assert messages.locate("m") == [MessageStatus(SPOUT, "m", Outcome.RETRYING, root, 1, 4.0, 7.0, FAILURE)]
    assert messages.locate("x") == []


# --- what survives a restart ---


def test_waiting_messages_survive_a_restart_with_attempts_order_and_due_times() -> None:
    before = pending()
    for number, now_s in ((1, 8.0), (2, 7.0)):
        before.fail(emit(before, number, f"v{number}", wall_s=990.0).root, FAILURE, now_s, 1000.0)
    for number in (3, 4):
        before.put_back(emit(before, number, wall_s=990.0).root)
    before.fail(emit(before, b"5", spout_task=QUEUE, wall_s=990.0).root, FAILURE, 8.0, 1000.0)
    before.mark_unconfirmed(SPOUT, ("done", 1), Outcome.ACKED)
    emit(before, "in flight")
    base = through_json(snapshot(before, encode, 8.0, 1000.0))

    after = pending()
    after.restore([base], decode, 500.0, 1001.0)
    assert (after.open_count(SPOUT), after.in_flight(SPOUT), after.awaiting_source(QUEUE)) == (4, 0, 1)
    assert [(one.message_id, one.attempt) for one in after.due(498.0, 9)] == [(3, 1), (4, 1)]
    assert [(one.message_id, one.attempt, one.value) for one in after.due(500.0, 9)] == [(2, 2, "v2"), (1, 2, "v1")]
    assert isinstance(after.emit(SPOUT, ("done", 1), "v", 0.0, 0.0), AlreadySettled)
    assert emit(after, b"5", spout_task=QUEUE).attempt == 2
    assert after.ack_many([after.roots_in_flight()[-1]], 502.0) == [Acked(QUEUE, b"5", 13.0, 2)]


def test_deltas_name_only_what_changed() -> None:
    messages = pending(record_changes=True)
    messages.ack_many([emit(messages, "acked").root], 0.0)
    roots = [emit(messages, number).root for number in (1, 2)]
    messages.fail(roots[0], FAILURE, 0.0, 0.0)
    messages.put_back(roots[1])
    messages.due(0.0, 1)  # 2 waited between two takes only: no news
    messages.note_logged(messages.roots_in_flight())
    messages.mark_unconfirmed(SPOUT, "acked", Outcome.ACKED)
    first = take_changes(messages, encode, 0.0, 0.0)
    assert ([one.message_id for one in first.waiting], first.gone) == ([1], [])
    assert first.settled == [(SPOUT, "acked", Outcome.ACKED)]
    messages.due(1.0, 1)
    messages.note_logged(messages.roots_in_flight())
    messages.confirm(SPOUT, "acked")
    second = take_changes(messages, encode, 0.0, 0.0)
    assert second == PendingChanges(gone=[(SPOUT, 1)], confirmed=[(SPOUT, "acked")])
    assert take_changes(messages, encode, 0.0, 0.0) == PendingChanges()


@pytest.mark.parametrize("as_base", [False, True])
@pytest.mark.parametrize("task", [SPOUT, QUEUE])
def test_a_message_that_goes_out_again_waits_for_the_log_until_its_attempt_is_in_another(
    task: int, *, as_base: bool
) -> None:
    messages = pending(record_changes=True)
    write = snapshot if as_base else take_changes
    messages.fail(emit(messages, "m", spout_task=task).root, FAILURE, 0.0, 0.0)
    logged = [snapshot(messages, encode, 0.0, 0.0)]
    if task == SPOUT:
        messages.due(9.0, 1)
    else:
        emit(messages, "m", spout_task=task)
    logged.append(write(messages, encode, 9.0, 9.0))  # the process dies, and the attempt with it

    after = pending()
    after.restore(logged, decode, 0.0, 0.0)
    assert (after.awaiting_source(task), after.open_count(task)) == ((1, 0) if task == QUEUE else (0, 1))
    again = after.due(9.0, 9)[0] if task == SPOUT else emit(after, "m", spout_task=task)
    assert (again.message_id, again.attempt) == ("m", 2)

    messages.note_logged(messages.roots_in_flight())
    logged.append(write(messages, encode, 9.0, 9.0))
    assert not fold(logged if not as_base else logged[-1:]).waiting


def test_an_attempt_that_was_out_is_adopted_under_its_old_root() -> None:
    before = pending()
    before.fail(emit(before, "m", wall_s=990.0).root, FAILURE, 0.0, 1000.0)
    after = pending()
    after.restore([snapshot(before, encode, 0.0, 1000.0)], decode, 0.0, 1000.0)
    out = {"attempt": 2, "first_emitted_s": 990.0, "now_s": 0.0, "wall_s": 1000.0}
    after.adopt(77, SPOUT, "m", "v", **out)  # type: ignore[arg-type]  # mypy sees a dict of mixed numbers
    assert (after.next_due_s(), after.in_flight(SPOUT), after.open_count(SPOUT)) == (None, 1, 1)
    with pytest.raises(InternalError, match="adopted twice"):
        after.adopt(78, SPOUT, "m", "v", **out)  # type: ignore[arg-type]  # mypy sees a dict of mixed numbers
    assert after.ack_many([77], 1.0) == [Acked(SPOUT, "m", 11.0, 2)]
    assert after.size == 0


def test_a_message_that_awaits_its_source_is_taken_although_it_was_settled_once() -> None:
    messages = pending()
    messages.mark_unconfirmed(QUEUE, "m", Outcome.DEAD)  # then brought back, and out when the process was restarted
    messages.adopt(77, QUEUE, "m", "v", attempt=1, first_emitted_s=0.0, now_s=0.0, wall_s=0.0)
    assert isinstance(messages.fail(77, FAILURE, 0.0, 0.0), SourceRetry)
    assert emit(messages, "m", spout_task=QUEUE).attempt == 2


def test_a_log_of_another_topology_and_unrecorded_changes_are_refused() -> None:
    before = pending()
    before.mark_unconfirmed(QUEUE, "m", Outcome.DEAD)
    after = Pending(POLICY, random.getrandbits, random.random)
    with pytest.raises(CheckpointError, match="spout task"):
        after.restore([snapshot(before, encode, 0.0, 0.0)], decode, 0.0, 0.0)
    with pytest.raises(InternalError, match="recorded"):
        take_changes(after, encode, 0.0, 0.0)


def test_a_task_is_registered_as_one_thing() -> None:
    messages = pending()
    messages.register(SPOUT, "lines")
    with pytest.raises(InternalError, match="twice"):
        messages.register(SPOUT, "lines", "source")


# --- memory ---


def test_failing_and_never_acked_messages_are_gone_once_they_died() -> None:
    messages = pending(RetryPolicy(max_attempts=2, jitter=0))
    failing = messages.emit_many(SPOUT, list(range(200_000)), [None] * 200_000, 0.0, 0.0).roots
    silent = messages.emit_many(SPOUT, [f"n{number}" for number in range(50_000)], [None] * 50_000, 0.0, 0.0).roots
    for root in failing:
        messages.fail(root, FAILURE, 0.0, 0.0)
    roots = [emission.root for emission in messages.due(10.0, 300_000)]
    lost = Failure(kind=FailureKind.TIMEOUT)
    for root in [*roots, *silent]:
        messages.fail(root, lost, 30.0, 30.0)
    for emission in messages.due(60.0, 300_000):
        messages.fail(emission.root, lost, 90.0, 90.0)
    assert (messages.size, messages.counters.dead) == (0, 250_000)


class Payload:
    """Something whose life can be watched."""


@pytest.mark.parametrize("permanent", [False, True])
def test_a_value_is_released_when_its_message_is_settled(permanent: bool) -> None:
    messages = pending()
    value = Payload()
    watch = weakref.ref(value)
    root = messages.emit_many(SPOUT, ["m"], [value], 0.0, 0.0).roots[0]
    del value
    assert watch() is not None
    if permanent:
        messages.fail(root, PERMANENT, 0.0, 0.0)
    else:
        messages.ack_many([root], 0.0)
    assert watch() is None


def test_a_runtime_that_drops_its_pending_messages_releases_all_of_them() -> None:
    value = Payload()
    watch = weakref.ref(value)
    messages = pending()
    emit(messages, "m", value)
    del messages, value
    gc.collect()
    assert watch() is None
