"""The JSON Schema for editors takes what the check takes, and refuses at the same place what has the wrong form."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.routes.document.documents import STEPS
from tests.routes.document.test_faults import FULL
from tupletree.cli.main import main
from tupletree.routes.adapters import registry
from tupletree.routes.document import DocumentError, document_schema, load

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "document_ingest" / "pipeline.yaml"
ROUTE = "a: {inbound: {queue: q}}"
P = "version: 1\npipeline: p\n"


class Yaml12(yaml.SafeLoader):
    """As editors read it: `off` is text. `!file` is text, too."""


Yaml12.yaml_implicit_resolvers = {
    letter: [one for one in found if one[0] != "tag:yaml.org,2002:bool" or letter in "tTfF"]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.add_constructor("!file", lambda _, node: f"the text of {node.value}")


@functools.cache
def validator() -> Draft202012Validator:
    schema = document_schema([*registry.names(), f"{STEPS}:Convert", f"{STEPS}:Needs"])
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def refused(text: str) -> list[str]:
    """Paths at which the schema refuses a document."""
    document = yaml.load(text, Yaml12)
    return [".".join(str(part) for part in one.absolute_path) for one in validator().iter_errors(document)]


def adapter(text: str) -> str:
    return P + f"routes: {{a: {{inbound: {{queue: q}}, adapters: [{text}]}}}}\n"


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        EXAMPLE.read_text(encoding="utf-8"),
        P + f'queues: {{x: "sqlite:///x.db", y: {{sink: true}}}}\nlineage: off\nroutes: {{{ROUTE}}}\n',
        P + f"lineage: {{level: sampled:0.01}}\nroutes: {{{ROUTE}}}\n",
        'version: 1\npipeline: "${P:-p}"\nroutes: {a: {inbound: {queue: "${Q}", prefetch: "${N:-3}"}}}',
        adapter(f'{{type: "{STEPS}:Convert", config: {{max_bytes: "${{X:-10}}"}}}}'),
        adapter("{type: log, condition: {any_of: [{field: payload.a, operator: exists}, {not: {field: headers.b}}]}}"),
        P + f"routes: {{{ROUTE}}}\ntests: [{{name: one, input: {{payload: 1}}, expect: {{outcome: done}}}}]",
    ],
)
def test_it_takes_documents_that_are_right(text: str, tmp_path: Path) -> None:
    assert refused(text) == []


def test_it_takes_a_pipeline_that_includes_its_routes_and_the_part_that_has_them() -> None:
    assert refused(P + "include: routes.yaml\n") == []
    assert refused(f"routes: {{{ROUTE}}}\n") == []
    assert refused("queues: {x: {sink: true}}\n") == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"pipeline: p\nroutes: {{{ROUTE}}}", ""),
        (f"version: 1\nroutes: {{{ROUTE}}}", ""),
        ("version: 1\npipeline: p", ""),
        (f"version: 2\npipeline: p\nroutes: {{{ROUTE}}}", "version"),
        (f"version: 1\npipeline: a/b\nroutes: {{{ROUTE}}}", "pipeline"),
        (P + f"route: {{}}\nroutes: {{{ROUTE}}}", ""),
        (P + "routes: {}", "routes"),
        (P + "routes: {a: {}}", "routes.a"),
        (P + "routes: {a: {inbound: {concurrency: 2}}}", "routes.a.inbound"),
        (P + "routes: {a: {inbound: {queue: q, concurency: 2}}}", "routes.a.inbound"),
        (P + 'routes: {a: {inbound: {queue: q, concurrency: "3"}}}', "routes.a.inbound.concurrency"),
        (P + "routes: {a: {inbound: {queue: q, concurrency: 0}}}", "routes.a.inbound.concurrency"),
        (P + "routes: {a: {inbound: {queue: 7}}}", "routes.a.inbound.queue"),
        (P + "routes: {a: {inbound: {queue: q}, outbound: [x]}}", "routes.a.outbound.0"),
        (adapter("{config: {}}"), "routes.a.adapters.0"),
        (adapter(f'{{type: "{STEPS}:Convert", config: {{max_bites: 2}}}}'), "routes.a.adapters.0.config"),
        (adapter(f'{{type: "{STEPS}:Convert", config: {{max_bytes: x}}}}'), "routes.a.adapters.0.config.max_bytes"),
        (adapter(f'{{type: "{STEPS}:Needs"}}'), "routes.a.adapters.0"),
        (adapter("{type: read_file}"), "routes.a.adapters.0"),
        (adapter("{type: read_file, config: {}}"), "routes.a.adapters.0.config"),
        (adapter("{type: log, condition: {field: payload.a, operatr: exists}}"), "routes.a.adapters.0.condition"),
        (adapter("{type: log, condition: {field: payload.a, operator: exist}}"), "routes.a.adapters.0.condition"),
        (P + f"lineage: {{level: some}}\nroutes: {{{ROUTE}}}", "lineage"),
        (P + f"limits: {{max_handler: 1}}\nroutes: {{{ROUTE}}}", "limits"),
        (P + f"routes: {{{ROUTE}}}\ntests: [{{name: a, input: {{}}}}]", "tests.0"),
    ],
)  # fmt: skip
def test_it_refuses_the_wrong_form_at_its_place_and_so_does_the_check(text: str, path: str) -> None:
    assert path in refused(text)
    with pytest.raises(DocumentError):
        load(text)


def test_the_command_prints_it_with_the_settings_of_all_built_in_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "schema"]) == 0
    schema: dict[str, Any] = json.loads(capsys.readouterr().out)
    known = {one["if"]["properties"]["type"]["const"] for one in schema["$defs"]["AdapterModel"]["allOf"]}
    assert known >= set(registry.names())
