"""Eight bugs that systems of this kind have had, put in on purpose: the simulator must catch each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulator.topologies import generated
from tupletree.bolts.effects import Output, Worked
from tupletree.tasks import emitter
from tupletree.tasks.emitter import Emitter
from tupletree.tasks.machine import EmittingMachine
from tupletree.tasks.mail import Mail, Now, Track, TreeVerdicts
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.spout import SpoutMachine
from tupletree.testing import SimulationError, simulate
from tupletree.tracking.acker import Acker
from tupletree.tracking.outcomes import Failure
from tupletree.tracking.pending import Pending
from tupletree.tracking.records import Acked, Died, RetryAt, SourceRetry

MOST_SEEDS = 400


def caught() -> str:
    """Simulate until a rule is broken; which."""
    for seed in range(MOST_SEEDS):
        topology = generated(seed)
        try:
            simulate(topology.make, topology.inputs, seed=seed)
        except SimulationError as error:
            return error.broken
    pytest.fail(f"{MOST_SEEDS} seeds and nothing was noticed")


def test_anchors_in_messages_of_their_own_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ack that overtakes the word of what was anchored completes the tree too early."""
    real = Outbox.add_delta
    apart: list[tuple[int, Sequence[object]]] = []

    def add_delta(self: Outbox, edge: int, roots: Sequence[object]) -> None:
        apart.append((edge, roots))

    def take_tracks(self: Outbox) -> list[tuple[int, Track]]:
        tracks = real_take(self)
        while apart:
            real(self, *apart.pop(0))
            tracks += real_take(self)
        return tracks

    real_take = Outbox.take_tracks
    monkeypatch.setattr(Outbox, "add_delta", add_delta)
    monkeypatch.setattr(Outbox, "take_tracks", take_tracks)
    assert "early" in caught() or "complete" in caught()


def test_edges_told_before_the_input_that_they_came_of_is_done_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word that the input is done may overtake that of what a bolt emitted for it in an earlier call."""
    real = EmittingMachine.carry_out

    def carry_out(self: EmittingMachine, worked: Worked, out: Outbox) -> None:
        self._deferred = None
        real(self, worked, out)

    monkeypatch.setattr(EmittingMachine, "carry_out", carry_out)
    broken = caught()
    assert "early" in broken or "complete" in broken or "still holds" in broken


def test_one_edge_for_all_copies_of_an_all_grouping_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies with one edge cancel out: the tree looks done while both are on their way."""
    real = Emitter.send

    def send(self: Emitter, output: Output, out: Outbox, *rest: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(emitter, "draw_edges", lambda count, bits: [bits(64) | 1] * count)
            return real(self, output, out, *rest)

    monkeypatch.setattr(Emitter, "send", send)
    assert "early" in caught()


def test_zero_that_is_looked_for_on_acks_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all acks overtake the opening, no acker notices that the tree is complete."""
    real = Acker._open

    def open_only(self: Acker, spout_task: int, value: int, roots: list[int], *rest: Any) -> None:
        early = [(root, one) for generation in self._generations.values() for root, one in generation.early.items()]
        values = {root: self._take_early(root).value for root, one in early if root in roots and not one.failure}
        real(self, spout_task, value, roots, *rest)
        for root, kept in values.items():
            trees = next(one.trees for one in self._generations.values() if root in one.trees)
            trees[root] = (spout_task, trees[root][1] ^ kept)  # and zero goes unnoticed

    monkeypatch.setattr(Acker, "_open", open_only)
    assert "heard that all is done" in caught()


def test_untracked_emits_that_stay_pending_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never acked, so the spout waits for them for ever."""
    real = SpoutMachine._send_untracked

    def send_untracked(self: SpoutMachine, values: list[Any], out: Outbox) -> None:
        self.pending.emit(self.task.task_id, f"untracked {values[0]}", values[0], 0.0, 0.0)
        real(self, values, out)

    monkeypatch.setattr(SpoutMachine, "_send_untracked", send_untracked)
    broken = caught()
    assert "does not end" in broken or "still holds" in broken or "without a verdict" in broken or "nothing" in broken


def test_acks_that_are_dropped_during_a_drain_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain waits for messages that ended long ago."""
    real_drain, real_receive = SpoutMachine.drain, SpoutMachine.receive
    draining: set[int] = set()

    def drain(self: SpoutMachine) -> None:
        draining.add(id(self))
        real_drain(self)

    def receive(self: SpoutMachine, mail: Sequence[Mail], now: Now, out: Outbox) -> None:
        kept = mail if id(self) not in draining else [one for one in mail if not isinstance(one, TreeVerdicts)]
        real_receive(self, kept, now, out)

    monkeypatch.setattr(SpoutMachine, "drain", drain)
    monkeypatch.setattr(SpoutMachine, "receive", receive)
    broken = caught()
    assert "does not end" in broken or "still holds rows" in broken, "sinks wait for word of these messages, too"


def test_a_failure_that_overtakes_its_opening_and_is_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is only tried again when its timeout comes."""
    real = Acker._fail

    def fail(self: Acker, root: int, failure: Failure, *rest: Any) -> None:
        if self._holder(root) is not None or self._is_settled(root):
            real(self, root, failure, *rest)

    monkeypatch.setattr(Acker, "_fail", fail)
    assert "heard that it failed" in caught()


def root_of_the_message(self: Pending, root: int, seen: dict[int, Any]) -> int:
    """The root of the attempt that is out for the message that once went out under this one."""
    seen.update({one: message for one, message in self._in_flight.items() if one not in seen})
    return seen[root].root if root in seen and seen[root].root in self._in_flight else root


@pytest.mark.parametrize("verdict", ["ack", "fail"])
def test_a_verdict_on_an_old_attempt_that_is_applied_to_the_new_one_is_caught(
    verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fail, real_ack, real_emit, real_due = Pending.fail, Pending.ack_many, Pending.emit_many, Pending.due
    seen: dict[int, Any] = {}

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def emit(self: Pending, *arguments: Any) -> Any:
            result = real(self, *arguments)
            root_of_the_message(self, 0, seen)
            return result

        return emit

    def fail(
        self: Pending, root: int, failure: Failure, now_s: float, wall_s: float
    ) -> RetryAt | SourceRetry | Died | None:
        return real_fail(self, root_of_the_message(self, root, seen), failure, now_s, wall_s)

    def ack_many(self: Pending, roots: Sequence[int], now_s: float) -> list[Acked]:
        return real_ack(self, [root_of_the_message(self, root, seen) for root in roots], now_s)

    monkeypatch.setattr(Pending, "emit_many", noting(real_emit))
    monkeypatch.setattr(Pending, "due", noting(real_due))
    if verdict == "fail":
        monkeypatch.setattr(Pending, "fail", fail)
        assert "a verdict on root" in caught()
    else:
        monkeypatch.setattr(Pending, "ack_many", ack_many)
        assert "acked" in caught()


def test_an_outage_that_fails_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tupletree.bolts.effects.is_outage", lambda _: False)  # of bolts and sinks
    assert "an outage failed" in caught()


@pytest.mark.parametrize("lost", ["failed", "dead", "acked", "retried"])
def test_a_history_that_lacks_something_is_caught(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Outbox.take_tracks  # called first of all as effects are carried out

    def take_tracks(self: Outbox) -> list[tuple[int, Track]]:
        self.facts = [fact for fact in self.facts if fact.what != lost]
        return real(self)

    monkeypatch.setattr(Outbox, "take_tracks", take_tracks)
    assert "the history of" in caught()
