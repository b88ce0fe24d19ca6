"""The oracle: an independent account of every message in a simulation, and the rules that must never be broken.

It counts deliveries, not XORs: a frame that goes to a task is waited for until that task's bolt is done with it, for
each root on its own. From that it knows which trees are complete, independently of the ackers.

It holds the machines to this: no tree completes early, or late once an acker has been told everything; no tree expires
too early or too late; a verdict is about the attempt that is out; a message ends once, and its source is told once;
a message is acked only when its rows are written; a row is written only if a tree that it belongs to completed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tupletree.bolts.effects import Worked
from tupletree.config import Options
from tupletree.data.frames import Frame, Root, roots_of
from tupletree.ids import MessageId, hex_id
from tupletree.tasks.mail import Track, TreeVerdicts
from tupletree.testing.virtual.away import AWAY
from tupletree.tracking.facts import Fact
from tupletree.tracking.message_ids import message_key
from tupletree.tracking.outcomes import Failure, Outcome
from tupletree.tracking.records import Acked, Died, Emission, Released, RetryAt, SourceRetry


class Violation(Exception):  # noqa: N818 - the simulator makes an error of it, with the events that led here
    """A rule was broken."""


@dataclass(slots=True, eq=False)
class _Row:
    """A row that a sink took. It keeps a reference to its value, so that the object's identity is its name."""

    value: Any
    roots: tuple[int, ...]
    written: bool = False


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt.

    Attributes:
        waiting: deliveries (task, frame id) that are not done.
        sure: where something was repeated, the deliveries that must be done all the same.
        on_the_way: messages to an acker that mention it.
        opened_s: when its acker was told of it.
        told_failure: its acker was told that it failed.
        failed: a bolt failed it.
        lost: an acker may never be told all about it.
        verdict: completed, failed or expired, by its acker.
        since_s: when its timeout began.
    """

    root: int
    message: ExpectedMessage
    number: int
    emitted_s: float
    since_s: float
    waiting: set[tuple[int, int]] = field(default_factory=set)
    sure: set[tuple[int, int]] | None = None
    on_the_way: int = 0
    opened_s: float = math.inf
    told_failure: bool = False
    failed: bool = False
    lost: bool = False
    verdict: str = ""
    rows: list[_Row] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every tuple is done, and none failed."""
        open_now = self.waiting if self.sure is None else self.waiting & self.sure
        return not open_now and (not self.failed or self.sure is not None)

    def __str__(self) -> str:
        return f"attempt {self.number} (root {hex_id(self.root)}) of {self.message}"


@dataclass(slots=True, eq=False)
class ExpectedMessage:
    """One message. `outcome` is None while it is open; `told` is what its source was told last, `facts` the history."""

    spout_task: int
    message_id: MessageId
    root: int = 0
    attempts: int = 0
    outcome: Outcome | None = None
    told: Outcome | None = None
    facts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"message {self.message_id!r} of spout task {self.spout_task}"


