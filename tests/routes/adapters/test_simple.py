"""filter, drop, switch, split, delay, log, template, parse."""

from __future__ import annotations

import asyncio
import io
import logging
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.routes.adapters.calls import called, opened, payload_of, pieces_of, process
from tupletree.errors import PermanentError
from tupletree.routes import RouteMessage
from tupletree.routes.adapters import find

MD = {"field": "payload.kind", "value": "md"}


def run(work: Any) -> Any:
    return asyncio.run(work)


def refused(type_name: str, **config: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        find(type_name).Config.model_validate(config)
    return str(caught.value)


def test_filter_lets_pass_what_is_kept_and_gives_its_reason_for_the_others() -> None:
    assert run(payload_of("filter", {"kind": "md"}, keep=MD)) == {"kind": "md"}
    assert run(payload_of("filter", {"kind": "txt"}, drop=MD)) == {"kind": "txt"}
    for config in ({"keep": {"not": MD}}, {"drop": MD}):
        result = run(called("filter", {"kind": "md"}, reason="is Markdown", **config))
        assert result.message is None
        assert not result.continue_pipeline
        assert result.reason == "is Markdown"
    assert "expected keep or drop" in refused("filter")
    assert "expected keep or drop" in refused("filter", keep=MD, drop=MD)
    assert "cannot be read" in refused("filter", keep={"field": "payload..a", "value": 1})


def test_drop_publishes_nothing() -> None:
    result = run(called("drop", 1, reason="done with"))
    assert (result.message, list(result.emitted), result.continue_pipeline) == (None, [], False)
    assert result.reason == "done with"


def test_switch_sends_to_the_first_case_that_holds() -> None:
    cases = [{"when": MD, "queue": "/a"}, {"when": {"field": "payload.kind", "operator": "exists"}, "queue": "/b"}]
    assert run(called("switch", {"kind": "md"}, cases=cases)).queue == "/a"
    assert run(called("switch", {"kind": "x"}, cases=cases)).queue == "/b"
    assert run(called("switch", {}, cases=cases, default="/c")).queue == "/c"
    config = find("switch").Config.model_validate({"cases": cases, "default": "/c"})
    assert list(find("switch").queues(config)) == ["/a", "/b", "/c"]


def test_a_switch_without_a_match_or_a_default_says_unrouted_and_why() -> None:
    result = run(called("switch", {}, cases=[{"when": MD, "queue": "/a"}]))
    assert result.unrouted
    assert not result.continue_pipeline
    assert result.message is None
    assert "none of the 1 cases holds" in result.reason
    assert "cases" in refused("switch", cases=[])


def test_split_emits_each_item_and_keeps_the_rest_where_it_is_told_to() -> None:
    result = run(called("split", [1, 2]))
    assert result.message is None
    assert pieces_of(result) == [1, 2]
    assert [piece.headers for piece in result.emitted] == [
        {"split-index": "0", "split-count": "2"},
        {"split-index": "1", "split-count": "2"},
    ]
    payload = {"doc": 1, "items": [5, 6]}
    assert pieces_of(run(called("split", payload, field="payload.items"))) == [5, 6]
    replaced = run(called("split", payload, field="payload.items", into="payload.items"))
    assert pieces_of(replaced) == [{"doc": 1, "items": 5}, {"doc": 1, "items": 6}]
    assert payload == {"doc": 1, "items": [5, 6]}


def test_splitting_nothing_is_filtered_and_what_is_no_list_fails_for_good() -> None:
    result = run(called("split", []))
    assert not result.continue_pipeline
    assert result.reason == "the list is empty"
    for payload in ("text", None, {"a": 1}):
        with pytest.raises(PermanentError, match="expected: a list"):
            run(called("split", payload))


def test_delay_publishes_for_later() -> None:
    [piece] = run(called("delay", "x", seconds=2.5)).emitted
    assert (piece.payload, piece.delay_s) == ("x", 2.5)


@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        (1_000_060, 60.0),
        (1_000_000.5, 0.5),
        (5, 0.0),
        ("1970-01-12T13:46:50+00:00", 10.0),
        ("1970-01-12T13:46:50Z", 10.0),
        (datetime.fromtimestamp(1_000_001, UTC), 1.0),
        (1e12, 86400.0),
    ],
)
def test_delay_until_a_time(until: Any, seconds: float) -> None:
    async def work() -> Any:
        adapter = await opened("delay", until="payload.at", max_seconds=86400)
        return await process(adapter, RouteMessage({"at": until}), now_s=lambda: 1_000_000.0)

    assert run(work()).emitted[0].delay_s == seconds


@pytest.mark.parametrize("until", ["tomorrow", "2026-01-01T00:00:00", True, float("nan"), float("inf"), 10**400, [1]])
def test_delay_until_no_time_fails_for_good(until: Any) -> None:
    with pytest.raises(PermanentError):
        run(called("delay", {"at": until}, until="payload.at"))


def test_delay_needs_one_of_seconds_and_until() -> None:
    assert "expected seconds or until" in refused("delay")
    assert "expected seconds or until" in refused("delay", seconds=1, until="payload.at")
    assert "greater than or equal to 0" in refused("delay", seconds=-1)
    assert "finite" in refused("delay", seconds=float("inf"))


def test_log_writes_a_line_and_lets_the_message_pass(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tupletree.routes")
    assert run(payload_of("log", {"n": 5}, text="n is {{ payload.n }}", level="warning")) == {"n": 5}
    assert run(payload_of("log", "x" * 50, max_characters=10)) == "x" * 50
    assert run(payload_of("log", "hidden", level="debug")) == "hidden"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "n is 5"),
        ("INFO", "x" * 10 + "…"),
    ]


