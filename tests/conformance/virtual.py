"""The state machines of a topology on virtual time, as a runtime of the conformance suite."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tasks.driving import Driver
from tupletree import Topology
from tupletree.config import Options
from tupletree.data.payloads import to_jsonable
from tupletree.tasks.mail import Finished
from tupletree.tasks.outbox import AsyncCall
from tupletree.testing.conformance import Ended, RuntimeUnderTest


class VirtualDriver(Driver):
    """Every task has a spout or sink of its own, and async calls end at once."""

    def _instance(self, component: str) -> Any:
        return copy.deepcopy(super()._instance(component))

    def carry_out(self) -> None:
        calls, self.out.calls = self.out.calls, []
        super().carry_out()
        self.queue += [(task, asyncio.run(self._ended(number, call))) for task, number, call in calls]

    def stop(self) -> None:
        super().stop()
        for _, _, call in self.out.endings:
            asyncio.run(self._ended(0, call))

    @staticmethod
    async def _ended(number: int, call: AsyncCall) -> Finished:
        try:
            return Finished(number, await call())
        except Exception as error:  # noqa: BLE001 - the machine is to judge it
            return Finished(number, [], error)


class VirtualRuntime(RuntimeUnderTest):
    name = "virtual"

    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        return self._finish(VirtualDriver(topology, options))

    def run_from_inactive(
        self, topology: Topology, options: Options, state_dir: Path, while_inactive: Callable[[], None]
    ) -> Ended:
        driver = VirtualDriver(topology, options, active=False)
        driver.settle()
        while_inactive()
        for spout in driver.spouts:
            spout.resume()
        return self._finish(driver)

    @staticmethod
    def _finish(driver: Driver) -> Ended:
        driver.run()
        driver.stop()
        counters = [spout.pending.counters for spout in driver.spouts]
        return Ended(
            emitted=sum(one.emitted for one in counters),
            acked=sum(one.acked for one in counters),
            failed=sum(one.failed for one in counters),
            retried=sum(one.retried for one in counters),
            dead=sum(one.dead for one in counters),
            open=sum(spout.open_count for spout in driver.spouts),
            letters=[
                one.letter(driver.spec.name, to_jsonable(one.value), type(one.value).__qualname__)
                for one in driver.died
            ],
        )
