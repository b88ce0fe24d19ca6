"""What a durable run stores of a spout task: changes only, and acks wait for the commit."""

from __future__ import annotations

from random import Random

from tupletree import Emit
from tupletree.tasks.mail import Now
from tupletree.tasks.spouts.spout_journal import SpoutCut, SpoutJournal
from tupletree.topology.components import Reject
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import Died, RetryAt
from tupletree.tracking.retry import RetryPolicy

NOW = Now(100.0, 1_700_000_000.0)
WRONG = Failure(kind=FailureKind.ERROR, error="wrong")


def accounts(max_attempts: int = 5) -> Pending:
    random = Random(1)
    pending = Pending(RetryPolicy(max_attempts=max_attempts, jitter=0.0), random.getrandbits, random.random)
    pending.register(1, "source")
    return pending


def cut(
    journal: SpoutJournal, pending: Pending, given: list[Emit[str] | Reject] | None = None, position: int = 0
) -> SpoutCut:
    return journal.cut(1, pending.messages_of(1), given or [], pending.counters, position, NOW, all_told=True)


def test_an_attempt_that_was_out_in_a_kill_is_not_counted() -> None:
    journal, pending = SpoutJournal(), accounts()
    pending.emit_many(1, ["a"], ["A"], *NOW)
    record = cut(journal, pending).changed["a"]
    assert record is not None
    assert (record.attempt, record.value) == (0, "A")


def test_a_cut_has_what_changed_since_the_last_one() -> None:
    journal, pending = SpoutJournal(), accounts()
    a, b = pending.emit_many(1, ["a", "b"], ["A", "B"], *NOW).roots
    assert cut(journal, pending).changed.keys() == {"a", "b"}
    assert cut(journal, pending).is_empty
    retry = pending.fail(a, WRONG, *NOW)
    assert isinstance(retry, RetryAt)
    journal.acked(pending.ack_many([b], NOW.monotonic_s))
    second = cut(journal, pending)
    assert second.changed["b"] is None
    failed = second.changed["a"]
    assert failed is not None
    assert failed.attempt == 1
    assert failed.due_s == NOW.wall_s + retry.due_s - NOW.monotonic_s, "the time of the next attempt stays"
    assert second.outcomes == [("b", None)]


def test_acks_are_released_only_for_cuts_that_were_taken() -> None:
    journal, pending = SpoutJournal(), accounts()
    a, b = pending.emit_many(1, ["a", "b"], ["A", "B"], *NOW).roots
    journal.acked(pending.ack_many([a], NOW.monotonic_s))
    assert journal.release() == []
    cut(journal, pending)
    journal.acked(pending.ack_many([b], NOW.monotonic_s))
    assert [one.message_id for one in journal.release()] == ["a"]
    assert journal.release() == []


def test_a_dead_message_is_open_until_its_letter_is_stored() -> None:
    journal, pending = SpoutJournal(), accounts(max_attempts=1)
    (a,) = pending.emit_many(1, ["a"], ["A"], *NOW).roots
    died = pending.fail(a, WRONG, *NOW)
    assert isinstance(died, Died)
    journal.dying(died)
    assert cut(journal, pending).changed["a"] is not None
    journal.dead(died, WRONG)
    after = cut(journal, pending)
    assert after.changed == {"a": None}
    assert after.outcomes == [("a", WRONG)]


def test_what_a_spout_gave_is_stored_before_it_is_emitted() -> None:
    journal, pending = SpoutJournal(), accounts()
    given: list[Emit[str] | Reject] = [Emit("A", "a"), Reject(b"\xff", "r", "no text"), Emit("lost", None)]
    first = cut(journal, pending, given)
    assert first.changed.keys() == {"a", "r"}
    assert cut(journal, pending, given).is_empty
    pending.emit_many(1, ["a"], ["A"], *NOW)
    emitted = cut(journal, pending, given[1:]).changed
    assert emitted.keys() == {"a"}, "it counts as emitted from now on"
