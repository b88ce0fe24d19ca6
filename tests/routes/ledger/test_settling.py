"""What the ledger makes of starts, deliveries and settlements, in a database and in the queue's own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.routes.ledger.ledgers import RULES, Bench, bench, child
from tupletree.errors import ConfigError
from tupletree.queues import Message
from tupletree.routes.document.spec import ErrorHandling
from tupletree.routes.ledger import Arrival, Completed, Ledger, NewMessage
from tupletree.routes.messages import Settlement


def test_an_execution_is_complete_when_its_last_message_is_done_and_not_before(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    assert shop.end(first, "done", "b", "b").completed == []
    second, third = shop.take("b", 2)
    assert shop.end(second).completed == []
    [completed] = shop.end(third).completed
    assert (completed.execution, completed.state, completed.total) == (execution, "completed", 3)
    assert shop.broker.depth("a").open == shop.broker.depth("b").open == 0


def test_starting_the_same_execution_again_changes_nothing(shop: Bench) -> None:
    shop.start(b"1", execution="one")
    shop.start(b"2", execution="one")
    assert [one.message.body for one in shop.lease("a", 10)] == [b"1"]


def test_the_first_message_must_have_a_reader(shop: Bench) -> None:
    with pytest.raises(ConfigError, match="no route reads the queue of the first message"):
        shop.ledger.start(RULES, NewMessage("x", b""))


def test_children_are_registered_before_any_of_them_is_published(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    effects = shop.ledger.settle(
        [Settlement(messages=[first], outcome="done", children=[child([first], "b", n) for n in range(3)])], RULES
    )
    waiting = {row.id for row in shop.ledger.outbox()} | {one.message.id for one in shop.broker.peek("b")}
    assert waiting == {child([first], "b", n).id for n in range(3)}
    assert effects.completed == []


def test_a_failed_attempt_is_tried_again_after_its_delay_and_the_execution_goes_on(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    shop.end(first, "done", "b")
    [second] = shop.take("b")
    effects = shop.end(second, "failed", reason="away", error="OSError")
    assert effects.completed == []
    assert shop.broker.depth("b").delayed == 1
    [waiting] = shop.broker.peek("b", "delayed")
    assert waiting.reason == "away"


def test_a_route_that_was_renamed_tries_again_what_was_registered_before(shop: Bench) -> None:
    shop.start()
    shop.rules = replace(RULES, readers={"a": "new"}, error_handling={"new": ErrorHandling(max_retries=1)})
    [first] = shop.take("a")
    shop.end(first, "failed", reason="no")
    shop.wait(60)
    [again] = shop.take("a")
    assert again.attempt == 2


def test_after_the_last_attempt_a_message_is_a_dead_letter_with_its_reason(shop: Bench) -> None:
    shop.start()
    completed: list[Completed] = []
    for attempt in (1, 2, 3):
        [one] = shop.take("a")
        assert one.attempt == attempt
        completed += shop.end(one, "failed", reason=f"no {attempt}", error="ValueError").completed
        shop.wait(60)
    assert completed[0].state == "failed"  # the first message of the execution is dead
    [dead] = shop.broker.peek("a", "dead")
    assert dead.reason == "no 3"


def test_a_permanent_error_is_the_last_attempt(shop: Bench) -> None:
    shop.start()
    [one] = shop.take("a")
    assert shop.end(one, "failed", reason="no", permanent=True).completed[0].dead == 1


def test_a_dead_letter_queue_that_a_route_reads_keeps_the_execution_open(shop: Bench) -> None:
    shop.start(b'"bad"')
    [first] = shop.take("a")
    shop.end(first, "done", "c")
    [second] = shop.take("c")
    assert shop.end(second, "failed", reason="broken").completed == []
    [letter] = shop.take("d")
    assert letter.headers["tupletree-dead-message"] == second.id
    assert letter.headers["tupletree-dead-reason"] == "broken"
    [completed] = shop.end(letter).completed
    assert (completed.state, completed.dead) == ("completed_with_dead_letters", 1)


def test_a_message_for_a_queue_without_a_reader_leaves_the_pipeline(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    effects = shop.end(first, "done", "out")
    assert effects.settled == {("A", "done"): 1, ("", "unrouted"): 1}
    assert len(effects.completed) == 1
    assert shop.broker.depth("out").ready == 1


@pytest.mark.parametrize("outcome", ["done", "filtered", "unrouted", "dead"])
def test_a_message_that_has_ended_is_over_when_its_queue_gives_it_again(shop: Bench, outcome: str) -> None:
    """However it ended: what no queue took is not taken for a message of somebody else."""
    shop.start()
    [first] = shop.take("a")
    failed = outcome == "dead"
    shop.ledger.settle(
        [Settlement(messages=[first], outcome="failed" if failed else outcome, reason="so", permanent=failed)],  # type: ignore[arg-type]  # of these
        RULES,
    )
    [verdict] = shop.ledger.arrive([Arrival(first.id, "a", "A", b"{}", {})], RULES)
    assert (verdict.action, verdict.id) == ("dead_letter" if failed else "ack", first.id)
    assert len(shop.ledger.executions()) == 1


@pytest.mark.parametrize("outcome", ["filtered", "unrouted"])
def test_what_is_filtered_or_unrouted_is_settled_as_such(shop: Bench, outcome: str) -> None:
    shop.start()
    [first] = shop.take("a")
    effects = shop.end(first, outcome, reason="no match")  # type: ignore[arg-type]  # of the parameters
    assert effects.settled == {("A", outcome): 1}
    assert effects.completed[0].state == "completed"


def test_an_attempt_that_was_stopped_does_not_count(shop: Bench) -> None:
    shop.start()
    for _ in range(5):
        [one] = shop.take("a")
        assert one.attempt == 1
        shop.end(one, "cancelled", reason="stop")


def test_a_settlement_that_comes_twice_counts_once_and_is_acked_twice(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    settlement = Settlement(messages=[first], outcome="done", children=[child([first], "b")])
    shop.settle(settlement, settlement)
    effects = shop.settle(settlement)
    assert effects.late == 1
    assert not effects.publish
    [second] = shop.take("b", 10)
    assert shop.end(second).completed[0].total == 2


def test_the_same_failure_told_twice_counts_once(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    shop.end(first, "failed", reason="no")
    shop.end(first, "failed", reason="no")
    shop.wait(60)
    [again] = shop.take("a")
    assert again.attempt == 2


def test_a_message_that_others_published_is_an_execution_of_its_own(shop: Bench) -> None:
    shop.broker.publish("b", [Message(id="order-1", body=b"1")])
    [one] = shop.take("b")
    assert shop.end(one).completed[0].total == 1
    shop.broker.publish("c", [Message(id="order-1", body=b"1")])  # another queue: another message
    [other] = shop.take("c")
    assert other.id != one.id
    assert len(shop.end(other).completed) == 1


def test_a_batch_that_merges_messages_of_two_executions_makes_a_child_that_counts_in_both(shop: Bench) -> None:
    executions = {shop.start(), shop.start()}
    first, second = shop.take("a", 2)
    merged = child([first, second], "b")
    assert shop.settle(Settlement(messages=[first, second], outcome="done", children=[merged])).completed == []
    [one] = shop.take("b")
    assert set(one.executions) == executions
    assert {completed.execution for completed in shop.end(one).completed} == executions


def test_what_a_batch_made_is_refused_as_a_whole_if_a_member_was_settled_before(shop: Bench) -> None:
    shop.start()
    shop.start()
    first, second = shop.take("a", 2)
    shop.end(first)
    effects = shop.settle(Settlement(messages=[first, second], outcome="done", children=[child([first, second], "b")]))
    assert effects.completed == []
    assert shop.broker.depth("b").ready == 0
    [again] = shop.take("a", 10)
    assert (again.id, again.attempt) == (second.id, 1)


def test_what_a_batch_made_is_refused_if_it_had_a_message_twice(shop: Bench) -> None:
    """Its lease ended while the batch held it, and the same process got it again."""
    shop.start()
    [first] = shop.take("a")
    shop.wait(31)
    [again] = shop.take("a")
    effects = shop.settle(Settlement(messages=[first, again], outcome="done", children=[child([first, again], "b")]))
    assert effects.settled == {}
    [once] = shop.take("a", 10)
    assert len(shop.end(once).completed) == 1


def test_a_child_that_no_broker_takes_fails_its_parent_and_not_the_batch(shop: Bench) -> None:
    shop.start()
    shop.start()
    first, second = shop.take("a", 2)
    wrong = child([first], "b", headers={"name": "caf\udce9"})
    effects = shop.settle(
        Settlement(messages=[first], outcome="done", children=[wrong]),
        Settlement(messages=[second], outcome="done", children=[child([second], "b", headers={"name": "café"})]),
    )
    assert effects.settled == {("A", "dead"): 1, ("A", "done"): 1}
    [letter] = shop.broker.peek("a", "dead")
    assert letter.reason == "what it made for queue 'b' has a header that is no text: 'caf\\udce9'"
    assert shop.broker.depth("b").ready == 1


def test_completion_is_told_by_one_caller_once(shop: Bench) -> None:
    execution = shop.start(on_complete="ended")
    [first] = shop.take("a")
    shop.end(first)
    [completed] = shop.ledger.completed_not_told()
    assert completed.execution == execution
    assert [shop.ledger.told(execution, completed.run) for _ in range(2)] == [True, False]
    assert shop.ledger.completed_not_told() == []
    [message] = shop.lease("ended", 10)
    assert message.message.headers["tupletree-execution"] == execution


def test_a_lease_and_what_the_ledger_says_of_it_are_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = bench("queue file", tmp_path)
    execution = shop.start()
    shop.broker.publish("a", [Message(id="from others")])
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "_arrive", Mock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            shop.ledger.lease("a", "A", RULES, 10, lease_s=5.0)
    assert (shop.broker.depth("a").ready, shop.broker.depth("a").leased) == (2, 0)
    leased, verdicts = shop.ledger.lease("a", "A", RULES, 10, lease_s=5.0)
    assert [verdict.action for verdict in verdicts] == ["work", "work"]
    assert verdicts[0].executions == (execution,)
    assert shop.ledger.lease("a", "A", RULES, 10, lease_s=5.0) == ([], [])
    shop.wait(6.0)
    again, verdicts = shop.ledger.lease("a", "A", RULES, 1, lease_s=5.0)
    assert again[0].handle != leased[0].handle
    assert shop.broker.ack([leased[0].handle]) == [leased[0].handle], "the lease that ended acks nothing"
    shop.end(shop.standing(again[0], verdicts[0], "a"))
    assert shop.ledger.execution(execution).state == "completed"  # type: ignore[union-attr]  # it is there
    assert shop.broker.depth("a").open == 1
    assert not shop.ledger.leases("elsewhere")
    shop.close()
