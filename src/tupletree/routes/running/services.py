"""What spouts and sink of a running pipeline share in one process: brokers, ledger, gates, and listeners.

Owns the connections, and the order of settling: the ledger first, then what is published, then the brokers. Refuses to
know topologies and event loops: its calls block, and any thread may make them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from tupletree.errors import ConnectorError
from tupletree.queues import Broker, Delivery, Failure, Letter, connect
from tupletree.queues.sqlite import SqliteBroker
from tupletree.routes.document.spec import PipelineSpec, RouteSpec
from tupletree.routes.ledger.arriving import arrivals_of, own_headers
from tupletree.routes.ledger.ledger import Ledger
from tupletree.routes.ledger.values import Completed, LedgerRules, NewMessage, SettleEffects, ToDeadLetter
from tupletree.routes.lineage import tell_completed
from tupletree.routes.messages import Settlement, Standing, Work
from tupletree.routes.running.gates import Gates
from tupletree.routes.running.outgoing import Outgoing
from tupletree.texts import counted

PAUSED_DELAY_S = 5.0
"""How long a message of a paused execution is given back for."""

TRACE_HEADER = "traceparent"

logger = logging.getLogger("tupletree.routes")


@dataclass(frozen=True)
class RunSpec:
    """A run of a pipeline, as all its parts know it. It can be sent to another process.

    Attributes:
        spec: the pipeline.
        key: names the run within a process: its parts share `Services` by it.
        queue_file: URL of the embedded queue.
        ledger: URL of the ledger's database; that of the queue file: one transaction settles all.
        lease_limit: see `Gates`.
        only: routes that are run here; empty: all.
    """

    spec: PipelineSpec
    key: str
    queue_file: str
    ledger: str
    lease_limit: int | None = None
    only: tuple[str, ...] = ()

    @property
    def routes(self) -> Sequence[RouteSpec]:
        """The routes that are run here."""
        return [route for name, route in self.spec.routes.items() if not self.only or name in self.only]

    def url_of(self, queue: str) -> str:
        """The URL of the broker that has this queue."""
        return self.spec.queues.get(queue, self.queue_file)

    @property
    def queues(self) -> Sequence[str]:
        """All queues of the pipeline, each once."""
        named: dict[str, None] = {}
        for route in self.spec.routes.values():
            named |= dict.fromkeys(route.queues)
        if self.spec.on_complete:
            named[self.spec.on_complete] = None
        return [*named]

    def rules(self) -> LedgerRules:
        """What the ledger must know of the pipeline."""
        routes = self.spec.routes
        return LedgerRules(
            pipeline=self.spec.name,
            readers={route.inbound.queue: name for name, route in routes.items()},
            error_handling={name: route.error_handling for name, route in routes.items()},
            document=self.spec.source,
            versions={
                f"{name}/{adapter.name}": adapter.adapter.version
                for name, route in routes.items()
                for adapter in route.adapters
            },
            on_complete=self.spec.on_complete,
        )


class Services:
    """See the module. Made by `services`.

    Args:
        run: the run.
        monotonic_s: for gates.
    """

    def __init__(self, run: RunSpec, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.gates = Gates(run.spec, monotonic_s, run.lease_limit)
        self._brokers: dict[str, Broker] = {}
        self._lock = threading.Lock()
        self._published: dict[str, list[Callable[[], None]]] = {}
        self._noticing: list[Callable[[Completed], None]] = []
        self._telling: list[Callable[[Completed], None]] = []
        self._cancelled: dict[str, frozenset[str]] = {}  # route → those that were cancelled of what it works
        self.rules = run.rules()
        self.readers = self.rules.readers
        try:
            for queue in run.queues:
                self.broker(queue).declare(queue)
            self.ledger = self._open_ledger()
        except BaseException:
            self._brokers_to_close().close()
            raise
        self._outgoing = Outgoing(
            self.ledger, self, most=run.spec.limits.max_fanout_pending, pipeline=run.spec.name, queues=run.queues
        )

    def _open_ledger(self) -> Ledger:
        embedded = self.broker_at(self.run.queue_file)
        if self.run.ledger != self.run.queue_file or not isinstance(embedded, SqliteBroker):
            return Ledger.open(self.run.ledger)
        own = [queue for queue in self.run.queues if self.run.url_of(queue) == self.run.queue_file]
        return Ledger.within(embedded, queues=own)

    def broker(self, queue: str) -> Broker:
        """The broker that has a queue. One that is not in the document is looked for where it is by default."""
        return self.broker_at(self.url_of(queue))

    def url_of(self, queue: str) -> str:
        """The URL of the broker that has a queue."""
        return self.run.url_of(queue)

    def broker_at(self, url: str) -> Broker:
        """The broker at a URL."""
        with self._lock:
            broker = self._brokers.get(url)
            if broker is None:
                broker = self._brokers[url] = connect(url)
            return broker

    def close(self) -> None:
        """Close the connections. One that cannot be closed does not keep the others open."""
        with self._brokers_to_close():
            self._outgoing.close()
            self.ledger.close()

    def _brokers_to_close(self) -> ExitStack:
        closing = ExitStack()
        for broker in self._brokers.values():
            closing.callback(broker.close)
        return closing

    def note_queues(self) -> None:
        """Keep in the ledger which queues are read, for people who look without the document."""
        urls = {queue: self.url_of(queue) == self.run.queue_file for queue in self.run.queues}
        elsewhere = [queue for queue, is_here in urls.items() if not is_here]
        self.ledger.note(self.run.spec.name, {"readers": self.readers, "elsewhere": elsewhere})

    # --- listeners --------------------------------------------------------------------------------------------

    def listen(self, queue: str, listener: Callable[[], None]) -> None:
        """Call this, in any thread, when something was published to a queue by this process."""
        with self._lock:
            self._published.setdefault(queue, []).append(listener)

    def leave(self, queue: str, listener: Callable[[], None]) -> None:
        """Call it no longer."""
        with self._lock:
            if listener in self._published.get(queue, ()):
                self._published[queue].remove(listener)

    def notice(self, listener: Callable[[Completed], None]) -> None:
        """Call this, in any thread, with each execution that this process completes."""
        with self._lock:
            self._noticing.append(listener)

    def on_completed(self, listener: Callable[[Completed], None]) -> None:
        """Call this, in any thread, with executions whose completion was not told yet; each is told once.

        Those that were complete before, and whose process ended before it could tell, are told now.
        """
        with self._lock:
            self._telling.append(listener)
        while completed := self.ledger.completed_not_told(pipeline=self.run.spec.name):
            self.tell_completed(completed)

    def tell_left(self) -> None:
        """Tell those who wait for it what is complete by requests, such as `cancel` in another process."""
        with self._lock:
            telling = [*self._telling]
        if not telling:
            return
        for one in self.ledger.completed_not_told(pipeline=self.run.spec.name):
            if self.ledger.told(one.execution, one.run):
                for listener in telling:
                    _call(listener, one)

    def tell_published(self, queues: Iterable[str]) -> None:
        """Messages are in these queues: tell those who listen."""
        with self._lock:
            listeners = [one for queue in queues for one in self._published.get(queue, ())]
        for listener in listeners:
            listener()

    def start(self, message: NewMessage, execution: str = "") -> str:
        """Begin an execution; its message is published when this returns, unless its broker is away. Returns its id."""
        started = self.ledger.start(self.rules, message, on_complete=self.run.spec.on_complete, execution=execution)
        self.drain_outbox()
        self.tell_published([message.queue])
        return started

    # --- leasing ----------------------------------------------------------------------------------------------

    def lease(self, route: RouteSpec, limit: int) -> tuple[list[Work], dict[str, Delivery]]:
        """Lease messages of a route's queue, and find out which of them are to be worked.

        Returns:
            The work, and by message id the deliveries that it is of. Others were acked or given back.
        """
        queue = route.inbound.queue
        broker = self.broker(queue)
        lease_s = route.lease_seconds
        if self.ledger.leases(queue):
            deliveries, verdicts = self.ledger.lease(queue, route.name, self.rules, limit, lease_s=lease_s)
        else:
            deliveries = broker.lease(queue, limit, lease_s=lease_s)
            try:
                verdicts = self.ledger.arrive(arrivals_of(deliveries, queue, route.name), self.rules)
            except ConnectorError:
                failures = [Failure(handle=one.handle, reason="the ledger is away", counts=False) for one in deliveries]
                self._outgoing.tell(self.url_of(queue), partial(broker.fail, failures))
                raise
        works: list[Work] = []
        leased: dict[str, Delivery] = {}
        acks: list[str] = []
        back: list[Failure] = []
        letters: list[Letter] = []
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if verdict.action == "work":
                leased[verdict.id] = delivery
                standing = Standing(
                    id=verdict.id,
                    route=route.name,
                    queue=queue,
                    handle=delivery.handle,
                    executions=verdict.executions,
                    attempt=verdict.attempt,
                    replays=verdict.replays,
                )
                message = delivery.message
                works.append(
                    Work(
                        messages=[standing],
                        body=message.body,
                        headers=own_headers(message.headers),
                        parents=verdict.parents,
                        trace=_trace_of(message.headers),
                    )
                )
            elif verdict.action == "ack":
                acks.append(delivery.handle)
            elif verdict.action == "dead_letter":
                letters.append(Letter(handle=delivery.handle, reason=verdict.reason))
            else:
                back.append(
                    Failure(
                        handle=delivery.handle,
                        delay_s=PAUSED_DELAY_S if broker.capabilities.retry_delay else 0.0,
                        reason=verdict.reason,
                        counts=False,
                    )
                )
        # A broker that is away now hears of it later: raised here, it would lose what is to be worked.
        tell = partial(self._outgoing.tell, self.url_of(queue))
        if acks:
            tell(partial(broker.ack, acks))
        if back:
            tell(partial(broker.fail, back))
        if letters:
            tell(partial(self._dead_letter, broker, route, letters))
        return works, leased

    def is_above_high_water(self, route: RouteSpec, exempt: frozenset[str]) -> bool:
        """Whether an outbound queue of a route holds more ready messages than it may, or its broker is away.

        Args:
            route: the route.
            exempt: queues that lead back to the route: to wait for these would be to wait for itself.
        """
        if any(self._outgoing.is_away(queue) for queue in route.outbound):
            return True
        most = route.backpressure.high_water
        return any(self.broker(queue).depth(queue).ready > most for queue in route.outbound if queue not in exempt)

    def extend(self, route: RouteSpec, handles: Sequence[str]) -> None:
        """Let leases of a route's messages last."""
        broker = self.broker(route.inbound.queue)
        if handles and broker.capabilities.extend:
            broker.extend(handles, route.lease_seconds)

    # --- settling ---------------------------------------------------------------------------------------------

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle attempts: see docs/routes_ledger.md. May be repeated with the same settlements.

        A broker that is away is told, and gets its messages, later.

        Raises:
            ConnectorError: the ledger is not available.
        """
        effects = self.ledger.settle(settlements, self.rules)
        self._outgoing.publish(effects.publish)
        self.tell_published(dict.fromkeys(child.queue for one in settlements for child in one.children))
        for url, (acks, failures) in self._by_broker(effects).items():
            broker = self.broker_at(url)
            if acks:
                self._outgoing.tell(url, partial(broker.ack, acks))
            if failures:
                self._outgoing.tell(url, partial(broker.fail, failures))
        for letter in effects.letters:
            self._outgoing.tell(self.url_of(letter.standing.queue), partial(self._letter, letter))
        self.tell_completed(effects.completed)

    def _by_broker(self, effects: SettleEffects) -> dict[str, tuple[list[str], list[Failure]]]:
        """Handles to ack, and failures, by the URLs of their brokers."""
        found: dict[str, tuple[list[str], list[Failure]]] = defaultdict(lambda: ([], []))
        for standing in effects.acks:
            found[self.url_of(standing.queue)][0].append(standing.handle)
        for retry in effects.retries:
            url = self.url_of(retry.standing.queue)
            delay_s = retry.delay_s if self.broker_at(url).capabilities.retry_delay else 0.0
            failure = Failure(
                handle=retry.standing.handle, delay_s=delay_s, reason=retry.reason[:500], counts=retry.counts
            )
            found[url][1].append(failure)
        return found

    def drain_old_outbox(self) -> None:
        """Publish what stood in the outbox at the last call, too, and is still there; see `Outgoing.drain_old`.

        What is complete by requests of others is told, too.
        """
        self._outgoing.drain_old()
        self.tell_left()

    def drain_outbox(self) -> int:
        """Publish what an earlier process registered and did not publish; how many messages."""
        return self._outgoing.drain()

    def _letter(self, letter: ToDeadLetter) -> None:
        route = self.run.spec.routes[letter.standing.route]
        one = Letter(handle=letter.standing.handle, reason=letter.reason[:2000])
        self._dead_letter(self.broker(letter.standing.queue), route, [one])

    def _dead_letter(self, broker: Broker, route: RouteSpec, letters: Sequence[Letter]) -> None:
        """Make dead letters at the broker; one that keeps none has them acked: the ledger has their reasons."""
        if broker.capabilities.dead_letters:
            broker.dead_letter(letters)
        else:
            logger.warning(
                "route %s: %s keeps no dead letters, so %d are acked; the ledger has them",
                route.name,
                broker.where,
                len(letters),
            )
            broker.ack([one.handle for one in letters])

    def tell_completed(self, completed: Sequence[Completed]) -> None:
        """These executions are complete: it is logged, and listeners hear of it."""
        for one in completed:
            logger.info(
                "execution %s of %s is %s: %s, %d dead, %.1f s",
                one.execution,
                one.pipeline,
                one.state.replace("_", " "),
                counted(one.total, "message"),
                one.dead,
                one.ended_s - one.created_s,
            )
            tell_completed(one.pipeline, one.execution, one.state, one.ended_s)
            with self._lock:
                noticing, telling = [*self._noticing], [*self._telling]
            for listener in noticing:
                listener(one)
            if telling and self.ledger.told(one.execution, one.run):
                for listener in telling:
                    _call(listener, one)

    # --- cancelling -------------------------------------------------------------------------------------------

    def is_cancelled(self, execution: str) -> bool:
        """Whether an execution was cancelled, as far as this process knows."""
        return any(execution in of_route for of_route in [*self._cancelled.values()])

    def look_for_cancelled(self, route: str, executions: Iterable[str]) -> None:
        """Ask the ledger which of these, that a route works, were cancelled.

        Raises:
            ConnectorError: it cannot be asked now; what is known of them stays.
        """
        self._cancelled[route] = frozenset(self.ledger.cancelled([*dict.fromkeys(executions)]))


def _call(listener: Callable[[Completed], None], completed: Completed) -> None:
    """What a listener raises is its own: the messages of this settlement are settled."""
    try:
        listener(completed)
    except Exception:
        logger.exception("a listener raised when it was told that execution %s is complete", completed.execution)


def _trace_of(headers: Mapping[str, str]) -> str:
    """What a W3C `traceparent` (version-trace-span-flags) names."""
    header = headers.get(TRACE_HEADER)
    if not header:
        return ""
    parts = header.split("-")
    return f"{parts[1]}-{parts[2]}" if len(parts) == 4 else ""


class _Registry:
    """The services of this process's runs, each with the number of its users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Services, int]] = {}

    def acquire(self, run: RunSpec) -> Services:
        """The services of a run, made when they are first asked for. Release them."""
        with self._lock:
            found, users = self._open.get(run.key, (None, 0))
            if found is None:
                found = Services(run)
                try:
                    found.drain_outbox()
                except BaseException:
                    found.close()
                    raise
            self._open[run.key] = found, users + 1
            return found

    def release(self, run: RunSpec) -> None:
        """One user less; the last one closes them."""
        with self._lock:
            found, users = self._open[run.key]
            if users > 1:
                self._open[run.key] = found, users - 1
                return
            del self._open[run.key]
        found.close()

    def find(self, key: str) -> Services | None:
        """The services of a run, if this process has them. Without the lock: others may be connecting under it."""
        found = self._open.get(key)
        return found[0] if found is not None else None


services = _Registry()
