"""Keys, values, adapters and the whole: every fault is found, at its place, with what was probably meant."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tests.routes.document.documents import HEAD, ROUTE, STEPS, codes_of, faults_of, only, written
from tests.routes.document.steps import Batch, Convert
from tupletree.errors import ConfigError
from tupletree.routes.document import DocumentError, load
from tupletree.routes.document.faults import CODES

FULL = f"""\
version: 1
pipeline: document-ingest
queues:
  /queue/done: {{sink: true}}
defaults: {{error_handling: {{max_retries: 5, retry_delay_seconds: 2.0}}}}
routes:
  convert:
    description: Markdown to plain text
    inbound: {{queue: /queue/convert.in, concurrency: 4, prefetch: 8}}
    adapters:
      - type: {STEPS}:Convert
        name: convert
        config: {{max_bytes: 5_000_000, folder: docs, kinds: [md, txt]}}
        condition: {{field: payload.kind, operator: equals, value: md}}
      - {{type: {STEPS}:Convert}}
      - {{type: {STEPS}:Convert}}
    outbound: [{{queue: /queue/segment.in}}]
    error_handling: {{max_retries: 3, dead_letter_queue: /queue/convert.dead}}
    backpressure: {{target_latency_ms: 500, max_concurrency: 32, high_water: 100}}
    timeout_seconds: 10
    lease_seconds: 20
  segment:
    inbound: {{queue: /queue/segment.in}}
    outbound: [{{queue: /queue/done}}]
