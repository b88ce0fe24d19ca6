"""The spout of a route: it leases messages from the route's queue, as many as the gates allow.

Owns which deliveries are out and their leases. Refuses to judge them: the ledger says which are to be worked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from tupletree.errors import ConnectorError
from tupletree.ids import MessageId
from tupletree.queues import Delivery
from tupletree.queues.access import shut_out_is_outage
from tupletree.routes.messages import Settlement, Work
from tupletree.routes.running.outcomes import delivered
from tupletree.routes.running.services import RunSpec, Services, services
from tupletree.topology.components import AsyncSpout, Emit, TaskContext
from tupletree.tracking.outcomes import Failure, FailureKind

IDLE_S = 0.05
"""How often an empty queue is looked at; what this process publishes is seen at once."""

FULL_S = 0.2
"""How often a route looks whether its outbound queues have room again."""

KEEP_PART = 1 / 3
"""Of a lease: how often it is extended, and cancelled executions are looked for."""

CANCEL_S = 1.0

OUTBOX_S = 2.0
"""How often the outbox is looked at for what others left."""

TELL_S = 60.0
"""What cannot be done for long is told so often."""

NO_ATTEMPT = frozenset({FailureKind.STOPPED, FailureKind.LOST})
"""What is no failure of the message: the run stopped, or lost track of it."""

logger = logging.getLogger("tupletree.routes")


# More than 12 attributes: one lease loop: what is leased, what is told, and the gates before it.
class QueueSpout(AsyncSpout[Work]):
    """Leases the messages of one route.

    Args:
        run: the run.
        route: name of the route.
    """

    def __init__(self, run: RunSpec, route: str) -> None:
        self._run = run
        self._route = run.spec.routes[route]
        self._exempt = run.spec.queues_in_cycles()[route]

    async def open(self, context: TaskContext) -> None:  # noqa: ARG002 - the contract's
        """Connect, and keep leases alive from now on."""
        self._services: Services = await asyncio.to_thread(services.acquire, self._run)
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_waking = False
        self._out: dict[str, Delivery] = {}  # message → the delivery that is worked
        self._again: dict[str, list[Work]] = {}  # message → deliveries that came while it was
        self._executions: dict[str, tuple[str, ...]] = {}
        self._works: dict[str, Work] = {}
        self._is_active = True
        self._has_reached = False
        self._services.gates.listen(self._route.name, self._awake)
        self._services.listen(self._route.inbound.queue, self._awake)
        self._keeper = self._loop.create_task(self._keep())

    async def close(self) -> None:
        """Give back what is out, and release the connections."""
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper
        self._services.gates.leave(self._route.name)
        self._services.leave(self._route.inbound.queue, self._awake)
        left, self._out = self._out, {}
        try:
            await self._give_back([work for message, work in self._works.items() if message in left])
            await self._give_back([work for works in self._again.values() for work in works])
        finally:
            for message in left:
                self._services.gates.release(self._route.name, message)
            await asyncio.to_thread(services.release, self._run)

    async def _give_back(self, works: Sequence[Work]) -> None:
        """What was not worked to its end, through no fault of its own: that is no attempt."""
        settlements = [Settlement(messages=work.messages, outcome="cancelled") for work in works]
        if settlements:
            await asyncio.to_thread(self._services.settle, settlements)

    def activate(self) -> None:
        self._is_active = True
        self._wake.set()

    def deactivate(self) -> None:
        self._is_active = False

    async def next(self) -> Sequence[Emit[Work]] | None:
        """Wait for messages; None once, when the broker has been reached. No slot is held while waiting."""
        gates, name = self._services.gates, self._route.name
        while True:
            self._wake.clear()
            pause_s = IDLE_S
            slots = gates.take(name) if self._is_active else 0
            if slots:
                works: list[Work] = []
                try:
                    found = await self._lease(slots)
                    if found is None:
                        pause_s = FULL_S
                    else:
                        works = found
                finally:
                    # Also when this is cancelled, or the broker is away.
                    gates.fill(name, slots, [work.messages[0].id for work in works])
                if works:
                    return [Emit(work, work.messages[0].id) for work in works]
                if not self._has_reached:
                    self._has_reached = True
                    return None
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)

    def _take(self, limit: int) -> tuple[list[Work], dict[str, Delivery]] | None:
        """In a thread, both in one: each way there and back waits for other threads. None: outbound queues are full."""
        with shut_out_is_outage(f"route {self._route.name}"):  # each has let the pipeline declare its queues
            if self._services.is_above_high_water(self._route, self._exempt):
                return None
            return self._services.lease(self._route, limit)

    async def _lease(self, limit: int) -> list[Work] | None:
        leasing = asyncio.ensure_future(asyncio.to_thread(self._take, limit))
        try:
            taken = await asyncio.shield(leasing)
        except asyncio.CancelledError:
            # The thread leases all the same; without this, what it gets would come back only when the leases end.
            try:
                if taken := await leasing:
                    await self._give_back(taken[0])
            except Exception as error:  # noqa: BLE001 - raised here, it would hide that this is cancelled
                logger.warning("route %s: a lease that was cancelled is not given back: %s", self._route.name, error)
            raise
        if taken is None:
            return None
        works, leased = taken
        new = []
        for work in works:
            message = work.messages[0].id
            if message in self._out:
                self._again.setdefault(message, []).append(work)
                continue  # its lease ended too early: the one that is worked counts
            self._out[message] = leased[message]
            self._works[message] = work
            new.append(work)
        return new

    async def ack(self, message_id: MessageId) -> None:
        """The sink has settled it."""
        message = str(message_id)
        self._out.pop(message, None)
        self._works.pop(message, None)
        self._services.gates.release(self._route.name, message)
        if message in self._again:
            await self._settle_again(message)

    async def _settle_again(self, message: str) -> None:
        """Deliveries that came while another one was worked: acked if that ended the message, else given back.

        The attempt may have failed: then the broker took no notice of the delivery whose lease had ended, and these
        are the only ones from which the message comes back.
        """
        await self._give_back(self._again.pop(message, []))

    async def fail(self, message_id: MessageId, failure: Failure) -> None:
        """No settlement came of it: the run stopped, or a worker died of it."""
        message = str(message_id)
        self._out.pop(message, None)
        work = self._works.pop(message, None)
        self._services.gates.release(self._route.name, message)
        if work is None:
            return
        if failure.kind in NO_ATTEMPT:
            await self._give_back([work])
            await self._settle_again(message)
            return
        settlement = Settlement(
            messages=delivered(work),
            outcome="failed",
            reason=failure.error or failure.kind.value,
            error=failure.error_type or failure.kind.name.title(),
            traceback=failure.traceback,
            permanent=True,  # the runtime has tried it as often as it does
            adapter=failure.component,
        )
        await asyncio.to_thread(self._services.settle, [settlement])
        await self._settle_again(message)

    def _awake(self) -> None:
        """In any thread. One wake of the loop serves all that call meanwhile: each costs a write to its pipe."""
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._is_waking = False  # before it is looked at what there is: who calls from now on wakes the loop again
        self._wake.set()

    async def _keep(self) -> None:
        """Extend leases, and ask the ledger, beside each other: a ledger that is away must not let leases end."""
        await asyncio.gather(self._keep_leases(), self._keep_asking())

    async def _keep_leases(self) -> None:
        """Extend the leases of what is out."""
        lease_s = self._route.lease_seconds
        extended_s, told_s = self._loop.time(), -TELL_S
        while True:
            await asyncio.sleep(min(CANCEL_S, lease_s * KEEP_PART))
            now_s = self._loop.time()
            if not self._out or now_s - extended_s < lease_s * KEEP_PART:
                continue
            try:
                handles = [one.handle for one in self._out.values()]
                await asyncio.to_thread(self._services.extend, self._route, handles)
                extended_s = now_s  # only if it went well: otherwise it is tried again at the next look
            except ConnectorError as error:
                if now_s - told_s >= TELL_S:
                    told_s = now_s
                    logger.warning("route %s: leases cannot be extended now: %s", self._route.name, error.what)
            except Exception:
                # Ended, it would let every lease of the route end.
                logger.exception("route %s: leases cannot be extended now", self._route.name)

    async def _keep_asking(self) -> None:
        """Look for cancelled executions, and for what others left in the outbox; tell the ledger what adapters hold."""
        drained_s = self._loop.time()
        drains = self._run.routes[0] is self._route  # one spout does it for all
        told_held: frozenset[str] = frozenset()
        told_s = -TELL_S
        while True:
            await asyncio.sleep(min(CANCEL_S, self._route.lease_seconds * KEEP_PART))
            try:
                if drains and self._loop.time() - drained_s >= OUTBOX_S:
                    drained_s = self._loop.time()
                    await asyncio.to_thread(self._services.drain_old_outbox)
                if not self._out:
                    continue
                executions = [one for work in self._works.values() for one in work.messages[0].executions]
                if executions:
                    await asyncio.to_thread(self._services.look_for_cancelled, self._route.name, executions)
                held = self._services.gates.held(self._route.name)
                if new := held - told_held:
                    await asyncio.to_thread(self._services.ledger.hold, sorted(new))  # for people who look
                told_held = held
            except ConnectorError as error:
                if self._loop.time() - told_s >= TELL_S:
                    told_s = self._loop.time()
                    logger.warning(
                        "route %s: the ledger cannot be asked for cancelled executions now: %s",
                        self._route.name,
                        error.what,
                    )
            except Exception:
                logger.exception("route %s: the ledger cannot be asked for cancelled executions", self._route.name)
