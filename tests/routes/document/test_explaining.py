"""`explain`, drawings and the schema say what the document says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.routes.document.documents import HEAD, ROUTE, STEPS, written
from tests.routes.document.test_faults import FULL, routes
from tupletree.routes.document import (
    document_keys,
    document_schema,
    load,
    notes,
    read,
    to_dot,
    to_mermaid,
    to_text,
    to_yaml,
    values,
)


def origins(document: str, **environ: str) -> dict[str, tuple[Any, str]]:
    rows = [value.as_dict() for value in values(read(document, environ))]
    return {row["path"]: (row["value"], row["origin"]) for row in rows}


def test_every_value_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello", encoding="utf-8")
    path = written(
        tmp_path,
        doc=f"include: base.yaml\n{HEAD}defaults: {{timeout_seconds: 9}}\n{ROUTE}settings:\n  text: !file a.txt\n",
        base='limits: {max_handlers: "${N:-7}"}\n',
    )
    found = {value.as_dict()["path"]: value for value in values(read(path, {}))}
    assert str(found["pipeline"]) == f"{path}:3"
    assert str(found["routes.convert.timeout_seconds"]) == f"defaults, {path}:4"
    assert str(found["routes.convert.lease_seconds"]) == "default"
    assert str(found["limits.max_handlers"]) == f"environment N, {tmp_path / 'base.yaml'}:1"
    assert found["limits.max_handlers"].value == 7
    assert str(found["settings.text"]) == f"file a.txt, {path}:9"


def test_defaults_of_the_format_and_of_adapters_are_filled_in() -> None:
    found = origins(FULL)
    assert found["routes.segment.inbound.concurrency"] == (1, "default")
    assert found["routes.segment.error_handling.max_retries"] == (5, "defaults")
    assert found["routes.convert.adapters[1].config.max_bytes"] == (1000, "default")
    assert found["routes.convert.adapters[2].name"] == ("Convert-2", "default")
    assert found["lineage.level"] == ("sampled:0.5", "document")
    assert origins(f"{HEAD}{ROUTE}lineage: off\n")["lineage.level"] == ("off", "document")


def test_what_explain_prints_is_the_same_document() -> None:
    explained = to_yaml(read(FULL, {}))
    assert dataclasses.replace(load(explained, {}), source="") == dataclasses.replace(load(FULL, {}), source="")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_payload_comes_back_from_what_explain_prints(payload: Any) -> None:
    said = json.dumps({"value": payload}, ensure_ascii=False).replace("${", "$${")
    said = "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in said)
    document = read(f"{HEAD}{ROUTE}init_message:\n  route: convert\n  payload: {said}\n", {})
    again = load(to_yaml(document), {})
    assert again.init_message == document.spec.init_message
    assert again.init_message is not None
    assert again.init_message.payload == {"value": payload}


def test_secrets_are_hidden() -> None:
    text = f"""{HEAD}{ROUTE}
queues:
  /queue/convert.in: "sqlite:///a.db?token=hunter2"
ledger: postgresql://me:hunter2@host/db
settings:
  api_key: hunter2
  url: https://me:hunter2@host/x
  plain: ${{DB_PASSWORD}}
"""
    document = read(text, {"DB_PASSWORD": "hunter2"})
    shown = to_yaml(document) + json.dumps([value.as_dict() for value in values(document)])
    assert "hunter2" not in shown
    assert "postgresql://me:***@host/db" in shown
    assert "hunter2" in str(document.spec)


def test_routes_that_feed_each_other_are_explained() -> None:
    text = routes(
        "a: {inbound: {queue: a, prefetch: 50}, outbound: [{queue: b}], backpressure: {high_water: 1}}",
        "b: {inbound: {queue: b, prefetch: 50}, outbound: [{queue: a}], backpressure: {high_water: 1}}",
    )
    [note] = [note for note in notes(read(text, {})) if "cycle" in note]
    assert "a → b, b → a" in note
    assert note in to_yaml(read(text, {}))


def test_drawings_name_every_queue_route_and_adapter() -> None:
    spec = load(FULL, {})
    assert to_text(spec) == (
        "pipeline document-ingest\n"
        "route convert ×4: Markdown to plain text\n"
        "  ← /queue/convert.in (first message)\n"
        f"  0 convert ({STEPS}:Convert), on a condition\n"
        f"  1 Convert ({STEPS}:Convert)\n"
        f"  2 Convert-2 ({STEPS}:Convert)\n"
        "  → /queue/segment.in (route segment)\n"
        "  ✗ /queue/convert.dead\n"
        "route segment ×1\n"
        "  ← /queue/segment.in\n"
        "  → /queue/done (read by others)\n"
    )
    dot, mermaid = to_dot(spec), to_mermaid(spec)
    for name in (
        "/queue/convert.in",
        "/queue/convert.dead",
        "/queue/segment.in",
        "/queue/done",
        "convert",
        "Convert-2",
    ):
        assert name in dot
        assert name in mermaid
    assert '"route convert" -> "queue /queue/convert.dead" [style=dashed];' in dot
    assert "n4 -.-> n2" in mermaid


def test_names_cannot_break_out_of_a_drawing() -> None:
    spec = load(routes("a: {inbound: {queue: 'x\"];<b>&'}}"), {})
    assert '[("x&quot;];&lt;b>&amp;")]' in to_mermaid(spec)
    assert r'label="x\"];<b>&"' in to_dot(spec)


def test_the_schema_knows_every_key_and_the_settings_of_adapters() -> None:
    schema = document_schema([f"{STEPS}:Convert", "no.such:Thing"])
    parts = schema["$defs"]
    assert {"include", *schema["properties"]} == {path for path, *_ in document_keys() if "." not in path}
    [known] = parts["AdapterModel"]["allOf"]
    assert known["if"]["properties"]["type"]["const"] == f"{STEPS}:Convert"
    name = known["then"]["properties"]["config"]["$ref"].rpartition("/")[2]
    assert parts[name]["properties"]["max_bytes"]["default"] == 1000
    assert all(part.get("additionalProperties") is False for part in parts.values() if part.get("type") == "object")
    assert parts["AdapterModel"]["properties"]["condition"]["anyOf"][0]["$ref"] == "#/$defs/Condition"


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    schema = document_schema([f"{STEPS}:Needs"])

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [one for item in value.values() for one in references(item)]
        return [one for item in value for one in references(item)] if isinstance(value, list) else []

    found = {reference.removeprefix("#/$defs/") for reference in references(schema)}
    assert found <= schema["$defs"].keys()


@pytest.mark.parametrize("number", [100])
def test_a_hundred_routes_are_checked_within_a_second(number: int) -> None:
    import time

    lines = [
        f"""  route{n}:
    description: one of many
    inbound: {{queue: /queue/q{n}, concurrency: 4, prefetch: 8}}
    adapters:
      - type: {STEPS}:Convert
        config: {{max_bytes: {n}}}
        condition: {{field: payload.kind, operator: equals, value: md}}
      - {{type: '{STEPS}:Convert'}}
    outbound: [{{queue: /queue/q{(n + 1) % number}}}]
    error_handling: {{max_retries: 3, retry_delay_seconds: 1.0, dead_letter_queue: /queue/dead{n}}}
"""
        for n in range(number)
    ]
    text = f"{HEAD}routes:\n{''.join(lines)}"
    load(text, {})
    started_s = time.process_time()
    assert len(load(text, {}).routes) == number
    assert time.process_time() - started_s < 1.0
