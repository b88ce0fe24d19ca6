"""The files of a new pipeline: small, without faults, and with a test that passes."""

from __future__ import annotations

from collections.abc import Mapping

_PIPELINE = """\
# tupletree routes validate pipeline.yaml   finds every fault
# tupletree routes explain pipeline.yaml    shows every default, and where each value comes from
version: 1
pipeline: {name}

queues:
  /queue/greetings: {{sink: true}}  # others read it

defaults:
  error_handling: {{max_retries: 3, retry_delay_seconds: 1.0}}

routes:
  greet:
    description: A name becomes a greeting
    inbound: {{queue: /queue/names, concurrency: 4}}
    adapters:
      - type: {module}:greet
        config: {{greeting: "${{GREETING:-Hello}}"}}
        condition: {{field: payload.name, operator: exists}}
    outbound: [{{queue: /queue/greetings}}]

init_message: {{route: greet, payload: {{name: World}}}}

tests:  # tupletree routes test pipeline.yaml
  - name: a name becomes a greeting
    input: {{payload: {{name: Ada}}}}
    expect:
      outputs: {{/queue/greetings: [{{payload: {{name: Ada, greeting: "Hello, Ada!"}}}}]}}
  - name: a name that cannot be greeted is dead after its last attempt
    input: {{payload: {{name: Ada}}}}
    mocks: {{greet: {{raises: no words}}}}
    expect: {{outcome: dead, attempts: 4, reason: no words}}
"""

_ADAPTERS = '''\
"""Adapters of the pipeline {name}."""

from typing import Any


def greet(payload: dict[str, Any], *, greeting: str = "Hello") -> dict[str, Any]:
    """Add a greeting. An exception fails the attempt; None would end the message here (filtered)."""
    return {{**payload, "greeting": f"{{greeting}}, {{payload['name']}}!"}}
'''

_TEST = '''\
"""The pipeline has no fault, and its adapter does what it should."""

from pathlib import Path

from {module} import greet
from tupletree.routes.document import load


def test_the_document_has_no_fault() -> None:
    pipeline = load(Path(__file__).with_name("pipeline.yaml"))
    assert list(pipeline.routes) == ["greet"]


def test_a_name_becomes_a_greeting() -> None:
    assert greet({{"name": "Ada"}})["greeting"] == "Hello, Ada!"
'''

_README = """\
# {name}

    tupletree routes validate pipeline.yaml
    tupletree routes explain pipeline.yaml
    tupletree routes graph pipeline.yaml
    tupletree routes test pipeline.yaml
    pytest
    tupletree routes run pipeline.yaml --wait
    tupletree routes run pipeline.yaml --serve

The last two run it: for one execution, which begins with `init_message`, and for what others publish, until it is
interrupted. `tupletree routes list` and `tupletree why EXECUTION` tell of what was run; the queues are in
`.tupletree/routes/{name}/pipeline.db`, so another program publishes a message with

    echo '{{"name": "Ada"}}' | tupletree queues publish 'sqlite:///.tupletree/routes/{name}/pipeline.db?queue=/queue/names'

`pipeline.yaml` says which queues are read and what happens to each message; `{module}.py` has the adapters.
"""


def sample_files(name: str, module: str) -> Mapping[str, str]:
    """File name → text.

    Args:
        name: of the pipeline.
        module: in which its adapters are.
    """
    texts = {"pipeline.yaml": _PIPELINE, f"{module}.py": _ADAPTERS, f"test_{module}.py": _TEST, "README.md": _README}
    return {file: text.format(name=name, module=module) for file, text in texts.items()}
