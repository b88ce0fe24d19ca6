"""Cancel, pause, replay, retention, and what people ask of the ledger."""

from __future__ import annotations

import pytest

from tests.routes.ledger.ledgers import RULES, Bench, child, rules
from tupletree.errors import ConfigError
from tupletree.queues import Message
from tupletree.routes.accounts import account_of
from tupletree.routes.ledger.settling import MAX_LOST
from tupletree.routes.messages import Settlement


def test_a_cancelled_execution_ends_at_once_and_its_waiting_messages_are_acked_unworked(shop: Bench) -> None:
    execution = shop.start(on_complete="ended")
    [first] = shop.take("a")
    shop.end(first, "done", "b", "b", "b")
    [working] = shop.take("b")
    assert shop.ledger.cancel(execution, "no use")
    found = shop.ledger.execution(execution)
    assert found is not None
    assert (found.state, found.open, found.reason) == ("cancelled", 0, "no use")
    waiting = shop.lease("b", 10)
    assert [one.action for one in shop.arrive(waiting, "b")] == ["ack", "ack"]
    late = shop.end(working, "done", "c")
    assert (late.late, late.publish, late.completed) == (1, {}, [])
    assert shop.broker.depth("c").open == 0
    shop.drain()
    assert [one.state for one in shop.ledger.completed_not_told()] == ["cancelled"]
    assert shop.broker.depth("ended").ready == 1
    assert shop.ledger.cancel(execution)  # again: the same


