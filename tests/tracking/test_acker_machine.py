"""The acker against a model that knows every tuple: whatever the network does, no verdict is early, lost or doubled."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tupletree.tracking.acker import Acker, AckerVerdicts, Delta, Opening, TreeFailure
from tupletree.tracking.outcomes import Failure, FailureKind
from tupletree.tracking.tree import draw_edges, xor_all

TIMEOUT_S = 12.0
PERIOD_S = 6.0
FAILURE = Failure(kind=FailureKind.ERROR)


@dataclass
class Tree:
    """What is true of one root."""

    spout_task: int
    emitted_s: float
    clock_s: float  # when its timeout last started
    living: set[int] = field(default_factory=set)  # edges of tuples that are not processed
    on_the_way: int = 0  # messages about this root that were sent and have not arrived
    opened: bool = False
    failed: bool = False  # a failure arrived
    perfect: bool = True  # no message was lost, doubled, or so late that memory may have faded
    verdicts: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.opened and not self.living and not self.on_the_way


@dataclass
class Tuple:
    """One frame that waits to be processed."""

    edge: int
    roots: list[int]


class AckerMachine(RuleBasedStateMachine):
    """Spouts and bolts on one side, an unreliable network, the acker on the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.acker = Acker(timeout_s=TIMEOUT_S)
        self.trees: dict[int, Tree] = {}
        self.frames: list[Tuple] = []
        self.network: list[Opening | Delta | TreeFailure] = []
        self.first_arrival_s: dict[int, float] = {}

    @initialize(seed=st.integers(0, 2**32), reliable=st.booleans())
    def prepare(self, seed: int, reliable: bool) -> None:
        self.random = random.Random(seed)
        self.reliable = reliable
        for copies in range(4):
            self.emit(3, copies, 1)

    # --- the topology ---

    @rule(count=st.integers(1, 4), copies=st.integers(0, 3), spout_task=st.integers(1, 2))
    def emit(self, count: int, copies: int, spout_task: int) -> None:
        roots = [self.random.getrandbits(64) for _ in range(count)]
        edges = draw_edges(copies, self.random.getrandbits)
        for root in roots:
            self.trees[root] = Tree(spout_task, self.now_s, self.now_s, set(edges), on_the_way=1)
        self.frames.extend(Tuple(edge, roots) for edge in edges)
        self.network.append((spout_task, xor_all(edges), roots, self.now_s))

    @rule(children=st.integers(0, 3), split=st.booleans(), which=st.integers(0))
    def process(self, children: int, split: bool, which: int) -> None:
        """A bolt acks a frame; its children go on with all roots, or with parts of them."""
        if not self.frames:
            return
        frame = self.frames.pop(which % len(self.frames))
        middle = len(frame.roots) // 2
        for roots in [frame.roots[:middle], frame.roots[middle:]] if split and middle else [frame.roots]:
            edges = draw_edges(children, self.random.getrandbits)
            self.frames.extend(Tuple(edge, roots) for edge in edges)
            self.ack(frame.edge, edges, roots)

    @rule(which=st.integers(0), other=st.integers(0))
    def join(self, which: int, other: int) -> None:
        """A bolt acks two frames with one child anchored to both: one edge, also for roots that are in both."""
        if len(self.frames) < 2:
            return
        first = self.frames.pop(which % len(self.frames))
        second = self.frames.pop(other % len(self.frames))
        (edge,) = draw_edges(1, self.random.getrandbits)
        self.frames.append(Tuple(edge, list(dict.fromkeys([*first.roots, *second.roots]))))
        self.ack(first.edge, [edge], first.roots)
        both = [root for root in second.roots if root in first.roots]
        self.ack(second.edge, [], both)
        self.ack(second.edge, [edge], [root for root in second.roots if root not in both])

    def ack(self, edge: int, children: list[int], roots: list[int]) -> None:
        if not roots:
            return
        for root in roots:
            tree = self.trees[root]
            tree.living.discard(edge)
            tree.living.update(children)
            tree.on_the_way += 1
        self.network.append((edge ^ xor_all(children), roots))

    @rule(which=st.integers(0), member=st.integers(0))
    def fail(self, which: int, member: int) -> None:
        """A bolt fails one root of a frame; the frame goes on with the others."""
        if not self.frames:
            return
        frame = self.frames[which % len(self.frames)]
        root = frame.roots[member % len(frame.roots)]
        self.network.append((root, FAILURE))

    @rule(which=st.integers(0))
    def extend(self, which: int) -> None:
        if not self.trees:
            return
        root = list(self.trees)[which % len(self.trees)]
        tree = self.trees[root]
        if self.acker.extend(root, self.now_s) and not tree.verdicts:
            tree.clock_s = self.now_s
            self.first_arrival_s.setdefault(root, self.now_s)

    # --- the network ---

    @rule(size=st.integers(1, 3))
    def finish(self, size: int) -> None:
        """Bolts ack all that lives, and all that is on its way arrives."""
        for frame in self.frames:
            self.ack(frame.edge, [], frame.roots)
        self.frames.clear()
        while self.network:
            self.deliver(size, double=False)

    @rule(count=st.integers(1, 6), double=st.booleans())
    def deliver(self, count: int, double: bool) -> None:
        """Some messages arrive in any order and as one batch; a doubled one will come again."""
        self.random.shuffle(self.network)
        batch, self.network = self.network[:count], self.network[count:]
        openings: list[Opening] = []
        deltas: list[Delta] = []
        failures: list[TreeFailure] = []
        for message in batch:
            if len(message) == 4:
                openings.append(message)
                self.note(message[2], opened=True)
            elif isinstance(message[1], Failure):
                failures.append((message[0], message[1]))
                self.note([message[0]], failed=True)
            else:
                deltas.append((message[0], message[1]))
                self.note(message[1])
                if double and not self.reliable:
                    self.network.append(message)
                    for root in message[1]:
                        self.trees[root].on_the_way += 1
                        self.trees[root].perfect = False
        self.check(self.acker.apply(openings, deltas, failures, self.now_s))

    def note(self, roots: list[int], *, opened: bool = False, failed: bool = False) -> None:
        for root in roots:
            tree = self.trees[root]
            first_s = self.first_arrival_s.setdefault(root, self.now_s)
            if self.now_s - first_s >= TIMEOUT_S:
                tree.perfect = False
            tree.opened |= opened
            tree.failed |= failed
            tree.on_the_way -= not failed

    @rule()
    def lose(self) -> None:
        if self.network and not self.reliable:
            message = self.network.pop(self.random.randrange(len(self.network)))
            if len(message) == 4:
                lost = message[2]
            elif isinstance(message[1], Failure):
                lost = [message[0]]
            else:
                lost = message[1]
            for root in lost:
                self.trees[root].perfect = False

    @rule(seconds=st.integers(0, 9))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(seconds=st.integers(0, 9))
    def rotate(self, seconds: int = 0) -> None:
        self.now_s += seconds
        for spout_task, roots in self.acker.rotate(self.now_s):
            for root in roots:
                tree = self.trees[root]
                assert tree.spout_task == spout_task
                assert tree.opened
                assert self.now_s - tree.clock_s >= TIMEOUT_S, "never before T"
                tree.verdicts.append("expired")
        for tree in self.trees.values():
            if tree.opened and not tree.verdicts:
                assert self.now_s - tree.clock_s < TIMEOUT_S + PERIOD_S, "at most one rotation later"

    # --- the judge ---

    def check(self, verdicts: AckerVerdicts) -> None:
        for spout_task, roots in verdicts.completed:
            for root in roots:
                tree = self.trees[root]
                assert tree.spout_task == spout_task
                assert tree.opened, "only an opened tree completes"
                assert not tree.living, "never an early ack"
                assert not (tree.perfect and (tree.on_the_way or tree.failed))
                tree.verdicts.append("completed")
        for spout_task, root, _ in verdicts.failed:
            tree = self.trees[root]
            assert tree.spout_task == spout_task
            assert tree.opened
            assert tree.failed
            tree.verdicts.append("failed")

    @invariant()
    def every_verdict_is_given_once_and_at_once(self) -> None:
        for tree in self.trees.values():
            assert len(tree.verdicts) <= 1
            if tree.perfect and tree.opened and (tree.finished or tree.failed):
                assert tree.verdicts
        judged = sum(1 for tree in self.trees.values() if tree.opened and not tree.verdicts)
        assert self.acker.open_count == judged

    def teardown(self) -> None:
        for _ in range(12):
            self.rotate(6)
        assert self.acker.size == 0
        assert all(len(tree.verdicts) == tree.opened for tree in self.trees.values())
        counters = self.acker.counters
        assert counters.completed + counters.failed + counters.expired == sum(
            tree.opened for tree in self.trees.values()
        )


TestAcker = AckerMachine.TestCase
TestAcker.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
