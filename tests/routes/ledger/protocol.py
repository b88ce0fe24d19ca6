"""The protocol of ledger and brokers under a seeded scheduler: two processes, crashes at any step, one pure oracle.

What a message comes to is a function of its id and attempt, so what must be in the ledger at the end is known without
running anything. A crash is an exception: the process loses what it had in hand, its leases end with time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.routes.ledger.ledgers import QUEUES, Bench, bench, child, rules
from tupletree.queues import Failure, Message
from tupletree.routes.ids import child_id, init_id, stranger_id
from tupletree.routes.ledger import Ledger, NewMessage, SettleEffects, ToDeadLetter
from tupletree.routes.ledger.stores import LedgerDatabase, QueueFileStore, Session
from tupletree.routes.messages import Settlement, Standing

__all__ = ["World"]

RULES = rules(on_complete="ended")
READ = ("a", "b", "c", "d")
CRASH = 0.08


class CrashedError(Exception):
    """The process ended here."""


def fate(message: str, route: str, attempt: int) -> str:
    """What an attempt comes to."""
    drawn = random.Random(f"{message}{route}{attempt}").random()
    if drawn < 0.15:
        return "failed"
    if drawn < 0.19:
        return "permanent"
    return "filtered" if drawn < 0.25 else "unrouted" if drawn < 0.29 else "done"


def fan_out(message: str, route: str) -> list[str]:
    """Queues of its children."""
    drawn = random.Random(f"{message}{route}")
    if route == "A":
        return ["b"] * drawn.randint(0, 3) + ["c"] * drawn.randint(0, 1)
    if route == "B":
        return ["c"] * drawn.randint(0, 2)
    return ["out"] * drawn.randint(0, 1)


def expected(message: str, queue: str, replays: Counter[str]) -> Iterator[tuple[str, str, int]]:
    """(id, state, failures) of a message and everything that comes of it, when all of it is settled.

    A message that was dead and was replayed comes to the same again.
    """
    route = RULES.readers.get(queue, "")
    if not route:
        yield message, "unrouted", 0
        return
    retries = RULES.error_handling[route]
    attempt = 1
    while (outcome := fate(message, route, attempt)) == "failed" and attempt <= retries.max_retries:
        attempt += 1
    if outcome in ("failed", "permanent"):
        yield message, "dead", attempt
        if letters := retries.dead_letter_queue:
            for life in range(replays[message] + 1):
                yield from expected(child_id((message,), route, -1 - life, attempt, letters), letters, replays)
        return
    yield message, outcome, attempt - 1
    if outcome == "done":
        for index, to in enumerate(fan_out(message, route)):
            yield from expected(child_id([message], route, 0, index, to), to, replays)


@dataclass
class Process:
    """What is lost when it ends."""

    ledger: Ledger
    in_hand: list[Standing] = field(default_factory=list)
    settled: list[Settlement] = field(default_factory=list)


class World:
    """Ledger, broker, and two processes.

    Args:
        kind: of the bench.
        folder: for its files.
        seed: of the schedule.
        merging: route B makes batches of what it has in hand.
    """

    def __init__(self, kind: str, folder: Path, seed: int, *, merging: bool = False) -> None:
        self.draw = random.Random(seed)
        self.bench = bench(kind, folder, rules=RULES)
        self.merging = merging
        self.crash_rate = CRASH
        self.begun: list[tuple[str, str, str]] = []  # execution ("" if others published it), message, queue
        self.cancelled: set[str] = set()
        self.content: dict[str, list[str]] = {}  # of what a batch made: whose
        self.told: Counter[tuple[str, int]] = Counter()
        self.processes = [Process(self._ledger(kind, folder)) for _ in range(2)]

    def _ledger(self, kind: str, folder: Path) -> Ledger:
        host = self.bench.host
        if kind == "queue file":
            store: Any = QueueFileStore(self.bench.broker)
            made = Ledger(store, queues=QUEUES, clock=lambda: host.wall_s)
        else:
            store = LedgerDatabase(f"sqlite:///{folder}/ledger.db")
            sa.event.listen(store._engine, "connect", lambda one, _: one.execute("PRAGMA synchronous = OFF").close())
            made = Ledger(store, clock=lambda: host.wall_s)
        write = store.write

        def crashing(work: Callable[[Session], Any]) -> Any:
            def within(session: Session) -> Any:
                result = work(session)
                self.maybe_crash()  # before the commit: all of it is undone
                return result

            result = write(within)
            self.maybe_crash()  # after the commit: nobody hears of it
            return result

        store.write = crashing
        return made

    def maybe_crash(self) -> None:
        """A crash point."""
        if self.draw.random() < self.crash_rate:
            raise CrashedError

    # The schedule.

    def run(self, steps: int) -> None:
        """Steps at random, each by one of the processes; then on to the end without crashes."""
        for _ in range(steps):
            process = self.draw.choice(self.processes)
            step = self.draw.choices(
                [self.start, self.publish, self.lease, self.settle, self.repeat, self.drain, self.wait, self.cancel,
                 self.replay, self.pause],
                [3, 2, 14, 10, 2, 3, 5, 0.7, 1.5, 1],
            )[0]  # fmt: skip
            try:
                step(process)
            except CrashedError:
                process.in_hand, process.settled = [], []
            self.check()
        self.crash_rate = 0.0
        for process in self.processes:
            process.in_hand = []
        for execution, _, _ in self.begun:
            self.bench.ledger.resume(execution)
        self.finish(self.processes[0])

    def finish(self, process: Process) -> None:
        """Work everything that is left."""
        for _ in range(60):
            self.drain(process)
            for queue in READ:
                while self.take(process, queue, 50):
                    pass
            while process.in_hand:
                self.settle(process)
            self.bench.host.advance(100)
            if not any(self.bench.broker.depth(queue).open for queue in READ) and not process.ledger.outbox():
                break
        self.drain(process)
        self.check()

    def start(self, process: Process) -> None:
        """An execution, whose id the caller chose, so that a start that crashed is repeated by another process."""
        execution = f"e{len(self.begun)}"
        self.begun.append((execution, init_id(execution), "a"))
        try:
            self._start(process, execution)
        except CrashedError:
            rate, self.crash_rate = self.crash_rate, 0.0
            self._start(self.processes[0], execution)
            self.crash_rate = rate
            raise

    def _start(self, process: Process, execution: str) -> None:
        process.ledger.start(RULES, NewMessage("a", b"1"), on_complete="ended", execution=execution)

    def publish(self, _: Process) -> None:
        """A message of somebody else."""
        name, queue = f"m{len(self.begun)}", self.draw.choice(["a", "b"])
        self.begun.append(("", stranger_id(queue, name), queue))
        self.bench.broker.publish(queue, [Message(id=name, body=b"1")])

    def lease(self, process: Process) -> None:
        """Take deliveries."""
        self.take(process, self.draw.choice(READ), self.draw.randint(1, 4))

    def take(self, process: Process, queue: str, limit: int) -> int:
        """As a spout: lease and ask the ledger, in one or one after the other, ack what is over. Crashes in between."""
        one = Bench(process.ledger, self.bench.broker, RULES, self.bench.host)
        if process.ledger.leases(queue) and self.draw.random() < 0.5:
            found, verdicts = process.ledger.lease(queue, RULES.readers[queue], RULES, limit, lease_s=30.0)
        else:
            found = one.lease(queue, limit)
            self.maybe_crash()
            verdicts = one.arrive(found, queue)
        for delivery, verdict in zip(found, verdicts, strict=True):
            self.maybe_crash()
            if verdict.action == "work":
                process.in_hand.append(one.standing(delivery, verdict, queue))
            elif verdict.action == "ack":
                self.bench.broker.ack([delivery.handle])
            elif verdict.action == "give_back":
                self.bench.broker.fail([Failure(handle=delivery.handle, delay_s=5.0, counts=False)])
            else:
                assert verdict.action == "dead_letter"
                effects = SettleEffects()
                standing = one.standing(delivery, verdict, queue)
                effects.letters.append(ToDeadLetter(standing, verdict.reason))
                one.perform(effects)
        return len(found)

    def settle(self, process: Process) -> None:
        """Work some of what is in hand, and settle it; crashes between any two steps of it."""
        self.draw.shuffle(process.in_hand)
        number = self.draw.randint(1, 4)
        chosen, process.in_hand = process.in_hand[:number], process.in_hand[number:]
        settlements = self.worked(chosen)
        process.settled += settlements
        self.apply(process, settlements)

    def worked(self, chosen: Sequence[Standing]) -> list[Settlement]:
        """What the adapters make of them."""
        made = []
        if self.merging and (batch := [one for one in chosen if one.route == "B"]):
            merged = child(batch, "c")
            self.content[merged.id] = [one.id for one in batch]
            made.append(Settlement(messages=batch, outcome="done", children=[merged]))
            chosen = [one for one in chosen if one.route != "B"]
        for one in chosen:
            if self.crash_rate and self.draw.random() < 0.05:
                made.append(Settlement(messages=[one], outcome="cancelled", reason="stop"))
                continue
            outcome = fate(one.id, one.route, one.attempt)
            if outcome in ("failed", "permanent"):
                made.append(Settlement(messages=[one], outcome="failed", reason="no", permanent=outcome == "permanent"))
                continue
            queues = fan_out(one.id, one.route) if outcome == "done" else []
            children = [child([one], queue, index) for index, queue in enumerate(queues)]
            made.append(Settlement(messages=[one], outcome=outcome, children=children))  # type: ignore[arg-type]  # of both
        return made

    def apply(self, process: Process, settlements: Sequence[Settlement]) -> None:
        """As the settling sink."""
        effects = process.ledger.settle(settlements, RULES)
        for completed in effects.completed:
            if process.ledger.told(completed.execution, completed.run):
                self.told[completed.execution, completed.run] += 1
        for queue, messages in effects.publish.items():
            for message in messages:
                self.maybe_crash()
                self.bench.broker.publish(queue, [message])
        process.ledger.published(effects.outbox)
        effects.publish = {}
        effects.outbox = []
        one = Bench(process.ledger, self.bench.broker, RULES, self.bench.host)
        self.maybe_crash()
        one.perform(SettleEffects(acks=effects.acks))
        self.maybe_crash()
        one.perform(SettleEffects(retries=effects.retries, letters=effects.letters))

    def repeat(self, process: Process) -> None:
        """The same settlements once more, as by a sink that is called again."""
        if process.settled:
            self.apply(process, self.draw.sample(process.settled, 1))

    def drain(self, process: Process) -> None:
        """As at a start; tells what nobody was told of."""
        for row in process.ledger.outbox():
            self.bench.broker.publish(row.queue, [row.message])
            self.maybe_crash()
            process.ledger.published([row.id])
        for completed in process.ledger.completed_not_told():
            if process.ledger.told(completed.execution, completed.run):
                self.told[completed.execution, completed.run] += 1

    def wait(self, _: Process) -> None:
        """Leases end, delays too."""
        self.bench.host.advance(self.draw.choice([5, 35, 35]))

    def cancel(self, process: Process) -> None:
        """Cancel an execution."""
        started = [execution for execution, _, _ in self.begun if execution]
        if started:
            execution = self.draw.choice(started)
            self.cancelled.add(execution)
            process.ledger.cancel(execution)

    def replay(self, process: Process) -> None:
        """Dead messages are tried again."""
        dead = [name for (name,) in self.rows("SELECT id FROM tupletree_route_messages WHERE state = 7 ORDER BY seq")]
        process.ledger.replay(self.draw.sample(dead, min(len(dead), 2)))

    def pause(self, process: Process) -> None:
        """Pause an execution, or let it go on."""
        started = [execution for execution, _, _ in self.begun if execution]
        if started:
            execution = self.draw.choice(started)
            _ = process.ledger.pause(execution) or process.ledger.resume(execution)

    # The oracle.

    def rows(self, statement: str) -> list[Any]:
        """Of the ledger's tables."""
        return self.bench.ledger._store.read(lambda session: session.fetch(statement, ()))

    def check(self) -> None:
        """What holds at every moment: counts are those of the messages, and complete means that nothing is open."""
        membership = """SELECT m.seq, m.state, m.route, m.execution FROM tupletree_route_messages m WHERE merged = 0
            UNION ALL SELECT m.seq, m.state, m.route, s.execution FROM tupletree_route_members s
            JOIN tupletree_route_messages m ON m.seq = s.message"""
        is_open: Counter[int] = Counter()
        total: Counter[int] = Counter()
        dead: Counter[int] = Counter()
        by_route: Counter[tuple[int, str, int]] = Counter()
        for _, state, route, execution in self.rows(membership):
            total[execution] += 1
            is_open[execution] += state < 4
            dead[execution] += state == 7
            by_route[execution, route, state] += 1
        for number, opened, all_of_it, letters, ended_s in self.rows(
            "SELECT number, open, total, dead, ended_s FROM tupletree_route_executions"
        ):
            assert (opened, all_of_it, letters) == (is_open[number], total[number], dead[number])
            assert (ended_s is not None) == (opened == 0)
        for execution, route, *numbers in self.rows("SELECT * FROM tupletree_route_counts"):
            assert numbers[:9] == [by_route[execution, route, state] for state in range(9)]

    def judge(self) -> None:
        """What holds at the end: every message is what its id says, and every completion was told once."""
        ledger = self.bench.ledger
        executions = ledger.executions(limit=10_000)
        assert [one for one in executions if not one.ended_s] == []
        ended = self.bench.broker.peek("ended", limit=10_000)
        told = Counter(one.message.headers["tupletree-execution"] for one in ended)
        assert told == {one.id: one.run for one in executions}, "each time that it was complete"
        # A process that ends just after it took it upon itself to tell has told nobody: never twice.
        assert set(self.told.values()) <= {1}
        assert ledger.completed_not_told() == []
        assert len(executions) == len(self.begun)
        assert all(self.bench.broker.depth(queue).open == 0 for queue in READ)
        self._judge_letters()
        if self.merging:
            self._judge_merged()
            return
        found = {
            one.id: (one.state, one.failures)
            for execution in executions
            for one in ledger.messages(execution.id, limit=10_000)
        }
        replays = Counter(dict(self.rows("SELECT id, replays FROM tupletree_route_messages")))
        wanted: dict[str, tuple[str, int]] = {}
        loose: set[str] = set()  # of cancelled executions: any part of it, and nothing else
        for execution, message, queue in self.begun:
            tree = {name: (state, failures) for name, state, failures in expected(message, queue, replays)}
            if execution in self.cancelled:
                loose.update(tree)
            else:
                wanted.update(tree)
        assert {name: one for name, one in found.items() if name not in loose} == wanted
        # In the queues of others, and among the dead letters, is what the ledger says, once each.
        published = Counter(one.message.id for one in self.bench.broker.peek("out", limit=100_000))
        assert set(published.values()) <= {1}
        unrouted = {row[0] for row in self.rows("SELECT id FROM tupletree_route_messages WHERE route = ''")}
        lost = {one.message.id for one in self.bench.broker.peek("lost", limit=100_000)}
        assert set(published) | lost == unrouted

    def _judge_merged(self) -> None:
        """Each message of B that is done is in one child, however often and by whom it was batched."""
        done = {row[0] for row in self.rows("SELECT id FROM tupletree_route_messages WHERE route = 'B' AND state = 4")}
        made = [row[0] for row in self.rows("SELECT id FROM tupletree_route_messages WHERE route = 'C'")]
        part = Counter(member for name in made for member in self.content.get(name, ()))
        assert part == dict.fromkeys(done, 1)

    def _judge_letters(self) -> None:
        """The brokers hold a dead letter for each message that is dead, and no other."""
        dead = self.rows(
            "SELECT CASE WHEN name = '' THEN id ELSE name END FROM tupletree_route_messages"
            " WHERE state = 7 AND route IN ('A', 'B')"
        )
        held = Counter(one.message.id for queue in "ab" for one in self.bench.broker.peek(queue, "dead", 10_000))
        assert set(held.values()) <= {1}
        replayed = [
            one.message.id
            for queue in "ab"
            for one in self.bench.broker.peek(queue, "dead", 10_000)
            if one.message.id not in {row[0] for row in dead}
        ]
        assert {row[0] for row in dead} <= set(held)
        lives = {row[0] for row in self.rows("SELECT id FROM tupletree_route_messages WHERE replays > 0")}
        lives |= {stranger for stranger in replayed if stranger.startswith("m")}
        assert {name.partition("~")[0] for name in replayed} <= lives, "of what was replayed its letter stays"

    def close(self) -> None:
        """Close everything."""
        for process in self.processes:
            process.ledger.close()
        self.bench.close()