class Oracle:
    """See the module docstring; a `Probe`, and more that the simulator tells it.

    Args:
        options: the timeout, and how many attempts a message has.

    Attributes:
        now_s: monotonic time, kept up to date by the simulator.
        attempts: by root.
        messages: by spout task and key.
        rows: sink task → rows that were written, in order.
        made: (sink task, number, row) of rows with a number in the order of making, as they were written.
    """

    def __init__(self, options: Options) -> None:
        self.now_s = 0.0
        self.attempts: dict[int, Attempt] = {}
        self.messages: dict[tuple[int, Hashable], ExpectedMessage] = {}
        self.rows: dict[int, list[Any]] = defaultdict(list)
        self.made: list[tuple[int, int, Any]] = []
        self._options = options
        self._taken: dict[int, dict[int, list[_Row]]] = defaultdict(dict)
        self._open: dict[int, dict[int, Attempt]] = defaultdict(dict)  # acker index → trees it has opened

    # --- messages ---------------------------------------------------------------------------------------------

    def launched(self, emissions: Iterable[Emission]) -> None:
        """Attempts go out: the first, or the next of a message that is open and has none out."""
        for one in emissions:
            assert one.message_id is not None
            key = one.spout_task, message_key(one.message_id)
            message = self.messages.setdefault(key, ExpectedMessage(one.spout_task, one.message_id))
            if message.outcome is not None:
                raise Violation(f"{message} went out again after it had ended: {message.outcome.value}")
            if message.root:
                raise Violation(f"{message} went out again while attempt {message.attempts} is out")
            if one.attempt != message.attempts + 1:
                raise Violation(f"{message} went out as attempt {one.attempt}, after {message.attempts}")
            if not one.root or one.root in self.attempts:
                raise Violation(f"{message} went out under a root that is taken: {hex_id(one.root)}")
            message.root, message.attempts = one.root, one.attempt
            self.attempts[one.root] = Attempt(one.root, message, one.attempt, self.now_s, self.now_s)

    def acked(self, roots: Sequence[int], acked: Sequence[Acked]) -> None:
        """Messages end well."""
        for one in acked:
            message = self._current(one.spout_task, one.message_id, "acked")
            attempt = self.attempts[message.root]
            if message.root not in roots or one.attempt != attempt.number:
                raise Violation(f"a verdict on another attempt acked {attempt}")
            if attempt.verdict != "completed":
                raise Violation(f"acked without word of its acker: {attempt}, {attempt.verdict or 'open'}")
            self._require_complete(attempt, "acked")
            unwritten = [row.value for row in attempt.rows if not row.written]
            if unwritten and attempt.sure is None:
                raise Violation(f"acked before its rows were written: {attempt}, {unwritten[:3]!r}")
            message.outcome, message.root = Outcome.ACKED, 0

    def failed(self, root: int, what: RetryAt | SourceRetry | Died) -> None:
        """An attempt ends badly."""
        message = self._current(what.spout_task, what.message_id, "failed")
        if message.root != root or what.root != root:
            raise Violation(f"a verdict on root {hex_id(root)} failed {self.attempts[message.root]}")
        if not isinstance(what, RetryAt) and AWAY in what.failure.error:
            raise Violation(f"an outage failed {self.attempts[message.root]}")
        message.root = 0
        if isinstance(what, Died):
            if what.attempts < self._options.max_attempts and not what.failure.permanent:
                raise Violation(f"{message} is dead after {what.attempts} attempts: {what.failure.error}")
            message.outcome = Outcome.DEAD

    def given_up(self, died: Sequence[Died]) -> None:
        """Their source will not emit them again."""
        for one in died:
            self.messages[one.spout_task, message_key(one.message_id)].outcome = Outcome.DEAD

    def released(self, released: Sequence[Released]) -> None:
        """The topology stops."""
        for one in released:
            message = self.messages[one.spout_task, message_key(one.message_id)]
            if message.outcome is not None:
                raise Violation(f"{message} was given back after it had ended: {message.outcome.value}")
            message.root, message.outcome = 0, Outcome.OPEN

    def told(self, spout_task: int, message_id: MessageId, failure: Failure | None) -> None:
        """A source is told of a message."""
        message = self.messages.get((spout_task, message_key(message_id)))
        if message is None:
            return  # it was never tracked, or is held back still
        if message.told is not None:
            raise Violation(f"the source heard of {message} again, after {message.told.value}")
        if failure is not None and message.outcome is None:
            return  # the source is to emit it again
        expected = Outcome.ACKED if failure is None else Outcome.DEAD
        if message.outcome is not expected and message.outcome is not Outcome.OPEN:
            was = "open" if message.outcome is None else message.outcome.value
            raise Violation(f"the source heard {expected.value} of {message}, which is {was}")
        message.told = expected

    def told_facts(self, facts: Iterable[Fact]) -> None:
        """The history is told of messages."""
        for fact in facts:
            attempt = self.attempts[fact.root]
            if fact.attempt != attempt.number:
                raise Violation(f"the history has {fact.what} of attempt {fact.attempt} for {attempt}")
            attempt.message.facts[fact.what] += 1

    def check_facts(self) -> None:
        """The history of each message that failed, or of all, says how it ended, and each attempt before that."""
        for message in self.messages.values():
            facts, outcome, failed = message.facts, message.outcome, message.attempts - 1
            is_told = failed > 0 or outcome is not Outcome.ACKED or self._options.history == "all"
            expected = {
                "acked": outcome is Outcome.ACKED and is_told,
                "dead": outcome is Outcome.DEAD,
                "open": outcome is Outcome.OPEN,
                "retried": failed,
            }
            # It may have failed once more where it waited for another attempt until the end.
            most = failed if outcome is Outcome.ACKED else failed + 1
            wrong = [what for what, count in expected.items() if facts[what] != count]
            if wrong or not failed <= facts["failed"] <= most:
                raise Violation(f"the history of {message} is {dict(facts)}, it had {message.attempts} attempts")

    def forget(self, spout_task: int) -> None:
        """A spout task died without a checkpoint: what its source was not told of will come again, as new messages."""
        for key, message in [*self.messages.items()]:
            if message.spout_task == spout_task and message.told is None:
                del self.messages[key]

    def _current(self, spout_task: int, message_id: MessageId, verdict: str) -> ExpectedMessage:
        message = self.messages[spout_task, message_key(message_id)]
        if message.outcome is not None or not message.root:
            was = "waiting for its next attempt" if message.outcome is None else message.outcome.value
            raise Violation(f"{message} was {verdict}, and is {was} already")
        return message

    # --- tuples -----------------------------------------------------------------------------------------------

    def sent(self, frames: Iterable[Frame]) -> None:
        """Frames leave a task."""
        for frame in frames:
            delivery = frame.task, frame.id
            for root in _distinct(frame.roots):
                attempt = self.attempts[root]
                if attempt.verdict == "completed" and attempt.sure is None:
                    raise Violation(f"a tuple was emitted into a tree that is complete: {attempt}")
                attempt.waiting.add(delivery)

    def cut(self, head: Frame, rest: Frame) -> None:
        """A frame is worked in two parts; if the second has an id of its own, it is another delivery."""
        if rest.id == head.id:
            return
        early = _distinct(head.roots)
        for root in _distinct(rest.roots):
            self.attempts[root].waiting.add((rest.task, rest.id))
            if root not in early:
                self.attempts[root].waiting.discard((rest.task, head.id))

    def worked(self, task: int, worked: Worked) -> None:
        """A bolt settled tuples."""
        for frame_id, roots in worked.done:
            for root in _distinct(roots):
                self.attempts[root].waiting.discard((task, frame_id))
        for root, failure in worked.failures.items():
            if AWAY in failure.error:
                raise Violation(f"an outage failed {self.attempts[root]}")
            self.attempts[root].failed = True

    def took(self, sink_task: int, frame: Frame) -> None:
        """A sink took rows."""
        taken = self._taken[sink_task]
        for entry, values in frame.segments():
            roots = roots_of(entry)
            for value in values:
                row = _Row(value, roots)
                taken.setdefault(id(value), []).append(row)
                for root in roots:
                    self.attempts[root].rows.append(row)
        for root in _distinct(frame.roots):
            self.attempts[root].waiting.discard((sink_task, frame.id))

    def written(self, sink_task: int, rows: Sequence[Any], made: Sequence[int] | None) -> None:
        """A sink wrote rows."""
        self.made += [(sink_task, number, row) for number, row in zip(made or (), rows)]
        taken = self._taken[sink_task]
        for value in rows:
            candidates = [row for row in taken.get(id(value), ()) if not row.written]
            if not candidates:
                raise Violation(f"sink task {sink_task} wrote a row that it does not hold: {value!r}")
            for row in candidates:
                if not row.roots or any(self._may_write(self.attempts[root]) for root in row.roots):
                    row.written = True
                    break
            else:
                whose = "; ".join(str(self.attempts[root]) for root in candidates[0].roots)
                raise Violation(f"sink task {sink_task} wrote {value!r}, but no tree of it is complete: {whose}")
        self.rows[sink_task] += rows

    def sink_died(self, sink_task: int) -> None:
        """The rows that it held are gone."""
        self._taken[sink_task].clear()

    def repeated(self, frame: Frame) -> None:
        """The frame arrives twice, so there may be tuples that no tree waits for; what is out now must be done."""
        for root in _distinct(frame.roots):
            attempt = self.attempts[root]
            attempt.lost = True
            if attempt.sure is None:
                attempt.sure = set(attempt.waiting)

    @staticmethod
    def _may_write(attempt: Attempt) -> bool:
        return attempt.verdict == "completed" and attempt.is_complete

    @staticmethod
    def _require_complete(attempt: Attempt, verdict: str) -> None:
        if not attempt.is_complete:
            why = "a bolt failed it" if attempt.failed else f"deliveries that are not done: {len(attempt.waiting)}"
            raise Violation(f"{verdict} early: {attempt}; {why}, such as {sorted(attempt.waiting)[:3]}")

    # --- ackers -----------------------------------------------------------------------------------------------

    def track_sent(self, track: Track) -> None:
        """A message to an acker is on its way."""
        for root in roots_in(track):
            self.attempts[root].on_the_way += 1

    def may_lose(self, track: Track) -> bool:
        """Whether it can cause nothing worse than a timeout: every tree that it names is open."""
        attempts = [self.attempts[root] for root in roots_in(track)]
        return not track.openings and all(one.message.root == one.root and not one.verdict for one in attempts)

    def track_lost(self, track: Track) -> None:
        """It will not arrive."""
        for root in roots_in(track):
            self.attempts[root].on_the_way -= 1
            self.attempts[root].lost = True

    def track_repeated(self, track: Track) -> None:
        """It will arrive twice."""
        for root in roots_in(track):
            attempt = self.attempts[root]
            attempt.lost = True
            attempt.on_the_way += 1
        for _, _, roots, _ in track.openings:
            for root in roots:
                if self.attempts[root].sure is None:
                    self.attempts[root].sure = set(self.attempts[root].waiting)

    def track_arrives(self, track: Track) -> None:
        """An acker is about to take it in."""
        for root in roots_in(track):
            self.attempts[root].on_the_way -= 1
        ackers = self._options.acker_tasks
        for _, _, roots, _ in track.openings:
            for root in roots:
                attempt = self.attempts[root]
                attempt.opened_s = self.now_s
                self._open[root % ackers][root] = attempt
        for root, _ in track.failures:
            self.attempts[root].told_failure = True
        for root in track.extended:
            self.attempts[root].since_s = self.now_s

    def track_arrived(self, track: Track) -> None:
        """An acker has taken it in: it must have decided what it can decide."""
        for root in roots_in(track):
            attempt = self.attempts[root]
            if attempt.verdict or attempt.lost or attempt.opened_s == math.inf or self._is_old(attempt):
                continue
            if attempt.told_failure:
                raise Violation(f"its acker heard that it failed, and did not say so: {attempt}")
            if not attempt.on_the_way and not attempt.waiting and not attempt.failed:
                raise Violation(f"its acker heard that all is done, and did not say so: {attempt}")

    def _is_old(self, attempt: Attempt) -> bool:
        """Whether what came before the opening may have been dropped by now."""
        timeout_s = self._options.message_timeout_s
        return timeout_s is not None and self.now_s - attempt.emitted_s >= timeout_s

    def decided(self, verdicts: TreeVerdicts) -> None:
        """An acker decides."""
        for roots in verdicts.completed:
            for root in roots:
                attempt = self.attempts[root]
                self._require_complete(attempt, "completed")
                self._close(attempt, "completed")
        for root, _ in verdicts.failed:
            self._close(self.attempts[root], "failed")
        for root in verdicts.expired:
            attempt = self.attempts[root]
            age_s = self.now_s - attempt.since_s
            timeout_s = self._options.message_timeout_s or 0.0
            came_late = attempt.opened_s - attempt.emitted_s >= timeout_s  # what renewed it may have been dropped
            if age_s < timeout_s - 1e-6 and not attempt.lost and not came_late:
                raise Violation(f"expired after {age_s:.3f} s: {attempt}")
            self._close(attempt, "expired")

    def rotated(self, acker_index: int) -> None:
        """An acker dropped what is too old: it must be gone."""
        timeout_s, buckets = self._options.message_timeout_s, self._options.timeout_buckets
        if timeout_s is None:
            return
        period_s = timeout_s / (buckets - 1)
        for attempt in self._open[acker_index].values():
            due_s = max(attempt.since_s + timeout_s, attempt.opened_s) + period_s
            if self.now_s > due_s + 1e-6 and not attempt.lost:
                raise Violation(f"not expired after {self.now_s - attempt.since_s:.3f} s: {attempt}")

    def acker_died(self, acker_index: int) -> None:
        """Its trees are lost."""
        self._open[acker_index].clear()
        for root, attempt in self.attempts.items():
            if root % self._options.acker_tasks == acker_index and not attempt.verdict:
                attempt.lost = True

    def _close(self, attempt: Attempt, verdict: str) -> None:
        if not attempt.verdict or attempt.lost:
            attempt.verdict = attempt.verdict or verdict
            self._open[attempt.root % self._options.acker_tasks].pop(attempt.root, None)
        else:
            raise Violation(f"{verdict} after it was {attempt.verdict}: {attempt}")


def roots_in(track: Track) -> set[int]:
    """Every root that a message to an acker mentions."""
    found = {root for _, _, roots, _ in track.openings for root in roots}
    found.update(root for _, roots in track.deltas for root in roots if root)
    found.update(root for root, _ in track.failures)
    return found.union(track.extended)


def _distinct(roots: Iterable[Root]) -> set[int]:
    return {one for entry in roots for one in roots_of(entry)}
