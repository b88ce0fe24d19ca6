"""Whole pipelines whose processes die while people replay dead messages, pause, resume and cancel executions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.routes.running.pipelines import adapter
from tests.routes.running.simulated import FAULTS, World
from tests.routes.running.test_pipelines import QUICK, pipeline, route
from tests.routes.running.test_same_ledger import Fateful
from tests.routes.running.test_simulated import Store, is_over
from tupletree.queues import Message
from tupletree.routes import Pipeline
from tupletree.routes.document.spec import ErrorHandling, LineageSpec
from tupletree.routes.ledger import NewMessage
from tupletree.routes.payloads import decode, encode

STEPS = 400
EXECUTIONS = 3


def mended_pipeline(seed: int, home: Path) -> Pipeline:
    """A route that fans out, one whose dead messages another route works, and an index of what comes through."""
    draw = Random(f"requests {seed}")
    common: dict[str, Any] = {"lease_seconds": draw.choice([2.0, 20.0])}
    mends = ErrorHandling(max_retries=0, dead_letter_queue="q.mend") if draw.random() < 0.7 else QUICK
    return pipeline(
        home,
        route("r0", adapter(Fateful, say="one"), out=("q.r1",), at_once=3, error_handling=QUICK, **common),
        route("r1", adapter(Fateful, say="two"), out=("q.index",), at_once=3, error_handling=mends, **common),
        route("mend", adapter(Fateful, say="mend"), out=("q.index",), error_handling=QUICK, **common),
        route("index", adapter(Store, size=3), out=("store",), at_once=6, error_handling=QUICK, **common),
        ledger=f"sqlite:///{home}/ledger.db" if draw.random() < 0.5 else "",
        queues={"q.index": f"sqlite:///{home}/other.db"} if draw.random() < 0.5 else {},
        lineage=LineageSpec(level="off"),
        on_complete="ended",
    )


def play(seed: int, home: Path) -> tuple[World, set[str]]:
    """Requests at random moments; all is resumed when the faults end. Gives what was cancelled, too."""
    world = World(mended_pipeline(seed, home), seed, FAULTS, processes=1 + seed % 2)
    draw = Random(f"moments {seed}")
    cancelled: set[str] = set()

    def happens(_: World, step: int) -> None:
        ledger = world.client.ledger
        if step < EXECUTIONS * 10 and step % 10 == 0:
            world.client.start(NewMessage("q.r0", encode({"number": step + seed})), f"e{step // 10}")
        if step == 5:
            world.client.broker("q.r0").publish("q.r0", [Message(id="stranger", body=encode({"number": seed}))])
        if step == STEPS:
            for one in ledger.executions(limit=100):
                ledger.resume(one.id)
        if step >= STEPS or draw.random() > 0.1:
            return
        executions = ledger.executions(limit=100)
        chosen = draw.choice(executions).id
        match draw.choice(["replay"] * 4 + ["pause", "resume", "resume"] + ["cancel"] * (step > STEPS - 100)):
            case "replay":
                dead = [row.id for row in ledger.messages(chosen, state="dead", limit=1000)]
                ledger.replay(draw.sample(dead, min(2, len(dead))))
                world.client.drain_outbox()
            case "pause":
                ledger.pause(chosen)
            case "resume":
                ledger.resume(chosen)
            case "cancel":
                if draw.random() < 0.2 and ledger.cancel(chosen):
                    cancelled.add(chosen)

    world.run(STEPS, happens, is_over=is_over)
    return world, cancelled


def check(seed: int, home: Path) -> int:
    """How many messages were replayed."""
    world, cancelled = play(seed, home)
    try:
        client = world.client
        executions = client.ledger.executions(limit=100)
        ended = Counter(
            one.message.headers["tupletree-execution"] for one in client.broker("ended").peek("ended", limit=999)
        )
        assert ended == {one.id: one.run for one in executions}, "each time that it was complete"
        assert set(world.told.values()) <= {1}
        rows = {row.id: row for one in executions for row in client.ledger.messages(one.id, limit=10_000)}
        for one in executions:
            found = client.ledger.messages(one.id, limit=10_000)
            assert (one.total, one.open) == (len(found), 0)
            assert one.dead == sum(row.state == "dead" for row in found)
            assert (one.state == "cancelled") == (one.id in cancelled)
        stored = client.broker("store").peek("store", limit=10_000)
        members = Counter(one for message in stored for one in decode(message.message.body)["members"])
        indexed = [row.id for row in rows.values() if (row.route, row.state) == ("index", "done")]
        assert members == dict.fromkeys(indexed, 1), "each message that was indexed is in the index once"
        died = [row for row in rows.values() if row.route == "r1" and row.state == "dead"]
        if client.run.spec.routes["r1"].error_handling.dead_letter_queue:
            accounts = [client.ledger.message(row.id) for row in rows.values() if row.route == "mend"]
            mended = Counter(parent for one in accounts if one is not None for parent in one.parents)
            assert mended.keys() >= {row.id for row in died}
            assert all(mended[row.id] == row.replays + 1 for row in died)
        return sum(row.replays for row in rows.values())
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(8))
def test_what_people_ask_while_processes_die_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    check(seed, tmp_path)


@pytest.mark.nightly
def test_in_two_hundred_runs_either(tmp_path: Path) -> None:
    replayed = sum(check(seed, tmp_path / str(seed)) for seed in range(100, 300))
    assert replayed > 100
