"""`why` of a message in a pipeline: one account, through all routes, from ledger and lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.routes.ledger.ledgers import Bench, bench, child
from tests.routes.lineage.records import call, write
from tupletree.cli.main import main
from tupletree.routes.accounts import Account, account_of
from tupletree.routes.ids import init_id
from tupletree.routes.lineage import Lineage
from tupletree.routes.messages import Settlement


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".tupletree" / "routes" / "shop"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Bench]:
    made = bench("queue file", tmp_path, "")
    yield made
    made.close()


def told(shop: Bench, asked: str) -> Account:
    found = account_of(asked, shop.ledger)
    assert found is not None
    return found


def fan_out(shop: Bench, count: int = 3) -> tuple[str, list[str]]:
    """An execution whose first message became some; its id and theirs."""
    execution = shop.start()
    [first] = shop.take("a")
    children = [child([first], "b", index) for index in range(count)]
    shop.settle(Settlement(messages=[first], outcome="done", children=children))
    return execution, [one.id for one in children]


def test_a_message_that_waits_is_said_to_wait_and_for_which_route(shop: Bench) -> None:
    execution = shop.start()
    account = told(shop, execution)
    assert account.id == init_id(execution)
    assert account.executions == [execution]
    assert account.sentence.startswith("it waits in a for route A, since ")


def test_a_message_in_work_is_said_to_be_and_since_when(shop: Bench) -> None:
    execution = shop.start()
    shop.take("a")
    assert told(shop, execution).sentence.startswith("route A works on it, attempt 1, since ")


def test_a_failed_attempt_says_why_and_when_it_is_made_again(shop: Bench) -> None:
    _, [first, *_] = fan_out(shop)
    [one] = [standing for standing in shop.take("b", 3) if standing.id == first]
    shop.settle(Settlement(messages=[one], outcome="failed", reason="no text", error="ValueError", adapter="clean"))
    account = told(shop, first)
    assert account.state == "retrying"
    assert "it is tried again at " in account.sentence
    assert account.sentence.endswith("by route B; 1 attempt failed, the last one: adapter clean: ValueError: no text")
    assert [one.state for one in account.came_of] == ["done"]


def test_the_account_of_a_first_message_says_which_of_all_that_came_of_it_are_not_done(shop: Bench) -> None:
    execution, ids = fan_out(shop)
    standings = {one.id: one for one in shop.take("b", 3)}
    shop.settle(
        *[
            Settlement(messages=[standings[ids[0]]], outcome="done"),
            Settlement(
                messages=[standings[ids[1]]], outcome="failed", reason="no text", error="ValueError", permanent=True
            ),
            Settlement(messages=[standings[ids[2]]], outcome="filtered", reason="empty", adapter="clean"),
        ]
    )
    account = told(shop, execution)
    assert "route A was done with it at " in account.sentence
    assert account.sentence.endswith("; 3 messages came of it")
    assert account.through == "3 messages came of it: 1 done, 1 dead, 1 filtered"
    assert [(one.id, one.state) for one in account.not_done] == [(ids[1], "dead"), (ids[2], "filtered")]
    assert "after 1 attempt, since " in account.not_done[0].what


def test_a_message_that_left_the_pipeline_and_one_whose_execution_was_cancelled_say_so(shop: Bench) -> None:
    execution = shop.start()
    [first] = shop.take("a")
    out = child([first], "out")
    shop.settle(Settlement(messages=[first], outcome="done", children=[out]))
    assert told(shop, out.id).sentence.startswith("it left the pipeline: no route reads out, since ")
    other = shop.start()
    shop.ledger.cancel(other, "enough")
    assert "its execution was cancelled" in told(shop, other).sentence
    account = told(shop, execution)
    assert account.through == "1 message came of it: 1 unrouted"
    assert account.not_done == []


def test_a_message_that_nobody_knows_has_no_account_and_one_of_lineage_alone_has_its_calls(
    shop: Bench, tmp_path: Path
) -> None:
    assert account_of("nothing", shop.ledger) is None
    url = f"sqlite:///{tmp_path}/lineage.db"
    write(url, [call("old", status="failed", error="ValueError: x")])
    with Lineage.open(url) as lineage:
        account = account_of("old", shop.ledger, lineage)
    assert account is not None
    assert "the ledger does not have it any more" in account.sentence
    assert [one.what for one in account.events] == [
        "attempt 1: adapter read of route convert failed: ValueError: x",
    ]


def test_why_tells_it_on_the_command_line_with_the_calls_of_adapters(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bench("queue file", home, "")
    _, ids = fan_out(made)
    [*_, last] = made.take("b", 3)
    failed = Settlement(
        messages=[last],
        outcome="failed",
        reason="no \x1b text",
        error="ValueError",
        permanent=True,
        traceback="Trace\nE",
    )
    made.settle(failed)
    made.close()
    [path] = home.glob("*.db")
    path.rename(home / "pipeline.db")
    calls = [call(last.id, route="B", adapter="clean", status="failed", error="ValueError: no text")]
    write(f"sqlite:///{home}/pipeline.lineage.db", calls, "shop")

    def why(*arguments: str, code: int = 0) -> str:
        assert main(["why", *arguments]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    printed = why(last.id)
    assert printed.startswith(f"message {last.id} of execution ")
    assert "it is a dead letter of route B after 1 attempt, since " in printed
    assert "attempt 1: adapter clean of route B failed: ValueError: no text" in printed
    assert "It came of " in printed
    assert "  Trace\n" in printed
    assert "tupletree routes replay" in printed
    assert "\x1b" not in printed
    account: dict[str, Any] = json.loads(why(last.id, "--json"))
    assert (account["state"], account["route"]) == ("dead", "B")
    assert why(ids[0], "--pipeline", "shop") == why(ids[0], "--ledger", f"sqlite:///{home}/pipeline.db")
    assert "no such message" in why("nothing", code=2)
    assert "there is no ledger" in why("nothing", "--ledger", f"sqlite:///{home}/none.db", code=2)
    assert not (home / "none.db").exists()
