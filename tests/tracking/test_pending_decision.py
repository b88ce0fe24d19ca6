"""A decision about messages changes nothing until it is applied, and then does what the direct calls do."""

from __future__ import annotations

import itertools
import random
from typing import Any, Literal

import pytest

from tests.tracking.logging_pending import snapshot, take_changes
from tupletree.tracking.outcomes import Failure, FailureKind, Outcome
from tupletree.tracking.pending import Pending
from tupletree.tracking.pending_decision import Adoption, PendingDecider
from tupletree.tracking.pending_log import PendingChanges, WaitingRecord
from tupletree.tracking.records import Emission, RetryAt
from tupletree.tracking.retry import RetryPolicy, spread_of

SPOUTS: dict[int, Literal["runtime", "source"]] = {1: "runtime", 2: "source"}


def encode(_task: int, value: Any) -> Any:
    return value


def messages(seed: int) -> Pending:
    """Some messages in every place that one can be in; equal seeds give equal ones."""
    chance = random.Random(seed)
    bits = random.Random(seed)
    policy = RetryPolicy(max_attempts=2, jitter=0.0)
    made = Pending(policy, bits.getrandbits, lambda: 0.5, record_changes=True)
    for task, replay in SPOUTS.items():
        made.register(task, f"spout{task}", replay)
        for number in range(20):
            made.emit(task, number, f"value {number}", float(number), 1000.0 + number)
    made.mark_unconfirmed(1, "old", Outcome.ACKED)
    for root in chance.sample(made.roots_in_flight(), 15):
        made.fail(root, failure(chance), 30.0, 1030.0)
    if chance.random() < 0.5:
        take_changes(made, encode, 30.0, 1030.0)
    made.due(31.0, chance.randrange(8))
    made.note_logged(made.roots_in_flight())
    if chance.random() < 0.5:
        made.confirm(1, "old")
    return made


def failure(chance: random.Random) -> Failure:
    return Failure(kind=FailureKind.ERROR, error="it broke", permanent=chance.random() < 0.2)


def decide(decider: PendingDecider, seed: int) -> list[Any]:
    """Verdicts on most of the messages, some of them given before, and one message that came from elsewhere."""
    chance = random.Random(seed + 1)
    roots = messages(seed).roots_in_flight()
    chance.shuffle(roots)
    acked, failed, back, in_place = roots[:6], roots[4:12], roots[12:16], roots[16:18]
    decider.adopt(Adoption(12345, 1, "from elsewhere", "its value", 1039.0, 7))
    effects: list[Any] = [*decider.ack_many(acked)]
    for task in SPOUTS:
        effects += decider.give_up(task)
    effects += [decider.fail(root, failure(chance), in_place=False) for root in [*failed[2:], 12345]]
    effects += [decider.fail(root, failure(chance), in_place=True) for root in in_place]
    for root in back:
        decider.put_back(root, chance.choice((50.0, float("-inf"))))
    decider.mark_unconfirmed(2, 3, Outcome.DEAD)
    return effects


def everything(pending: Pending) -> Any:
    standings = [pending.locate(one) for one in [*range(20), "old", "from elsewhere"]]
    counts = [(pending.open_count(task), pending.in_flight(task), pending.awaited(task)) for task in SPOUTS]
    return standings, counts, pending.counters, pending.size, pending.next_due_s(), pending.roots_in_flight()


def of_task(written: PendingChanges, task: int) -> list[WaitingRecord]:
    return [record for record in written.waiting if record.spout_task == task]


@pytest.mark.parametrize("seed", range(30))
def test_deciding_changes_nothing_and_comes_to_the_same_again(seed: int) -> None:
    pending = messages(seed)
    found = []
    for _ in range(2):
        decider = pending.decider(40.0, 1040.0)
        effects = decide(decider, seed)
        found.append((effects, decider.decision, decider.changes(encode), decider.base(encode)))
    assert found[0] == found[1]
    assert everything(pending) == everything(messages(seed))


@pytest.mark.parametrize("seed", range(30))
def test_what_was_decided_is_what_the_log_says_once_it_is_applied(seed: int) -> None:
    pending, directly = messages(seed), messages(seed)
    decider = pending.decider(40.0, 1040.0)
    effects = decide(decider, seed)
    changes, base = decider.changes(encode), decider.base(encode)
    pending.apply(decider.decision)

    done = decider.decision
    for one in done.adopted:
        times = {"first_emitted_s": one.first_emitted_s, "now_s": 40.0, "wall_s": 1040.0}
        directly.adopt(one.root, one.spout_task, one.message_id, one.value, attempt=1, made=one.made, **times)
    now = [*directly.ack_many(done.acked, 40.0)]
    for task in SPOUTS:
        now += directly.give_up(task, 40.0, 1040.0)  # type: ignore[arg-type]
    assert effects[: len(now)] == now
    for failed in done.failed:
        if not failed.in_place:
            assert directly.fail(failed.root, failed.failure, 40.0, 1040.0) == failed.effect
    for root, due_s in done.put_back:
        assert directly.put_back(root, due_s)
    directly.mark_unconfirmed(2, 3, Outcome.DEAD)

    assert changes == take_changes(directly, encode, 40.0, 1040.0)
    expected = snapshot(directly, encode, 40.0, 1040.0)
    for task in SPOUTS:
        for written in (base, snapshot(pending, encode, 40.0, 1040.0)):
            assert of_task(written, task) == of_task(expected, task)
    assert base.settled == expected.settled
    assert not take_changes(pending, encode, 40.0, 1040.0).waiting


def test_an_attempt_that_goes_on_in_place_stays_in_flight_under_its_root() -> None:
    pending = messages(3)
    root = pending.emit(2, "kept", "value", 39.0, 1039.0)
    assert isinstance(root, Emission)
    decider = pending.decider(40.0, 1040.0)
    effect = decider.fail(root.root, Failure(kind=FailureKind.ERROR, error="it broke"), in_place=True)
    assert isinstance(effect, RetryAt)
    assert effect.attempt_next == 2
    pending.apply(decider.decision)
    (standing,) = pending.locate("kept")
    assert (standing.outcome, standing.root, standing.attempt) == (Outcome.OPEN, root.root, 2)


def test_jitter_that_comes_of_roots_is_spread_evenly() -> None:
    drawn = [spread_of(root, attempt) for root, attempt in itertools.product(range(1, 2001), (1, 2))]
    assert all(0.0 <= one < 1.0 for one in drawn)
    assert len(set(drawn)) == len(drawn)
    quarters = [sum(low <= one < low + 0.25 for one in drawn) for low in (0.0, 0.25, 0.5, 0.75)]
    assert all(800 < quarter < 1200 for quarter in quarters)
