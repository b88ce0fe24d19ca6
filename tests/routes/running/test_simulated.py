"""Whole pipelines in the simulator, whose processes die at any call: each completion once, nothing lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.routes.running.pipelines import Batch, adapter
from tests.routes.running.simulated import FAULTS, World
from tests.routes.running.test_pipelines import QUICK, pipeline, route
from tests.routes.running.test_same_ledger import Fateful, adapters
from tupletree.queues import Message
from tupletree.routes import AdapterResult, Pipeline, PipelineContext, RouteSpec
from tupletree.routes.document.spec import LineageSpec
from tupletree.routes.ledger import NewMessage
from tupletree.routes.payloads import decode, encode
from tupletree.testing.simulator.faults import Faults

STEPS = 300
EXECUTIONS = 2


class Store(Batch):
    """One message of each batch, with its members; a batch with a bad one fails."""

    max_age_s = 0.3

    def process_batch(self, contexts: Sequence[PipelineContext]) -> AdapterResult:
        if any(one.message.payload["number"] % 7 == 0 for one in contexts):
            raise ValueError("a bad one")
        members = [one.message.id for one in contexts]
        return AdapterResult(contexts[0].message.with_payload({"members": members}))


def random_pipeline(seed: int, home: Path) -> Pipeline:
    """Two to four routes that fan out, one of which fails at times, and one that indexes in batches."""
    draw = Random(seed)
    names = [f"r{number}" for number in range(draw.randint(1, 3))]
    common: dict[str, Any] = {"lease_seconds": draw.choice([2.0, 20.0]), "error_handling": QUICK}
    routes: list[RouteSpec] = []
    for place, name in enumerate(names):
        later = [f"q.{other}" for other in names[place + 1 :]] + ["q.last"]
        out = tuple(draw.sample(later, draw.randint(1, min(2, len(later)))))
        at_once = draw.choice([1, 3, 16])
        routes.append(route(name, *adapters(draw, name), out=out, at_once=at_once, **common))
    routes.append(route("last", adapter(Fateful, say="last"), out=("q.index",), **common))
    routes.append(route("index", adapter(Store, size=draw.choice([2, 3, 5])), out=("store",), **common))
    apart = draw.random() < 0.5
    return pipeline(
        home,
        *routes,
        ledger=f"sqlite:///{home}/ledger.db" if apart else "",
        queues={"q.last": f"sqlite:///{home}/other.db"} if draw.random() < 0.3 else {},
        lineage=LineageSpec(level=draw.choice(["off", "full"])),
        on_complete="ended",
    )


def play(seed: int, home: Path, faults: Faults, *, processes: int = 1) -> World:
    """Begin executions, some by messages of others, and run until all have ended."""
    world = World(random_pipeline(seed, home), seed, faults, processes=processes)
    at = sorted(Random(seed).sample(range(STEPS // 3), EXECUTIONS + 1))

    def happens(_: World, step: int) -> None:
        if step not in at:
            return
        number = at.index(step)
        if number < EXECUTIONS:
            world.client.start(NewMessage("q.r0", encode({"number": number + seed})), f"e{number}")
        else:
            world.client.broker("q.r0").publish("q.r0", [Message(id="stranger", body=encode({"number": 99 + seed}))])

    world.run(STEPS if faults.any else at[-1] + 1, happens, is_over=is_over)
    return world


def is_over(world: World) -> bool:
    """Whether all executions have ended, all queues that are read are empty, and nobody is to be told of anything."""
    ledger = world.client.ledger
    executions = ledger.executions(limit=100)
    if len(executions) <= EXECUTIONS or not all(one.ended_s for one in executions):
        return False
    queues = [one.inbound.queue for one in world.pipeline.spec.routes.values()]
    return not ledger.outbox(1) and not any(world.client.broker(one).depth(one).open for one in queues)


def ledger_of(world: World) -> Counter[Any]:
    """What became of each message, but for those in the store: which these are depends on who was in a batch."""
    ledger = world.client.ledger
    found: Counter[Any] = Counter()
    for execution in ledger.executions(limit=100):
        for row in ledger.messages(execution.id, limit=10_000):
            account = ledger.message(row.id)
            assert account is not None
            if row.queue != "store":
                where = (row.route, row.queue, row.state, row.failures, row.reason, row.error, row.adapter)
                found[execution.id, row.id, *where, *sorted(account.parents)] += 1
    return found


def judge(world: World) -> Counter[Any]:
    """What holds at the end of every run. Gives `ledger_of`."""
    client = world.client
    rows = ledger_of(world)
    ended = Counter(
        one.message.headers["tupletree-execution"] for one in client.broker("ended").peek("ended", limit=99)
    )
    assert ended == dict.fromkeys([one.id for one in client.ledger.executions(limit=100)], 1)
    assert set(world.told.values()) <= {1}, "a process that dies before it calls its listener has told nobody"
    stored = client.broker("store").peek("store", limit=10_000)
    members = Counter(one for message in stored for one in decode(message.message.body)["members"])
    indexed = [key[1] for key in rows if key[2] == "index" and key[4] == "done"]
    assert members == dict.fromkeys(indexed, 1), "each message that was indexed is in the index once"
    for name, one in world.pipeline.spec.routes.items():
        queue = one.inbound.queue
        letters = sorted(held.message.id for held in client.broker(queue).peek(queue, "dead", 10_000))
        dead = sorted(key[1] for key in rows if key[2] == name and key[4] == "dead")
        assert [one for one in letters if one != "stranger"] == [one for one in dead if one in letters], name
        assert len(letters) == len(dead)
    for execution in client.ledger.executions(limit=100):
        found = client.ledger.messages(execution.id, limit=10_000)
        assert execution.total == len(found) == len({row.id for row in found})
    return rows


def check(seed: int, home: Path) -> Counter[str]:
    """Under faults a pipeline comes to what it comes to without; where its processes died."""
    calm = play(seed, home / "calm", Faults.none())
    wanted = judge(calm)
    calm.close()
    world = play(seed, home / "faults", FAULTS, processes=1 + seed % 2)
    try:
        assert judge(world) == wanted
        return world.crashes
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_random_pipeline_whose_processes_die_comes_to_what_it_comes_to_without(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_pipelines_do(tmp_path: Path, block: int) -> None:
    died: Counter[str] = Counter()
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        died += check(seed, tmp_path / str(seed))
    where = {point.partition(" ")[2] for point in died}
    assert where >= {f"Ledger.{call}" for call in ("lease", "arrive", "_finish", "settle", "published", "told")}
    assert where >= {f"SqliteBroker.{call}" for call in ("take", "publish", "ack", "fail", "dead_letter", "extend")}