limits: {{max_handlers: 20, max_fanout_pending: 400}}
lineage: {{level: "sampled:0.5", store: "sqlite:///x.db"}}
init_message: {{route: convert, payload: {{folder: docs}}, headers: {{a: b}}}}
on_complete: /queue/complete
settings: {{a: 1}}
"""


def test_a_document_without_faults_becomes_what_it_says() -> None:
    spec = load(FULL, {})
    convert, segment = spec.routes.values()
    assert (convert.inbound.concurrency, convert.inbound.prefetch, convert.inbound.in_flight) == (4, 8, 4)
    assert [adapter.name for adapter in convert.adapters] == ["convert", "Convert", "Convert-2"]
    assert convert.adapters[0].adapter is Convert
    assert convert.adapters[0].config == Convert.Config(max_bytes=5_000_000, folder=Path("docs"), kinds=("md", "txt"))
    assert convert.outbound == ("/queue/segment.in",)
    assert (convert.timeout_seconds, convert.lease_seconds, convert.backpressure.high_water) == (10, 20, 100)
    assert (spec.limits.max_handlers, spec.lineage.level, set(spec.sinks)) == (20, "sampled:0.5", {"/queue/done"})
    assert spec.init_message is not None
    assert spec.init_message.payload == {"folder": "docs"}
    assert (spec.on_complete, spec.settings, spec.source) == ("/queue/complete", {"a": 1}, FULL)
    assert segment.adapters == ()


def test_defaults_are_inherited_key_by_key_and_a_routes_own_keys_win() -> None:
    convert, segment = load(FULL, {}).routes.values()
    assert (convert.error_handling.max_retries, convert.error_handling.retry_delay_seconds) == (3, 2.0)
    assert (segment.error_handling.max_retries, segment.error_handling.dead_letter_queue) == (5, None)


def test_a_spec_can_be_sent_to_another_process() -> None:
    spec = load(FULL, {})
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("right", "wrong", "path", "nearest"),
    [
        ("limits:", "limit:", "limit", "limits"),
        ("max_handlers", "max_handler", "limits.max_handler", "max_handlers"),
        ("description: Mark", "desciption: Mark", "routes.convert.desciption", "description"),
        ("prefetch", "prefech", "routes.convert.inbound.prefech", "prefetch"),
        ("config:", "confg:", "routes.convert.adapters[0].confg", "config"),
        ("max_bytes", "max_bites", "routes.convert.adapters[0].config.max_bites", "max_bytes"),
        ("operator", "operater", "routes.convert.adapters[0].condition.operater", "operator"),
        (
            "dead_letter_queue",
            "deadletter_queue",
            "routes.convert.error_handling.deadletter_queue",
            "dead_letter_queue",
        ),
        ("high_water", "highwater", "routes.convert.backpressure.highwater", "high_water"),
        ("timeout_seconds", "timeout-seconds", "routes.convert.timeout-seconds", "timeout_seconds"),
        ("sink: true", "sinc: true", 'queues."/queue/done".sinc', "sink"),
        ("level", "lvel", "lineage.lvel", "level"),
        ("headers", "header", "init_message.header", "headers"),
        ("retry_delay_seconds", "retry_delay", "defaults.error_handling.retry_delay", "retry_delay_seconds"),
    ],
)
def test_a_misspelt_key_is_found_at_every_level(right: str, wrong: str, path: str, nearest: str) -> None:
    text = FULL.replace(right, wrong)
    faults = [fault for fault in faults_of(text) if fault.code == "R201"]
    [fault] = faults
    assert (fault.path, fault.nearest) == (path, nearest)
    before = text[: text.index(wrong)]
    assert (fault.line, fault.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))


@pytest.mark.parametrize(
    ("right", "wrong", "code", "expected"),
    [
        ("version: 1", "version: 2", "R205", "1"),
        ("version: 1\n", "", "R202", ""),
        ("pipeline: document-ingest", "pipeline: a b", "R206", "a letter or digit"),
        ("pipeline: document-ingest", "pipeline: 3", "R204", '"3"'),
        ("concurrency: 4", "concurrency: 0", "R205", "1 or more"),
        ("concurrency: 4", "concurrency: 1.5", "R203", "a whole number"),
        ("concurrency: 4", "concurrency: four", "R203", "a whole number"),
        ("concurrency: 4", "concurrency: '4'", "R203", "a whole number"),
        ("concurrency: 4", "concurrency: true", "R203", "a whole number"),
        ("{sink: true}", "{sink: 1}", "R203", "true or false"),
        ("{sink: true}", "nats", "R401", "such as sqlite"),
        ("target_latency_ms: 500", "target_latency_ms: .nan", "R205", "finite"),
        ("timeout_seconds: 10", "timeout_seconds: 0", "R205", "more than 0"),
        ("max_bytes: 5_000_000", "max_bytes: many", "R203", "a whole number"),
        ("max_bytes: 5_000_000", "strict: 1", "R203", "true or false"),
        ("max_bytes: 5_000_000", "title: 12", "R204", '"12"'),
        ("operator: equals", "operator: equal", "R205", "equals"),
        ("{a: b}", "{a: 1}", "R204", '"1"'),
        ("[{queue: /queue/done}]", "[/queue/done]", "R203", "keys and values"),
        ("[{queue: /queue/done}]", "{queue: /queue/done}", "R203", "a list"),
        ("queue: /queue/convert.in", "queue: ''", "R206", "1 to 200"),
        ("/queue/convert.dead", "null", "", ""),
        ('"sampled:0.5"', "sampled:2", "R205", "sampled:SHARE"),
        ("sqlite:///x.db", "x.db", "R401", "sqlite:///"),
    ],
)
def test_a_wrong_value_is_found_and_says_what_is_expected(right: str, wrong: str, code: str, expected: str) -> None:
    faults = faults_of(FULL.replace(right, wrong))
    assert [fault.code for fault in faults] == ([code] if code else [])
    assert all(expected in fault.expected for fault in faults)


def test_missing_keys_are_found_in_the_part_that_should_have_them() -> None:
    faults = faults_of(
        f"{HEAD}defaults: {{inbound: {{concurrency: 2}}}}\nroutes:\n  a: {{}}\n  b: {{adapters: [{{}}]}}\n"
    )
    assert [(fault.code, fault.path, fault.line) for fault in faults] == [
        ("R202", "routes.a.inbound.queue", 5),
        ("R202", "routes.b.inbound.queue", 6),
        ("R202", "routes.b.adapters[0].type", 6),
    ]


@pytest.mark.parametrize("text", ["routes: {}\n", "routes: []\n", "routes:\n", "routes:\n  a:\n"])
def test_a_pipeline_without_routes_is_refused(text: str) -> None:
    assert len(faults_of(f"{HEAD}{text}")) == 1


def test_a_fault_in_defaults_is_told_once() -> None:
    fault = only(f"{HEAD}defaults: {{error_handling: {{max_retries: -1}}}}\n{ROUTE}  b: {{inbound: {{queue: b}}}}\n")
    assert fault.path == "defaults.error_handling.max_retries"


def adapter(text: str) -> str:
    return f"{HEAD}routes:\n  a:\n    inbound: {{queue: a}}\n    adapters:\n      - {text}\n"


def test_an_unknown_adapter_is_found_with_its_nearest_name() -> None:
    fault = only(adapter(f"{{type: '{STEPS}:Convrt'}}"))
    assert (fault.code, fault.nearest, fault.line, fault.column) == ("R301", "Convert", 7, 16)
    assert only(adapter("{type: no.such.module:Thing}")).code == "R301"
    assert only(adapter("{type: no_such_adapter}")).code == "R301"


def test_what_is_no_adapter_cannot_be_used_as_one() -> None:
    assert only(adapter(f"{{type: '{STEPS}:NoAdapter'}}")).code in {"R301", "R302"}


def test_an_adapter_whose_module_raises_is_a_fault_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "broken_steps_of_a_test.py").write_text("raise RuntimeError('no network')\n", encoding="utf-8")
    fault = only(written(tmp_path, doc=adapter("{type: broken_steps_of_a_test:Convert}")))
    assert fault.code == "R302"
    assert "no network" in fault.got


def test_modules_of_adapters_are_found_beside_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "steps_beside_a_document.py").write_text(
        "def shout(payload, loud: bool = False): ...\n", encoding="utf-8"
    )
    text = adapter("{type: steps_beside_a_document:shout, config: {loud: true}}")
    spec = load(written(tmp_path, doc=text), {})
    assert spec.search_path == str(tmp_path)
    assert spec.routes["a"].adapters[0].config.model_dump() == {"loud": True}


def test_a_module_that_another_one_hides_is_a_fault_and_not_the_wrong_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    text = adapter("{type: steps_of_two_documents:step}")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps_of_two_documents.py").write_text(
            f"def step(payload): return '{name}'\n", encoding="utf-8"
        )
    assert codes_of(written(tmp_path / "one", doc=text)) == []
    fault = only(written(tmp_path / "two", doc=text))
    assert (fault.code, fault.path) == ("R302", "routes.a.adapters[0].type")
    assert fault.got == str(tmp_path / "one" / "steps_of_two_documents.py")


def test_settings_of_adapters_are_checked_at_every_depth() -> None:
    faults = faults_of(adapter(f"{{type: '{STEPS}:Needs', config: {{inner: {{retris: 1, retries: x}}}}}}"))
    assert sorted(
        (fault.code, fault.path.removeprefix("routes.a.adapters[0].config."), fault.nearest) for fault in faults
    ) == [
        ("R201", "inner.retris", "retries"),
        ("R202", "url", ""),
        ("R203", "inner.retries", ""),
    ]


def test_settings_that_are_missing_as_a_whole_are_found_at_the_adapter() -> None:
    fault = only(adapter(f"type: {STEPS}:Needs"))
    assert (fault.code, fault.path, fault.line) == ("R202", "routes.a.adapters[0].config.url", 7)


def test_two_adapters_of_a_route_must_not_share_a_name() -> None:
    fault = only(adapter(f"{{type: '{STEPS}:Convert', name: x}}\n      - {{type: '{STEPS}:Convert', name: x}}"))
    assert (fault.code, fault.line) == ("R305", 8)


def test_a_batch_that_no_route_may_hold_is_refused() -> None:
    text = adapter(f"{{type: '{STEPS}:Batch', config: {{size: 10_001}}}}")
    fault = only(text)
    assert (fault.code, fault.got, fault.path) == ("R303", "10,001", "routes.a.adapters[0].config")
    route = load(text.replace("10_001", "10_000"), {}).routes["a"]
    assert (route.adapters[0].adapter, route.adapters[0].batch_size) == (Batch, 10_000)


def test_a_queue_that_an_adapter_names_must_be_an_outbound_queue_of_its_route() -> None:
    text = adapter(f"{{type: '{STEPS}:Switch', config: {{default: good}}}}\n    outbound: [{{queue: god}}]")
    text += "queues: {god: {sink: true}}\n"
    fault = only(text)
    assert (fault.code, fault.got, fault.nearest) == ("R304", "good", "god")
    assert codes_of(text.replace("good", "god")) == []


def routes(*lines: str) -> str:
    return f"{HEAD}routes:\n" + "".join(f"  {line}\n" for line in lines)


def test_a_queue_that_two_routes_read_is_refused() -> None:
    fault = only(routes("a: {inbound: {queue: x}}", "b: {inbound: {queue: x}}"))
    assert (fault.code, fault.path, fault.line) == ("R402", "routes.b.inbound.queue", 5)
    assert "routes.a" in fault.next_step


def test_a_queue_that_no_route_reads_must_be_declared() -> None:
    text = routes("a: {inbound: {queue: in}, outbound: [{queue: /queue/out}]}", "b: {inbound: {queue: /queue/oat}}")
    fault = only(text)
    assert (fault.code, fault.path, fault.nearest) == ("R403", "routes.a.outbound[0].queue", "/queue/oat")
    assert codes_of(f"{text}queues: {{/queue/out: {{sink: true}}}}\n") == []
    assert codes_of(f"{text}queues: {{/queue/out: 'sqlite:///other.db'}}\n") == []


def test_an_outbound_queue_that_is_named_twice_is_refused() -> None:
    assert (
        only(routes("a: {inbound: {queue: x}, outbound: [{queue: b}, {queue: b}]}", "b: {inbound: {queue: b}}")).code
        == "R408"
    )


def test_names_that_differ_only_in_case_are_refused() -> None:
    faults = faults_of(routes("a: {inbound: {queue: x}, outbound: [{queue: Y}]}", "A: {inbound: {queue: y}}"))
    assert [(fault.code, fault.path) for fault in faults] == [("R404", "routes.A"), ("R404", "routes.A.inbound.queue")]


def test_a_first_message_for_no_route_is_refused() -> None:
    fault = only(f"{HEAD}{ROUTE}init_message: {{route: convrt}}\n")
    assert (fault.code, fault.nearest, fault.column) == ("R405", "convert", 23)


def test_a_dead_letter_queue_that_its_own_route_reads_is_refused() -> None:
    assert only(routes("a: {inbound: {queue: x}, error_handling: {dead_letter_queue: x}}")).code == "R406"
    assert (
        codes_of(routes("a: {inbound: {queue: x}, error_handling: {dead_letter_queue: y}}", "b: {inbound: {queue: y}}"))
        == []
    )


def test_a_completion_event_that_would_start_an_execution_is_refused() -> None:
    assert only(f"{HEAD}{ROUTE}on_complete: /queue/convert.in\n").code == "R407"


def test_an_unknown_scheme_is_found_with_its_nearest_name() -> None:
    fault = only(f"{HEAD}{ROUTE}queues: {{/queue/convert.in: 'sqlit:///a.db'}}\n")
    assert (fault.code, fault.nearest) == ("R401", "sqlite://")
    fault = only(f"{HEAD}{ROUTE}queues: {{/queue/convert.in: {{url: 'quux://user:secret@a'}}}}\n")
    assert (fault.code, fault.path) == ("R401", 'queues."/queue/convert.in".url')
    assert "secret" not in str(fault)
    assert only(f"{HEAD}{ROUTE}queue_file: 'redis://a'\n").code == "R401"


def test_faults_of_every_kind_are_told_at_once() -> None:
    text = FULL.replace("prefetch: 8", "prefech: 8").replace(f"{STEPS}:Convert\n", f"{STEPS}:Convrt\n")
    text = text.replace("{queue: /queue/done}", "{queue: /queue/don}").replace("route: convert", "route: conver")
    text = text.replace("max_handlers: 20", "max_handlers: none")
    assert sorted(codes_of(text)) == ["R201", "R203", "R301", "R403", "R405"]


def test_what_follows_from_another_fault_is_not_told() -> None:
    """A route that cannot be read may be the one that reads a queue."""
    assert codes_of(routes("a: {inbound: {queue: x}, outbound: [{queue: y}]}", "b: {inbound: {que: y}}")) == [
        "R202",
        "R201",
    ]


def test_an_error_tells_code_place_path_and_what_was_meant() -> None:
    with pytest.raises(DocumentError) as raised:
        load(FULL.replace("prefetch", "prefech"), {})
    error = raised.value
    assert isinstance(error, ConfigError)
    assert error.exit_code == 2
    assert "<text>:9:57: R201 unknown key (at routes.convert.inbound.prefech)" in str(error)
    assert "did you mean prefetch?" in str(error)
    assert error.faults[0].as_dict().keys() == {
        "code", "file", "line", "column", "path", "what", "got", "expected", "nearest", "next_step",
    }  # fmt: skip


def test_every_code_that_is_used_is_explained_and_every_one_explained_is_used() -> None:
    room = Path(__file__).resolve().parents[3] / "src" / "tupletree" / "routes"
    used: set[str] = set()
    for path in room.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'"(R\d{3})"(?!:)', text))
    assert used == set(CODES)


def test_routes_that_feed_each_other_are_known_as_a_cycle() -> None:
    spec = load(
        routes(
            "a: {inbound: {queue: a}, outbound: [{queue: b}, {queue: c}]}",
            "b: {inbound: {queue: b}, outbound: [{queue: a}]}",
            "c: {inbound: {queue: c}, outbound: [{queue: d}]}",
            "d: {inbound: {queue: d}, outbound: [{queue: d}]}",
        ),
        {},
    )
    assert spec.queues_in_cycles() == {"a": {"b"}, "b": {"a"}, "c": set(), "d": {"d"}}


@pytest.mark.parametrize(
    ("url", "expected"),
    [("mysql://me:hunter2@host/x", "sqlite or postgresql"), ("hunter2", "a database URL"), ("[hunter2]", "text")],
)
def test_a_secret_that_is_not_allowed_is_not_shown(url: str, expected: str) -> None:
    config = f"{{url: {url}, table: t, columns: {{id: message.id}}}}"
    fault = only(f"{HEAD}routes: {{a: {{inbound: {{queue: q}}, adapters: [{{type: write_sql, config: {config}}}]}}}}\n")
    assert fault.path == "routes.a.adapters[0].config.url"
    assert expected in fault.expected
    assert fault.got == "(not shown)"
    assert "hunter2" not in str(fault)


def test_a_queue_that_nobody_reads_may_be_misspelt_or_is_to_be_declared() -> None:
    routes = "a: {inbound: {queue: q}, outbound: [{queue: out}]}, b: {inbound: {queue: oat}}"
    said = str(only(f"{HEAD}routes: {{{routes}}}\n"))
    assert "next: did you mean oat?; if others read it, declare it: queues: {out: {sink: true}}" in said


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("routes:\n  a:\n\tinbound: {queue: q}\n", "begins with a tab"),
        ("routes:\n  a:\n    inbound: {queue: q}\n   adapters: []\n", "look at the indentation"),
        (
            "routes: {a: {inbound: {queue: q}, adapters: [{type: log, config: {text: a {{ payload.id }}}}]}}\n",
            "{{ … }}",
        ),
        ("settings: {a: ${B}, c: d}\n", "${NAME}"),
    ],
)
def test_where_the_grammar_is_broken_it_says_what_is_probably_wrong(text: str, hint: str) -> None:
    fault = faults_of(f"{HEAD}{text}")[0]
    assert fault.code == "R101"
    assert hint in fault.next_step
