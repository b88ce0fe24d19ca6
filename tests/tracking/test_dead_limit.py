"""How many messages of a run may die."""

from __future__ import annotations

from tupletree.tracking.dead_limit import DeadLimit


def test_without_a_limit_any_number_may_die() -> None:
    assert DeadLimit(None, sample=1).exceeded(acked=0, dead=1_000_000) == ""
    assert DeadLimit(None, sample=1).first_look is None


def test_a_number_is_exceeded_by_one_more() -> None:
    limit = DeadLimit(20, sample=100)
    assert limit.exceeded(acked=0, dead=20) == ""
    assert limit.exceeded(acked=0, dead=21)


def test_a_share_counts_once_enough_messages_have_ended() -> None:
    limit = DeadLimit("1%", sample=100)
    assert limit.exceeded(acked=0, dead=99) == ""
    assert limit.exceeded(acked=99, dead=1) == ""
    assert limit.exceeded(acked=98, dead=2)


def test_it_counts_from_the_start_of_the_process_or_from_when_the_run_was_resumed() -> None:
    limit = DeadLimit(20, sample=100)
    limit.begin(acked=500, dead=50)
    assert limit.exceeded(acked=500, dead=70) == ""
    assert limit.exceeded(acked=500, dead=71)
    limit.begin(acked=500, dead=71, still_open=5)
    assert limit.exceeded(acked=500, dead=96) == ""
    assert limit.exceeded(acked=500, dead=97)


def test_a_share_is_one_of_what_ended_since_then() -> None:
    limit = DeadLimit("10%", sample=10)
    limit.begin(acked=1_000, dead=0)
    assert limit.exceeded(acked=1_004, dead=5) == ""
    assert limit.exceeded(acked=1_005, dead=5) == "5 of 10 messages that ended are dead: more than max_dead (10%)"
