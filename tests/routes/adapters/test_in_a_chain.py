"""Built-in adapters as a route calls them: from a document, through the chain, to what is settled and published."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tupletree.errors import PermanentError, RetryAfter
from tupletree.routes import (
    Adapter,
    AdapterConfig,
    AdapterResult,
    CallRecord,
    Emitted,
    PipelineContext,
    Settlement,
    Standing,
    Work,
)
from tupletree.routes.adapters import adapter, registry
from tupletree.routes.document import DocumentError, load
from tupletree.routes.payloads import decode, encode
from tupletree.routes.running.chain import AdapterSurroundings, Chain


def unsteady(payload: dict[str, Any]) -> dict[str, Any]:
    """Fails as its payload says."""
    match payload.get("fails"):
        case "permanently":
            raise PermanentError("as told")
        case "for a while":
            raise RetryAfter(9)
    return payload


class EmitsPieces(Adapter[AdapterConfig]):
    """As a user's own `split`."""

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(emitted=[Emitted(1), Emitted(2)])


class BesideConfig(AdapterConfig):
    """Where what is emitted goes."""

    queue: str = ""


class EmitsBeside(Adapter[BesideConfig]):
    """Emits a message, and the one in hand goes on."""

    Config = BesideConfig

    async def process(self, context: PipelineContext) -> AdapterResult:
        return AdapterResult(context.message, [Emitted("beside", self.config.queue)])


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    adapter("unsteady-step")(unsteady)
    adapter("emits-pieces")(EmitsPieces)
    adapter("emits-beside")(EmitsBeside)


def document(folder: Path, adapters: str) -> Path:
    path = folder / "pipeline.yaml"
    text = textwrap.indent(textwrap.dedent(adapters).strip(), "      ")
    path.write_text(
        "version: 1\npipeline: p\nqueues: {/a: {sink: true}, /b: {sink: true}}\nroutes:\n  r:\n"
        f"    inbound: {{queue: /in, concurrency: 4}}\n    adapters:\n{text}\n"
        "    outbound: [{queue: /a}, {queue: /b}]\n"
    )
    return path


def settled(folder: Path, adapters: str, *payloads: Any, together: bool = False) -> list[Settlement]:
    """What becomes of each of these messages, one after the other or together."""
    route = load(document(folder, adapters)).routes["r"]

    def work(number: int, payload: Any) -> Work:
        standing = Standing(id=f"m{number}", route="r", queue="/in", handle="h", executions=("e",), attempt=1)
        return Work(messages=[standing], body=encode(payload))

    async def run() -> list[list[Settlement | Work | CallRecord]]:
        chain = Chain(route, 0, len(route.adapters), AdapterSurroundings(now_s=lambda: 1000.0))
        await chain.open()
        try:
            works = [work(number, payload) for number, payload in enumerate(payloads, 1)]
            if together:
                return await asyncio.gather(*map(chain.work, works))
            return [await chain.work(one) for one in works]
        finally:
            await chain.close()

    found = [outcome[-1] for outcome in asyncio.run(run())]
    assert all(isinstance(one, Settlement) for one in found)
    return [one for one in found if isinstance(one, Settlement)]


def children(settlement: Settlement) -> list[tuple[str, Any]]:
    return [(child.queue, decode(child.body)) for child in settlement.children]


SWITCH = """
- {type: parse, config: {format: json}}
- type: switch
  config:
    cases:
      - {when: {field: payload.n, operator: gt, value: 5}, queue: /a}
      - {when: {field: payload.n, operator: lt, value: 5}, queue: /b}
- {type: template, config: {template: "{{ payload.n }}", into: payload.text}}
"""


def test_a_switch_routes_by_conditions_and_what_matches_none_is_unrouted_with_the_reason(tmp_path: Path) -> None:
    big, small, none, broken = settled(tmp_path, SWITCH, '{"n": 9}', '{"n": 1}', '{"n": 5}', "{")
    assert children(big) == [("/a", {"n": 9, "text": "9"})]
    assert children(small) == [("/b", {"n": 1, "text": "1"})]
    assert (none.outcome, none.adapter, list(none.children)) == ("unrouted", "switch", [])
    assert "none of the 2 cases holds" in none.reason
    assert (broken.outcome, broken.permanent, broken.adapter) == ("failed", True, "parse")


