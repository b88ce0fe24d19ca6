"""Questions to lineage, each to every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.databases import need_postgres, postgres, query
from tests.routes.lineage.records import call, calls_of, ingest, write
from tupletree.errors import ConfigError
from tupletree.routes.lineage import Lineage, open_store
from tupletree.routes.messages import CallRecord

Written = Callable[[Sequence[CallRecord]], Lineage]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    need_postgres()
    with postgres() as running:
        yield running.url


@pytest.fixture(params=["sqlite", "postgresql", "parquet"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        url: str = request.getfixturevalue("server")
        query(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return url
    return f"sqlite:///{tmp_path}/lineage.db" if request.param == "sqlite" else f"parquet:{tmp_path}/lineage"


@pytest.fixture
def written(url: str) -> Iterator[Written]:
    opened: list[Lineage] = []

    def write_all(records: Sequence[CallRecord]) -> Lineage:
        assert write(url, records).written == len(records)
        opened.append(Lineage.open(url))
        return opened[-1]

    yield write_all
    for one in opened:
        one.close()


def test_the_tree_of_a_message_goes_up_to_its_roots_and_down_to_all_that_came_of_it(written: Written) -> None:
    tree = written(ingest()).tree("piece-2")
    assert tree.roots == ["doc"]
    assert {one.id: one.children for one in tree.messages.values()} == {
        "doc": ["piece-2"],  # its other piece is not on the way
        "piece-2": ["block"],
        "block": [],
    }
    assert tree.messages["block"].parents == ["piece-1", "piece-2"]  # all of them, also those that are not shown
    assert [(one.attempt, one.status) for one in tree.messages["piece-2"].calls] == [(1, "failed"), (2, "completed")]
    assert [one.adapter for one in tree.messages["doc"].calls] == ["read", "convert"]


def test_the_tree_of_an_execution_holds_every_message_once(written: Written) -> None:
    tree = written(ingest()).tree("e1")
    assert tree.is_execution
    assert tree.roots == ["doc"]
    assert {one.id: one.children for one in tree.messages.values()} == {
        "doc": ["piece-1", "piece-2"],
        "piece-1": ["block"],
        "piece-2": ["block"],
        "block": [],
    }


def test_a_batch_that_merges_two_executions_is_in_the_tree_of_each(written: Written) -> None:
    lineage = written(
        [
            *calls_of("a", "convert", "read", execution="e1"),
            *calls_of("b", "convert", "read", execution="e2"),
            *calls_of("ab", "index", "store", parents=["a", "b"], execution="e1", executions=["e1", "e2"]),
        ]
    )
    assert {"b", "ab"} == {*lineage.tree("e2").messages}
    assert {"a", "ab"} == {*lineage.tree("e1").messages}
    assert lineage.tree("ab").roots == ["a", "b"]


def test_a_message_with_very_many_children_shows_some_and_says_how_many_there_are(written: Written) -> None:
    records = [*calls_of("doc", "convert", "split")]
    records += [call(f"piece-{number:04d}", parents=["doc"], started_s=1010.0) for number in range(3_000)]
    tree = written(records).tree("doc", limit=10)
    assert len(tree.messages) == 11
    assert tree.messages["doc"].more_children == 2_990
    assert tree.messages["piece-0000"].more_children == 0


def test_an_id_that_nobody_knows_is_said_to_be_unknown(written: Written) -> None:
    lineage = written(ingest())
    for ask in (lineage.tree, lineage.failures, lineage.stats):
        with pytest.raises(ConfigError, match="knows no such message or execution"):
            ask("nothing")


def test_failures_are_those_of_all_of_an_execution_or_of_what_came_of_a_message(written: Written) -> None:
    lineage = written(
        [*ingest(), call("other", attempt=9, status="failed", error="late", execution="e2", started_s=2e3)]
    )
    assert [one.error for one in lineage.failures()] == ["late", "ValueError: no text"]
    assert [one.message for one in lineage.failures("e1")] == ["piece-2"]
    assert [one.message for one in lineage.failures("doc")] == ["piece-2"]
    assert lineage.failures("block") == []
    assert [one.message for one in lineage.failures(route="convert")] == ["other"]
    assert len(lineage.failures(limit=1)) == 1


def test_statistics_are_per_route_and_adapter(written: Written) -> None:
    records = [
        call(f"m{number}", started_s=1000.0 + number, ended_s=1000.0 + number + 0.001 * (number + 1))
        for number in range(100)
    ]
    records += [
        call("m1", route="a", adapter="filter", status="filtered", started_s=1099.0),
        call("m2", route="a", adapter="filter", status="skipped", started_s=1001.0),
        call("m3", route="a", adapter="filter", status="failed", started_s=1001.0),
        call("m3", route="a", adapter="store", position=1, status="pending", started_s=1001.0),
    ]
    first, pending, busy = written(records).stats()
    assert (first.route, first.adapter, first.calls, first.failed, first.filtered, first.skipped) == (
        *("a", "filter"),
        *(2, 1, 1, 1),
    )
    assert (pending.adapter, pending.calls, pending.p50_s) == ("store", 0, None)
    assert (busy.pipeline, busy.route, busy.adapter, busy.calls) == ("ingest", "convert", "read", 100)
    assert busy.p50_s == pytest.approx(0.050, rel=0.025)
    assert busy.p95_s == pytest.approx(0.095, rel=0.025)
    assert busy.rate_per_s == pytest.approx(100 / 99)


def test_statistics_of_a_message_or_an_execution_count_only_what_belongs_to_it(written: Written) -> None:
    lineage = written(ingest())
    assert {(one.route, one.adapter): one.calls for one in lineage.stats("piece-1")} == {
        ("segment", "clean"): 1,
        ("index", "store"): 1,
    }
    assert sum(one.calls for one in lineage.stats("e1")) == 6
    assert sum(one.calls for one in lineage.stats()) == 7
    assert sum(one.calls for one in lineage.stats(since_s=1020.0)) == 2


def test_a_record_that_comes_again_changes_nothing_and_a_pending_call_is_replaced_by_its_end(url: str) -> None:
    for records in (
        [call("doc", status="pending", ended_s=0.0, parents=["up"])],
        [call("doc", output_hash="beef", parents=["up"]), call("doc", output_hash="beef", parents=["up"])],
        [call("doc", output_hash="beef", parents=["up"])],
    ):
        write(url, records)
    with Lineage.open(url) as lineage:
        assert [(one.status, one.output_hash) for one in lineage.calls("doc")] == [("completed", "beef")]
        assert [one.calls for one in lineage.stats()] == [1]
        assert lineage.tree("doc").messages["doc"].parents == ["up"]


def test_old_rows_are_forgotten_and_their_edges_with_them(url: str) -> None:
    for records in (ingest()[:5], ingest()[5:]):
        write(url, records)
    store = open_store(url, "ingest", keep_s=100.0)
    store.open()
    try:
        while store.rest(1116.0) == 0.0:
            pass
    finally:
        store.close()
    with Lineage.open(url) as lineage:
        assert sum(one.calls for one in lineage.stats()) == 2
        with pytest.raises(ConfigError, match="knows no such message"):
            lineage.tree("doc")


def test_a_call_that_goes_on_is_not_forgotten_for_that(url: str) -> None:
    write(url, [call("doc", status="pending", started_s=1110.0, ended_s=0.0)])
    store = open_store(url, "ingest", keep_s=100.0)
    store.open()
    try:
        store.rest(1116.0)
        with Lineage.open(url) as lineage:
            assert [one.status for one in lineage.calls("doc")] == ["pending"]
        store.rest(1300.0)
    finally:
        store.close()
    with suppress(ConfigError), Lineage.open(url) as lineage:
        assert lineage.calls("doc") == []