def test_template_makes_text_or_a_value() -> None:
    assert run(payload_of("template", {"a": 1}, template="{{ payload.a + 1 }} {{ message.id }}")) == "2 m1"
    made = run(
        payload_of(
            "template",
            {"a": 'say "hi"'},
            template='{"said": {{ payload.a | tojson }}}',
            format="json",
            into="payload.made",
        )
    )
    assert made == {"a": 'say "hi"', "made": {"said": 'say "hi"'}}


def test_a_template_that_cannot_be_filled_in_fails_for_good() -> None:
    for template in ("{{ payload.b }}", "{{ nothing }}", "{{ 1 / 0 }}", "{{ payload.a + 'x' }}"):
        with pytest.raises(PermanentError, match="cannot be filled in"):
            run(called("template", {"a": 1}, template=template))
    with pytest.raises(PermanentError, match="is no JSON"):
        run(called("template", {"a": 1}, template="{", format="json"))
    assert "line 2" in refused("template", template="\n{{ payload.")


@pytest.mark.parametrize(
    "template",
    [
        "{{ payload.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ payload.append(1) }}",
        "{{ payload.items.__globals__ }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * [1] }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ range(100000000) | list }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_reaches_nothing_but_its_message(template: str) -> None:
    with pytest.raises(PermanentError):
        run(called("template", [1], template=template))


def test_a_payload_is_never_a_template() -> None:
    assert run(payload_of("template", "{{ 7 * 7 }}", template="{{ payload }}")) == "{{ 7 * 7 }}"


def parquet(**columns: list[Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("config", "payload", "value"),
    [
        ({"format": "json"}, '{"a": [1]}', {"a": [1]}),
        ({"format": "json"}, b"\xef\xbb\xbf[1]", [1]),
        ({"format": "json", "encoding": "latin-1"}, b'"\xe9"', "é"),
        ({"format": "json"}, '{"$bytes": "aGk="}', {"$bytes": "aGk="}),
        ({"format": "jsonl"}, "1\n\n[2]\n", [1, [2]]),
        ({"format": "csv"}, 'a,b\r\n1,"x\ny"\r\n\r\n2,z\r\n', [{"a": "1", "b": "x\ny"}, {"a": "2", "b": "z"}]),
        ({"format": "csv", "header": False, "delimiter": ";"}, "1;2", [["1", "2"]]),
        ({"format": "csv"}, "", []),
        ({"format": "csv"}, "a\n" + "x" * 200_000, [{"a": "x" * 200_000}]),
        ({"format": "parquet"}, parquet(a=[1, None], b=["x", "y"]), [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]),
        ({"format": "parquet", "columns": ["b"]}, parquet(a=[1], b=["x"]), [{"b": "x"}]),
    ],
)
def test_parse_reads(config: dict[str, Any], payload: Any, value: Any) -> None:
    assert run(payload_of("parse", payload, **config)) == value


@pytest.mark.parametrize(
    ("config", "payload", "what"),
    [
        ({"format": "json"}, "{", "no JSON"),
        ({"format": "json"}, b"\xff", "no JSON"),
        ({"format": "json"}, "[" * 100_000, "no JSON"),
        ({"format": "json", "encoding": "klingon"}, b"1", "klingon"),
        ({"format": "jsonl"}, "1\n{\n", "line 2"),
        ({"format": "csv"}, "a,b\n1\n", "line 2: 1 cells, the header has 2"),
        ({"format": "csv"}, "a,a\n1,2\n", "two columns have one name"),
        ({"format": "csv"}, 'a\n"x', "no CSV"),
        ({"format": "parquet"}, b"PAR1", "no PARQUET"),
        ({"format": "parquet"}, "text", "no PARQUET"),
        ({"format": "json"}, 5, "text or bytes"),
        ({"format": "json", "field": "payload.a"}, {}, "got: nothing"),
    ],
)
def test_what_does_not_parse_fails_for_good(config: dict[str, Any], payload: Any, what: str) -> None:
    with pytest.raises(PermanentError, match=what):
        run(called("parse", payload, **config))


def test_parse_puts_rows_where_it_is_told_to_or_splits_them() -> None:
    payload = {"file": "f", "text": "a\n1\n2\n"}
    whole = run(payload_of("parse", payload, format="csv", field="payload.text", into="payload.rows"))
    assert whole == {**payload, "rows": [{"a": "1"}, {"a": "2"}]}
    split = run(called("parse", payload, format="csv", field="payload.text", into="payload.text", split=True))
    assert pieces_of(split) == [{"file": "f", "text": {"a": "1"}}, {"file": "f", "text": {"a": "2"}}]
    assert run(called("parse", "a\n", format="csv", split=True)).reason == "there are no rows"


def test_results_are_put_beside_what_is_there_and_never_over_something_else() -> None:
    assert run(payload_of("template", None, template="x", into="payload.a.b")) == {"a": {"b": "x"}}
    assert run(payload_of("template", {"a": [1, 2]}, template="x", into="payload.a[-1]")) == {"a": [1, "x"]}
    for payload, into in [("text", "payload.a"), ({"a": 1}, "payload.a.b"), ({"a": []}, "payload.a[0]")]:
        with pytest.raises(PermanentError, match="cannot be put"):
            run(called("template", payload, template="x", into=into))
    result = run(called("template", {}, template="x", into="headers.note"))
    assert result.message.headers == {"note": "x"}
    assert "nothing can be put" in refused("template", template="x", into="message.id")
    assert "nothing can be put" in refused("template", template="x", into="headers")