def test_a_switch_to_a_queue_that_is_not_outbound_is_refused_when_the_document_is_read(tmp_path: Path) -> None:
    adapters = "- {type: switch, config: {cases: [{when: {field: payload, value: 1}, queue: /aa}]}}"
    with pytest.raises(DocumentError, match="/aa"):
        load(document(tmp_path, adapters))


def test_pieces_of_a_split_are_children_of_their_own_for_every_outbound_queue(tmp_path: Path) -> None:
    (settlement,) = settled(tmp_path, "- {type: split}", [1, 2, 3])
    assert children(settlement) == [(queue, item) for item in (1, 2, 3) for queue in ("/a", "/b")]
    assert len({child.id for child in settlement.children}) == 6
    again = settled(tmp_path, "- {type: split}", [1, 2, 3])[0]
    assert [child.id for child in again.children] == [child.id for child in settlement.children]
    assert {child.headers["split-count"] for child in settlement.children} == {"3"}


PIECES = {"n": 1, "lines": [1, 2], "text": "1\n2\n"}
BY_KIND = "{type: switch, config: {cases: [{when: {field: payload.n, value: 1}, queue: /b}], default: /a}}"


@pytest.mark.parametrize(
    "step",
    [
        "{type: split, config: {field: payload.lines, into: payload.lines}}",
        "{type: delay, config: {seconds: 60}}",
        "{type: parse, config: {format: jsonl, field: payload.text, into: payload, split: true}}",
        "{type: emits-pieces}",
    ],
)
def test_what_is_emitted_behind_a_switch_is_for_the_queue_that_this_chose(tmp_path: Path, step: str) -> None:
    """As the message itself would be: pieces for every outbound queue would be worked twice."""
    first, other = settled(tmp_path, f"- {BY_KIND}\n- {step}\n", PIECES, {**PIECES, "n": 2})
    assert {child.queue for child in first.children} == {"/b"}
    assert {child.queue for child in other.children} == {"/a"}


def test_what_is_emitted_before_a_switch_or_names_its_queue_goes_where_it_went(tmp_path: Path) -> None:
    before, _ = settled(tmp_path, f"- {{type: emits-beside}}\n- {BY_KIND}\n", {"n": 1}, {"n": 2})
    assert sorted(child.queue for child in before.children) == ["/a", "/b", "/b"]
    named, _ = settled(tmp_path, f"- {BY_KIND}\n- {{type: emits-beside, config: {{queue: /a}}}}\n", {"n": 1}, {"n": 2})
    assert sorted(child.queue for child in named.children) == ["/a", "/b"]


def test_what_is_delayed_is_published_with_its_delay(tmp_path: Path) -> None:
    (settlement,) = settled(tmp_path, "- {type: delay, config: {until: payload.at}}", {"at": 1060})
    assert [(child.queue, child.delay_s) for child in settlement.children] == [("/a", 60.0), ("/b", 60.0)]


def test_a_message_that_a_switch_has_sent_to_a_queue_is_delayed_in_that_queue_only(tmp_path: Path) -> None:
    steps = """
- {type: switch, config: {cases: [{when: {field: payload, value: 1}, queue: /b}], default: /a}}
- {type: delay, config: {seconds: 60}}
"""
    first, other = settled(tmp_path, steps, 1, 2)
    assert [(child.queue, child.delay_s) for child in first.children] == [("/b", 60.0)]
    assert [(child.queue, child.delay_s) for child in other.children] == [("/a", 60.0)]


DEDUPE = """
- {type: dedupe, config: {key: payload.key}}
- {type: unsteady-step}
"""


@pytest.mark.parametrize("together", [False, True])
def test_a_copy_goes_on_if_the_first_one_failed_and_is_dropped_if_it_got_through(
    tmp_path: Path, together: bool
) -> None:
    first, second, third = settled(
        tmp_path,
        DEDUPE,
        {"key": 1, "fails": "permanently"},
        {"key": 1, "fails": "for a while"},
        {"key": 1},
        together=together,
    )
    assert (first.outcome, first.permanent) == ("failed", True)
    assert (second.outcome, second.permanent, second.retry_after_s) == ("failed", False, 9.0)
    assert third.outcome == "done"
    kept, dropped = settled(tmp_path, DEDUPE, {"key": 1}, {"key": 1, "fails": "permanently"}, together=together)
    assert kept.outcome == "done"
    assert (dropped.outcome, dropped.reason) == ("filtered", "a duplicate of message m1")
