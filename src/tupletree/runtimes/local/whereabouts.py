"""Where an open message is, and how many are held by what: asked of the machines of a local run while they work.

Owns who is asked on which thread: each executor answers for its tasks between two steps. One that is in a call does not
answer in time; then what it has in hand is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as StillWaiting
from functools import partial
from typing import TypeAlias, TypeVar

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
from tupletree.tracking.records import MessageStatus

T = TypeVar("T")

_Asked: TypeAlias = tuple[Future[list[T]], Callable[[], list[T]]]
"""An answer to come, and what is told instead."""

ANSWER_S = 0.5
"""How long executors may take to answer a question that all of them are asked at once. One account asks two: its caller
also writes the status of the run, which must not become old."""

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
    spouts = assembly.spouts()
    asked: list[_Asked[MessageStatus]] = [
        (assembly.owners[spout.task.task_id].submit(partial(_standings, spout, message)), list) for spout in spouts
    ]
    found = [
        (spout, standing)
        for spout, standings in zip(spouts, _results(asked, clock), strict=True)
        for standing in standings
    ]
    held = _held(assembly, dict.fromkeys(one.root for _, one in found if one.outcome is Outcome.OPEN), clock)
    return [
        Fact(
            time_s=clock.wall(),
            what="in flight" if standing.outcome is Outcome.OPEN else "open",
            spout=spout.task.component,
            message_id=plain_id(standing.message_id),
            attempt=standing.attempt,
            root=standing.root,
            note="; ".join(
                dict.fromkeys(map(str, held.get(standing.root) or _before_an_attempt(spout, standing, clock)))
            ),
        )
        for spout, standing in found
    ]


def _standings(spout: SpoutMachine, message: str, _: Now, __: Outbox) -> list[MessageStatus]:
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


def _before_an_attempt(spout: SpoutMachine, standing: MessageStatus, clock: Clock) -> list[Hold]:
    """What holds a message that is not in flight."""
    if standing.outcome is Outcome.OPEN:
        return []
    if standing.due_s is None:
        return [Hold("source", spout.task.component)]
    until_s = standing.due_s - clock.monotonic() + clock.wall()
    return [Hold("retry", spout.task.component, until_s=until_s, attempt=standing.attempt + 1)]


def _held(assembly: Assembly, roots: Iterable[int], clock: Clock) -> dict[int, list[Hold]]:
    """What holds each of these attempts, which are in flight."""
    pairs = [(root, executor) for root in roots for executor in assembly.executors]
    asked: list[_Asked[Hold]] = [
        (executor.submit(partial(_held_at, executor, root)), partial(executor.in_call, root))
        for root, executor in pairs
    ]
    held: dict[int, list[Hold]] = {}
    for (root, _), holds in zip(pairs, _results(asked, clock), strict=True):
        held.setdefault(root, []).extend(holds)
    return held


def _held_at(executor: Executor, root: int, now: Now, _: Outbox) -> list[Hold]:
    return executor.holds(root, now)


def _results(asked: Sequence[_Asked[T]], clock: Clock) -> list[list[T]]:
    """The answers, for all of which together `ANSWER_S` is waited.

    Another one is told for an executor that ends, or is in a call that takes long.
    """
    until_s = clock.monotonic() + ANSWER_S
    found = []
    for answer, otherwise in asked:
        try:
            found.append(answer.result(max(0.0, until_s - clock.monotonic())))
        except (CancelledError, StillWaiting):
            answer.cancel()
            found.append(otherwise())
    return found
