"""Random pipelines give the same ledger on both runtimes: messages, outcomes, attempts, reasons and parents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.routes.running.pipelines import Batch, Config, adapter
from tests.routes.running.test_pipelines import RUNTIMES, pipeline, route
from tupletree.errors import PermanentError
from tupletree.routes import Adapter, AdapterResult, Emitted, Pipeline, PipelineContext, RouteSpec
from tupletree.routes.adapters.conditions import Condition
from tupletree.routes.document.spec import AdapterSpec

SEEDS = 8
HANG_S = 60.0


class Fateful(Adapter[Config]):
    """What becomes of a message is derived from its number and the adapter's name: the same on every runtime."""

    async def process(self, context: PipelineContext) -> AdapterResult | None:
        number = context.message.payload["number"]
        draw = Random(f"{self.config.say} {number}")
        fate = draw.choice(["pass"] * 6 + ["filter", "flaky", "dead", "permanent", "split", "emit", "unrouted"])
        message = context.message.with_payload({"number": number * 31 % 1009})
        match fate:
            case "filter":
                return None
            case "flaky" if context.attempt == 1:
                raise ValueError(f"{number} fails at first")
            case "dead":
                raise ValueError(f"{number} fails always")
            case "permanent":
                raise PermanentError(f"{number} cannot be")
            case "unrouted":
                return AdapterResult(message, continue_pipeline=False, unrouted=True, reason="no queue takes it")
            case "split" if context.route != "last":
                return AdapterResult(None, [Emitted({"number": number + 1 + one}) for one in range(draw.randint(1, 4))])
            case "emit" if context.route != "last":
                return AdapterResult(message, [Emitted({"number": number + 7})])
        return AdapterResult(message)


class Singly(Batch):
    """A batch whose members go on one by one, so that it does not matter who was in it with whom."""

    max_age_s = 0.05

    def process_batch(self, contexts: Any) -> Any:
        return [
            AdapterResult(one.message.with_payload({"number": one.message.payload["number"] + 1})) for one in contexts
        ]


def random_pipeline(seed: int, home: Path) -> Pipeline:
    """Two to four routes, each of which sends on to later ones, and a last one that sends nowhere."""
    draw = Random(seed)
    names = [f"r{number}" for number in range(draw.randint(2, 4))]
    routes: list[RouteSpec] = []
    for place, name in enumerate(names):
        later = [f"q.{other}" for other in names[place + 1 :]] + ["q.last"]
        out = tuple(draw.sample(later, draw.randint(1, min(2, len(later)))))
        routes.append(route(name, *adapters(draw, name), out=out, at_once=draw.choice([1, 3, 16])))
    routes.append(route("last", adapter(Fateful, say="last")))
    return pipeline(home, *routes)


def adapters(draw: Random, name: str) -> list[AdapterSpec]:
    found = []
    for number in range(draw.randint(0, 3)):
        say = f"{name}-{number}"
        odd = Condition(field="payload.number", operator="gt", value=500) if draw.random() < 0.3 else None
        kind: type[Adapter[Any]] = Singly if draw.random() < 0.3 else Fateful
        found.append(adapter(kind, say, odd, size=draw.choice([1, 2, 5])))
    return found


def ledger_of(p: Pipeline, start: Any) -> Counter[Any]:
    """All messages of five executions, by what they are and not by when."""
    with start(p) as run:
        begun = [run.execute({"number": number}, route="r0", execution=f"e{number}") for number in range(5)]
        found: Counter[Any] = Counter()
        for one in begun:
            ended = one.wait(HANG_S)
            rows = run.services.ledger.messages(one.id, limit=10_000)
            assert (ended.open, ended.total) == (0, len(rows))
            for row in rows:
                account = run.services.ledger.message(row.id)
                assert account is not None
                where = (row.route, row.queue, row.state, row.failures, row.reason, row.error, row.adapter)
                found[one.id, ended.state, row.id, *where, *sorted(account.parents)] += 1
        return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_pipeline_gives_the_same_ledger_on_both_runtimes(tmp_path: Path, seed: int) -> None:
    local, spark = (
        ledger_of(random_pipeline(seed, tmp_path / str(number)), start) for number, start in enumerate(RUNTIMES)
    )
    assert local == spark
    assert len(local) == sum(local.values()), "no message twice"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SEEDS, 200))
def test_many_random_pipelines_do(tmp_path: Path, seed: int) -> None:
    test_a_random_pipeline_gives_the_same_ledger_on_both_runtimes(tmp_path, seed)


def test_the_pipelines_are_of_some_size(tmp_path: Path) -> None:
    counts = [sum(ledger_of(random_pipeline(seed, tmp_path / str(seed)), RUNTIMES[0]).values()) for seed in range(3)]
    assert sum(counts) > 30