def test_what_has_ended_cannot_be_cancelled(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    shop.end(first)
    assert not shop.ledger.cancel(execution)
    assert not shop.ledger.cancel("unknown")


def test_a_message_that_counts_in_a_live_execution_too_is_worked_when_the_other_is_cancelled(shop: Bench) -> None:
    cancelled, live = shop.start(), shop.start()
    first, second = shop.take("a", 2)
    shop.settle(Settlement(messages=[first, second], outcome="done", children=[child([first, second], "b")]))
    shop.ledger.cancel(cancelled)
    [merged] = shop.take("b")
    assert merged.executions == (live,)
    effects = shop.end(merged, "done", "c")
    assert [one.execution for one in effects.completed] == [cancelled]
    [last] = shop.take("c")
    assert [one.execution for one in shop.end(last).completed] == [live]


def test_messages_of_a_paused_execution_are_given_back(shop: Bench) -> None:
    execution = shop.start()
    assert shop.ledger.pause(execution)
    assert not shop.ledger.pause(execution)
    deliveries = shop.lease("a")
    assert [one.action for one in shop.arrive(deliveries, "a")] == ["give_back"]
    assert shop.ledger.resume(execution)
    assert [one.action for one in shop.arrive(deliveries, "a")] == ["work"]


def test_an_execution_whose_run_ended_is_interrupted_and_goes_on_with_the_next(shop: Bench) -> None:
    execution = shop.start()
    assert shop.ledger.interrupt(execution)
    assert [one.state for one in shop.ledger.executions()] == ["interrupted"]
    assert shop.ledger.go_on("shop") == 1
    [first] = shop.take("a")
    assert shop.end(first).completed[0].state == "completed"


def test_a_message_that_ends_its_process_each_time_is_dead_in_the_end(shop: Bench) -> None:
    shop.start(b'"poison"')
    for _ in range(MAX_LOST):
        deliveries = shop.lease("a")
        assert [one.action for one in shop.arrive(deliveries, "a")] == ["work"]
        shop.wait(31)  # its lease ends
    [verdict] = shop.arrive(shop.lease("a"), "a")
    assert verdict.action == "dead_letter"
    assert "its process ended 20 times" in verdict.reason
    [counts] = shop.ledger.counts(shop.ledger.executions()[0].id)
    assert (counts.lost_attempts, counts.states["dead"]) == (MAX_LOST - 1, 1)
    [replayed] = shop.ledger.replay([verdict.id])
    shop.drain()
    assert [one.message.body for one in shop.lease("a", 10)] == [b'"poison"']
    assert replayed.as_id == verdict.id


def test_a_replayed_dead_letter_is_worked_again_in_its_execution_which_completes_again(shop: Bench) -> None:
    execution = shop.start(b'"x"', on_complete="ended")
    [first] = shop.take("a")
    [completed] = shop.end(first, "failed", reason="no", permanent=True).completed
    assert completed.state == "failed"
    assert shop.ledger.told(execution, 1)
    [replayed] = shop.ledger.replay([first.id, "unknown"])
    assert shop.broker.purge("a", states=["dead"]) == 1
    assert replayed.letter == first.id
    assert shop.ledger.replay([first.id]) == []  # it is not dead any more
    shop.drain()
    found = shop.ledger.execution(execution)
    assert found is not None
    assert (found.state, found.open, found.dead, found.run) == ("running", 1, 0, 2)
    [again] = shop.take("a", 10)
    assert (again.id, again.attempt, again.body) == (first.id, 1, b'"x"')
    [completed] = shop.end(again).completed
    assert (completed.state, completed.run) == ("completed", 2)
    assert shop.ledger.told(execution, 2)
    shop.drain()
    assert shop.broker.depth("ended").ready == 2


def test_a_dead_message_that_was_handled_elsewhere_is_dropped_and_replayed_no_more(shop: Bench) -> None:
    execution = shop.start(b'"x"')
    [first] = shop.take("a")
    shop.end(first, "failed", reason="no", error="ValueError", permanent=True)
    open_one = shop.start()
    [other] = shop.take("a")
    assert shop.ledger.drop([first.id, other.id, "unknown"], "paid by hand") == [first.id]
    assert shop.ledger.drop([first.id], "again") == []
    assert shop.ledger.replay([first.id]) == []
    assert shop.ledger.replay_into([first.id], RULES)[1] == []
    found = shop.ledger.execution(execution)
    assert found is not None
    assert (found.state, found.dead) == ("failed", 1), "it stays dead in all counts"
    account = account_of(first.id, shop.ledger)
    assert account is not None
    assert (account.state, account.is_dropped) == ("dead", True)
    assert "was dropped by hand: paid by hand (it died of ValueError: no)" in account.sentence
    assert account.events[-1].what == "dead: dropped by hand: paid by hand (it died of ValueError: no)"
    assert len(shop.end(other).completed) == 1
    assert shop.ledger.execution(open_one) is not None


def test_a_dead_letter_can_be_replayed_into_a_new_execution_of_another_pipeline(shop: Bench) -> None:
    shop.start(b'"x"')
    [first] = shop.take("a")
    shop.end(first, "failed", reason="no", permanent=True)
    with pytest.raises(ConfigError, match="no route reads the queue"):
        shop.ledger.replay_into([first.id], RULES, queue="nowhere")
    execution, copies = shop.ledger.replay_into([first.id], rules(), queue="b", execution="again")
    assert shop.ledger.replay_into([first.id], rules(), queue="b", execution="again") == ("again", [])
    shop.drain()
    [copy] = shop.take("b", 10)
    assert (copy.id, copy.body, copy.executions) == (copies[0].as_id, b'"x"', (execution,))
    account = shop.ledger.message(copy.id)
    assert account is not None
    assert account.parents == [first.id]
    assert shop.end(copy).completed[0].execution == execution


def test_a_message_that_others_published_can_be_replayed(shop: Bench) -> None:
    shop.broker.publish("b", [Message(id="order-1", body=b"1")])
    [one] = shop.take("b")
    shop.end(one, "failed", reason="no", permanent=True)
    [replayed] = shop.ledger.replay([one.id])
    assert replayed.letter == "order-1"
    shop.drain()
    [again] = shop.take("b", 10)
    assert again.id == one.id
    account = shop.ledger.message("order-1")
    assert account is None  # at its broker it has the id of the replay now
    assert shop.ledger.message(f"{one.id}~1") is not None


@pytest.mark.timeout(60)  # where an id was there before, the transaction began again for ever
def test_a_message_that_dies_again_after_its_replay_goes_to_the_dead_letter_queue_again(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    shop.end(first, "done", "c")
    for _ in range(3):
        [one] = shop.take("c", 10)
        shop.end(one, "failed", reason="no")
        [letter] = shop.take("d", 10)
        assert letter.headers["tupletree-dead-message"] == one.id
        shop.end(letter)
        assert shop.ledger.replay([one.id])
        shop.drain()
    [one] = shop.take("c", 10)
    assert [done.execution for done in shop.end(one).completed] == [execution]


@pytest.mark.parametrize("how", ["failed", "lost"])
def test_what_is_made_of_a_replayed_message_is_not_taken_for_it(shop: Bench, how: str) -> None:
    """Its dead letter in a queue that a route reads, and its copy in another execution."""
    shop.start()
    [first] = shop.take("a")
    shop.end(first, "done", "c")
    [one] = shop.take("c")
    shop.end(one, "failed", reason="no")
    [letter] = shop.take("d")
    shop.end(letter)
    assert shop.ledger.replay([one.id])
    shop.drain()
    if how == "lost":
        for _ in range(MAX_LOST):
            shop.arrive(shop.lease("c"), "c")
            shop.wait(31)
        assert [answer.action for answer in shop.arrive(shop.lease("c"), "c")] == ["ack"]
        shop.drain()
    else:
        [again] = shop.take("c")
        shop.end(again, "failed", reason="no")
    [letter] = shop.take("d", 10)
    assert letter.executions == one.executions
    shop.end(letter)
    execution, [copy] = shop.ledger.replay_into([one.id], RULES)
    shop.drain()
    found = [answer for answer in shop.arrive(shop.lease("c", 10), "c") if answer.action == "work"]
    assert [(answer.id, answer.executions) for answer in found] == [(copy.as_id, (execution,))]


@pytest.mark.parametrize("permanent", [True, False])
def test_what_attempts_before_a_replay_came_to_does_not_count_again(shop: Bench, permanent: bool) -> None:
    """A sink that is called again at the next start, before which its dead messages were replayed."""
    shop.start()
    told: list[Settlement] = []
    while not shop.broker.depth("a").dead:
        told.append(Settlement(messages=shop.take("a"), outcome="failed", reason="no", permanent=permanent))
        shop.settle(told[-1])
        shop.wait(60)
    shop.ledger.replay([told[0].messages[0].id])
    shop.drain()
    effects = shop.settle(*told)
    assert (effects.late, effects.settled) == (len(told), {})
    [again] = shop.take("a", 10)
    assert again.attempt == 1
    assert shop.end(again).completed[0].state == "completed"


def test_a_replay_does_not_bring_back_a_cancelled_execution(shop: Bench) -> None:
    cancelled, live = shop.start(on_complete="ended"), shop.start(on_complete="ended")
    first, second = shop.take("a", 2)
    shop.settle(Settlement(messages=[first, second], outcome="done", children=[child([first, second], "b")]))
    [merged] = shop.take("b")
    shop.ledger.cancel(cancelled, "no use")
    shop.end(merged, "failed", reason="no", permanent=True)
    assert shop.ledger.replay([merged.id])
    shop.drain()
    states = {one.id: one.state for one in shop.ledger.executions()}
    assert states == {cancelled: "cancelled", live: "running"}
    [again] = shop.take("b", 10)
    assert again.executions == (live,)
    assert {one.execution: one.state for one in shop.end(again).completed} == {
        cancelled: "cancelled",
        live: "completed",
    }


def test_the_account_of_a_message_says_where_it_is_and_what_became_of_it(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    shop.end(first, "done", "b", "c", "out")
    [second] = shop.take("b")
    shop.end(second, "failed", reason="no \udc80\0 luck", error="ValueError", adapter="embed", traceback="Traceback")
    account = shop.ledger.message(second.id)
    assert account is not None
    row = account.message
    assert (row.state, row.route, row.queue, row.failures) == ("retrying", "B", "b", 1)
    assert (row.reason, row.error, row.adapter) == ("no \\udc80\\x00 luck", "ValueError", "embed")
    assert row.due_s == shop.host.wall_s + 10
    assert (account.executions, account.parents, account.unpublished) == ([execution], [first.id], False)
    parent = shop.ledger.message(first.id)
    assert parent is not None
    assert parent.children == [child([first], queue, n).id for n, queue in enumerate(("b", "c", "out"))]
    assert parent.children_total == 3
    assert shop.ledger.message("unknown") is None


def test_a_message_that_was_not_published_yet_says_so(shop: Bench) -> None:
    shop.start()
    [first] = shop.take("a")
    effects = shop.ledger.settle([Settlement(messages=[first], outcome="done", children=[child([first], "b")])], RULES)
    account = shop.ledger.message(child([first], "b").id)
    assert account is not None
    assert account.unpublished == bool(effects.outbox)
    shop.drain()
    account = shop.ledger.message(child([first], "b").id)
    assert account is not None
    assert not account.unpublished


def test_counts_by_route_and_lists_by_state(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    shop.end(first, "done", "b", "b", "b", "out")
    one, two, _ = shop.take("b", 3)
    shop.end(one, "filtered", reason="empty")
    shop.end(two, "failed", reason="no")
    shop.ledger.hold([_.id])
    counts = {one.route: one for one in shop.ledger.counts(execution)}
    assert counts["B"].states["filtered"] == counts["B"].states["retrying"] == counts["B"].states["held"] == 1
    assert (counts["B"].open, counts["B"].failed_attempts) == (2, 1)
    assert counts[""].states["unrouted"] == 1
    assert shop.ledger.counts(pipeline="shop") == shop.ledger.counts(execution)
    listed = shop.ledger.messages(execution, state="filtered")
    assert [(row.id, row.reason) for row in listed] == [(one.id, "empty")]
    everything = shop.ledger.messages(execution)
    assert len(everything) == 5
    assert shop.ledger.messages(execution, after=everything[1].number, limit=2) == everything[2:4]
    assert len(shop.ledger.messages(execution, route="B")) == 3


def test_executions_are_listed_newest_first_by_pipeline_and_state(shop: Bench) -> None:
    shop.start(execution="one")
    shop.start(execution="two")
    shop.ledger.cancel("one")
    assert [one.id for one in shop.ledger.executions("shop")] == ["two", "one"]
    assert [one.id for one in shop.ledger.executions(state="cancelled")] == ["one"]
    assert shop.ledger.executions("other") == []


def test_an_execution_keeps_the_document_and_versions_that_it_began_with(shop: Bench) -> None:
    execution = shop.start()
    stored = shop.ledger.document(execution)
    assert stored is not None
    assert (stored.document, stored.versions) == ("pipeline: shop", {"f": "1"})
    assert shop.ledger.document("unknown") is None


def test_old_executions_are_deleted_with_all_that_is_theirs(shop: Bench) -> None:
    old, new = shop.start(), shop.start()
    first, second = shop.take("a", 2)
    shop.settle(Settlement(messages=[first, second], outcome="done", children=[child([first, second], "b")]))
    third, fourth = shop.start(), shop.start()
    one, two = shop.take("a", 2)
    shop.end(one, "failed", reason="no", permanent=True)
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1
    assert {one.id for one in shop.ledger.executions()} == {old, new, fourth} or {
        one.id for one in shop.ledger.executions()
    } == {old, new, third}
    [merged] = shop.take("b")
    shop.end(merged)
    shop.wait(100)
    assert shop.ledger.delete_ended(shop.host.wall_s - 200) == 0
    assert shop.ledger.delete_ended(shop.host.wall_s) == 2
    assert shop.ledger.message(merged.id) is None
    assert shop.end(two).completed != []


def test_a_message_stays_with_its_other_execution_when_one_is_deleted(shop: Bench) -> None:
    cancelled, live = shop.start(), shop.start()
    first, second = shop.take("a", 2)
    shop.settle(Settlement(messages=[first, second], outcome="done", children=[child([first, second], "b")]))
    shop.ledger.cancel(cancelled)
    [merged] = shop.take("b")
    shop.end(merged, "done", "c")
    assert shop.ledger.delete_ended(shop.host.wall_s + 1) == 1
    account = shop.ledger.message(merged.id)
    assert account is not None
    assert account.executions == [live]
    [last] = shop.take("c")
    assert len(shop.end(last).completed) == 1
