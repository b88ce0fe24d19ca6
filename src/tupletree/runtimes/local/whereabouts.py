"""Where an open message is, and how many are held by what: asked of the machines of a local run while they work.

Owns who is asked on which thread: each executor answers for its tasks between two steps. One that is in a call does not
answer in time; then what it has in hand is told.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillWaiting
from functools import partial
from typing import TypeVar

from tupletree.clock import Clock
from tupletree.ids import parse_id
from tupletree.runtimes.local.assembly import Assembly
from tupletree.runtimes.local.executor import Executor
from tupletree.tasks.mail import Now
from tupletree.tasks.outbox import Outbox
from tupletree.tasks.spout import SpoutMachine
from tupletree.tracking.facts import Fact
from tupletree.tracking.holds import Hold, added_up
from tupletree.tracking.message_ids import ids_of_text, plain_id
from tupletree.tracking.outcomes import Outcome
from tupletree.tracking.records import Standing

__all__ = ["all_holds", "whereabouts"]

T = TypeVar("T")

ANSWER_S = 0.5
"""How long an executor may take to answer."""

TRIES = 3
"""How often a machine is read: that fails when its thread changes a collection meanwhile."""


def all_holds(assembly: Assembly) -> tuple[Hold, ...]:
    """How many messages and tuples are held, by what."""
    found: list[Hold] = []
    for machine in assembly.machines.values():
        for _ in range(TRIES):
            try:
                found += machine.held_now()
            except (RuntimeError, IndexError):
                continue
            break
    return added_up(found)


def whereabouts(assembly: Assembly, message: str, clock: Clock) -> list[Fact]:
    """See `RunHandle.whereabouts`."""
    facts = []
    for spout in assembly.spouts():
        asked = assembly.owners[spout.task.task_id].submit(partial(_standings, spout, message))
        for standing in _result(asked, list):
            holds = _holds(assembly, spout, standing, clock)
            facts.append(
                Fact(
                    time_s=clock.wall(),
                    what="in flight" if standing.outcome is Outcome.OPEN else "open",
                    spout=spout.task.component,
                    message_id=plain_id(standing.message_id),
                    attempt=standing.attempt,
                    root=standing.root,
                    note="; ".join(dict.fromkeys(map(str, holds))),
                )
            )
    return facts


def _standings(spout: SpoutMachine, message: str, _: Now, __: Outbox) -> list[Standing]:
    """The open messages of a spout's task that this text names; called on the task's thread."""
    name = spout.task.component
    texts = [message, *([message.removeprefix(f"{name}/")] if message.startswith(f"{name}/") else [])]
    ids = [one for text in texts for one in ids_of_text(text)]
    try:
        by_root = spout.pending.id_of(parse_id(message))
    except ValueError:
        by_root = None
    found = [one for id_ in (*ids, *([] if by_root is None else [by_root])) for one in spout.pending.locate(id_)]
    return [one for one in found if one.first_emitted_s is not None]


def _holds(assembly: Assembly, spout: SpoutMachine, standing: Standing, clock: Clock) -> list[Hold]:
    name = spout.task.component
    if standing.outcome is not Outcome.OPEN:
        if standing.due_s is None:
            return [Hold("source", name)]
        until_s = standing.due_s - clock.monotonic() + clock.wall()
        return [Hold("retry", name, until_s=until_s, attempt=standing.attempt + 1)]
    root = standing.root
    asked = [(executor, executor.submit(partial(_held_at, executor, root))) for executor in assembly.executors]
    return [hold for executor, answer in asked for hold in _result(answer, partial(executor.in_call, root))]


def _held_at(executor: Executor, root: int, now: Now, _: Outbox) -> list[Hold]:
    return executor.holds(root, now)


def _result(asked: Future[list[T]], otherwise: Callable[[], list[T]]) -> list[T]:
    """The answer; another one if the executor ends, or is in a call that takes long."""
    try:
        return asked.result(ANSWER_S)
    except (CancelledError, StillWaiting):
        asked.cancel()
        return otherwise()
