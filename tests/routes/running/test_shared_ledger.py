"""Pipelines that share a ledger and have queues of their own: none touches what is for the other."""

from __future__ import annotations

from pathlib import Path

from tests.routes.running.test_pipelines import HANG_S, route
from tupletree.routes import PipelineSpec
from tupletree.routes.document.spec import LineageSpec
from tupletree.routes.ledger import Ledger, NewMessage
from tupletree.routes.payloads import encode
from tupletree.routes.pipeline import Pipeline


def test_what_waits_for_one_pipeline_is_neither_published_nor_told_by_the_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    mine, theirs = (
        Pipeline(
            PipelineSpec(name, {name: route(name)}, ledger=url, lineage=LineageSpec(level="off")), home=tmp_path / name
        )
        for name in ("mine", "theirs")
    )
    ledger = Ledger.open(url)
    execution = ledger.start(theirs.run_spec(key="").rules(), NewMessage("q.theirs", encode({})))
    told: list[str] = []
    with mine.open():
        assert len(ledger.outbox()) == 1, "it is for a queue of the other pipeline's broker"
    with theirs.run() as run:
        assert run.execution(execution).wait(HANG_S).state == "completed"
    with mine.open() as run:
        run.on_completed(lambda one: told.append(one.execution))
        assert told == []
    with theirs.open() as run:
        run.on_completed(lambda one: told.append(one.execution))
        assert told == [execution]
    ledger.close()


def test_pipelines_whose_queues_have_the_same_names_do_not_take_each_other_s_messages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    mine, theirs = (
        Pipeline(
            PipelineSpec(name, {"r": route("r")}, ledger=url, lineage=LineageSpec(level="off")), home=tmp_path / name
        )
        for name in ("mine", "theirs")
    )
    ledger = Ledger.open(url)
    execution = ledger.start(theirs.run_spec(key="").rules(), NewMessage("q.r", encode({})))
    with mine.run() as run:
        mine_too = run.execute({}).wait(HANG_S)
        assert (mine_too.state, mine_too.total) == ("completed", 1)
        assert [row.id for row in ledger.outbox()] == [ledger.execution(execution).init]  # type: ignore[union-attr]
    with theirs.run() as run:
        ended = run.execution(execution).wait(HANG_S)
        assert (ended.state, ended.total, ended.pipeline) == ("completed", 1, "theirs")
    ledger.close()
