"""What the format takes of YAML, and what it refuses."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from tests.routes.document.documents import HEAD, ROUTE, codes_of, faults_of, only, written
from tupletree.routes.document import load
from tupletree.routes.document.reading import MAX_FILE_BYTES


def payload_of(text: str, **environ: str) -> Any:
    document = f"{HEAD}{ROUTE}init_message:\n  route: convert\n  payload:\n    value: {text}\n"
    start = load(document, environ).init_message
    assert start is not None
    return start.payload["value"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("5_000_000", 5_000_000),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        (".inf", math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-31", "2024-01-31"),
        ("1.2.3", "1.2.3"),
        ("y", "y"),
        ("'no'", "no"),
        ('"12:30"', "12:30"),
        ("6379:6379", "6379:6379"),
        ("12345678901234567890123", 12345678901234567890123),
        ("[1, {a: [x]}]", [1, {"a": ["x"]}]),
    ],
)
def test_words_have_the_value_on_which_readers_of_yaml_agree(text: str, value: Any) -> None:
    assert payload_of(text) == value


def test_nan_is_a_number_in_payloads() -> None:
    assert math.isnan(payload_of(".nan"))


@pytest.mark.parametrize(
    "text", ["on", "No", "YES", "off", "12:30", "1:30:00", "010", "0o17", "0089", "0b101", "1e999", "9" * 5000]
)
def test_words_that_readers_of_yaml_take_differently_are_refused(text: str) -> None:
    document = f"{HEAD}{ROUTE}settings:\n  value: {text}\n"
    fault = only(document)
    assert (fault.code, fault.line, fault.column, fault.path) == ("R108", 7, 10, "settings.value")


@pytest.mark.parametrize("name", ["on", "no", "12:30", "010"])
def test_a_route_whose_name_is_such_a_word_is_refused(name: str) -> None:
    assert codes_of(f"{HEAD}routes:\n  {name}: {{inbound: {{queue: a}}}}\n") == ["R108"]


@pytest.mark.parametrize("name", ["1e3", ".nan", "12", "true", "null", "1_000"])
def test_a_route_whose_name_is_a_number_or_nothing_is_refused(name: str) -> None:
    fault = only(f"{HEAD}routes:\n  {name}: {{inbound: {{queue: a}}}}\n")
    assert (fault.code, fault.line, fault.column, fault.expected) == ("R109", 4, 3, f'"{name}"')


@pytest.mark.parametrize("name", ["1e3", ".nan", "12", "true"])
def test_a_queue_whose_name_is_a_number_must_be_in_quotes(name: str) -> None:
    fault = only(f"{HEAD}routes:\n  convert:\n    inbound:\n      queue: {name}\n")
    assert (fault.code, fault.line, fault.column, fault.expected) == ("R204", 6, 14, f'text: "{name}"')
    assert codes_of(f'{HEAD}routes:\n  convert:\n    inbound:\n      queue: "{name}"\n') == []


def test_the_level_of_lineage_may_be_off_without_quotes() -> None:
    assert load(f"{HEAD}{ROUTE}lineage: off\n", {}).lineage.level == "off"
    assert load(f"{HEAD}{ROUTE}lineage: {{level: off}}\n", {}).lineage.level == "off"


def test_a_key_that_is_there_twice_is_refused_at_every_depth() -> None:
    faults = faults_of(f"{HEAD}{ROUTE}    inbound: {{queue: b}}\nsettings: {{a: {{b: 1, b: 2}}}}\nsettings: {{}}\n")
    assert [(fault.code, fault.path) for fault in faults] == [
        ("R103", "routes.convert.inbound"),
        ("R103", "settings.a.b"),
        ("R103", "settings"),
    ]


def test_merge_keys_are_refused_and_say_what_to_use() -> None:
    fault = only(f"{HEAD}{ROUTE}settings:\n  a: &a {{x: 1}}\n  b:\n    <<: *a\n")
    assert (fault.code, fault.line) == ("R104", 9)
    assert "defaults" in fault.next_step


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system", "!!binary", "!!str", "!custom", "!", "!!timestamp", "!!python/name:os.system"],
)
def test_no_tag_is_executed(tag: str) -> None:
    assert only(f"{HEAD}{ROUTE}settings: {{a: {tag} 'echo'}}\n").code == "R105"
    assert "R105" in codes_of(f"{HEAD}{ROUTE}settings: {{a: {tag} [echo]}}\n")


def test_an_alias_stands_for_its_anchor() -> None:
    spec = load(f"{HEAD}{ROUTE}settings: {{a: &a [1, 2], b: *a}}\n", {})
    assert spec.settings == {"a": [1, 2], "b": [1, 2]}


def test_a_yaml_bomb_is_refused_without_being_built() -> None:
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    faults = faults_of(f"{HEAD}{ROUTE}settings:\n" + "\n".join(lines) + "\n")
    assert [fault.code for fault in faults] == ["R106"]


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    text = f"{HEAD}{ROUTE}# {'x' * MAX_FILE_BYTES}\n"
    (fault,) = faults_of(written(tmp_path, doc=text))
    assert "more than 5,000,000 bytes" in fault.got


def test_an_alias_within_its_own_anchor_is_refused() -> None:
    assert codes_of(f"{HEAD}{ROUTE}settings: &a {{b: *a}}\n") == ["R106"]


def test_an_alias_without_an_anchor_is_refused() -> None:
    assert codes_of(f"{HEAD}{ROUTE}settings: {{b: *a}}\n") == ["R110"]


def test_deep_nesting_is_refused() -> None:
    assert codes_of(f"{HEAD}{ROUTE}settings: {{a: {'[' * 200}{']' * 200}}}\n") == ["R107"]
    assert codes_of(f"{HEAD}{ROUTE}settings: {{a: {'[' * 50_000}{']' * 50_000}}}\n")[0] in {"R101", "R107"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just text\n", "null\n"])
def test_a_document_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    assert codes_of(written(tmp_path, doc=text)) == ["R102"]


def test_a_second_document_in_one_file_is_refused() -> None:
    assert codes_of(f"{HEAD}{ROUTE}---\nversion: 1\n") == ["R102"]


def test_a_template_without_quotes_is_told_to_take_some() -> None:
    fault = faults_of(f"{HEAD}{ROUTE}settings:\n  a: {{{{ name }}}}\n")[0]
    assert fault.code == "R109"
    assert "quotes" in fault.next_step


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\tx: 1\na: 2", "a: \x07\nb: 1", "a: 'x\nb: 1"])
def test_what_is_no_yaml_is_refused_with_its_place(text: str) -> None:
    fault = only(f"{text}\n")
    assert fault.code == "R101"


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    assert only(tmp_path / "none.yaml").code == "R100"
    assert only(tmp_path).code == "R100"
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: caf\xe9\n")
    assert only(tmp_path / "latin.yaml").code == "R100"


def test_variables_come_from_the_environment_and_from_their_defaults() -> None:
    assert payload_of("${HOST}", HOST="a.example") == "a.example"
    assert payload_of("${HOST:-localhost}") == "localhost"
    assert payload_of("${HOST:-localhost}", HOST="") == "localhost"
    assert payload_of("http://${HOST:-x}:${PORT:-80}/", PORT="81") == "http://x:81/"
    assert payload_of("'${A}'", A="12") == "12"
    assert payload_of("${A}", A="12") == 12
    assert payload_of("$${A} costs $3", A="12") == "${A} costs $3"


def test_what_a_variable_holds_is_a_value_and_never_yaml() -> None:
    assert payload_of("${A}", A="{x: 1}\n# not a comment: [") == "{x: 1}\n# not a comment: ["


def test_unset_variables_are_all_told_and_those_in_comments_are_not() -> None:
    faults = faults_of(f"{HEAD}{ROUTE}# ${{COMMENT}} ${{\nsettings:\n  a: ${{ONE}}-${{TWO}} # ${{THREE}}\n  b: ${{}}\n")
    assert [(fault.code, fault.got) for fault in faults] == [("R111", "${ONE}"), ("R111", "${TWO}"), ("R112", "${}")]


@pytest.mark.parametrize("text", ["${", "${A", "${A:?none}", "${A-b}", "${1A}", "a ${ b"])
def test_references_that_name_no_variable_are_refused(text: str) -> None:
    assert codes_of(f"{HEAD}{ROUTE}settings:\n  a: '{text}'\n") == ["R112"]


def test_variables_take_the_type_that_their_place_asks_for() -> None:
    document = (
        f'{HEAD}routes:\n  a:\n    description: ${{N}}\n    inbound: {{queue: "${{N}}", concurrency: "${{N}}"}}\n'
    )
    route = load(document, {"N": "12"}).routes["a"]
    assert (route.description, route.inbound.queue, route.inbound.concurrency) == ("12", "12", 12)
    fault = only(document, {"N": "many"})
    assert (fault.code, fault.path, fault.got) == ("R203", "routes.a.inbound.concurrency", '"${N}"')


def test_a_fault_never_shows_what_a_variable_holds() -> None:
    faults = faults_of(f"{HEAD}{ROUTE}limits:\n  max_handlers: ${{PASSWORD}}\n", {"PASSWORD": "hunter2"})
    assert len(faults) == 1
    assert "hunter2" not in str(faults[0])


def test_a_variable_in_a_flow_mapping_without_quotes_is_explained() -> None:
    fault = only(f"{HEAD}{ROUTE}limits: {{max_handlers: ${{N:-3}}}}\n")
    assert fault.code == "R101"
    assert "quotes" in fault.next_step


def test_a_file_reference_gives_the_files_text(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Say ${NOTHING}\n", encoding="utf-8")
    path = written(
        tmp_path, doc=f"{HEAD}{ROUTE}settings:\n  a: !file prompt.txt\n  b: !file none.txt\n  c: !file ${{F}}\n"
    )
    fault = only(path, {"F": "prompt.txt"})
    assert (fault.code, fault.path, fault.line) == ("R113", "settings.b", 8)
    path.write_text(f"{HEAD}{ROUTE}settings: {{a: !file prompt.txt}}\n", encoding="utf-8")
    assert load(path, {}).settings == {"a": "Say ${NOTHING}\n"}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fault = only(written(tmp_path, doc=f"{HEAD}{ROUTE}settings:\n  a: !file pipe\n"))
    assert (fault.code, fault.got) == ("R113", f"{tmp_path / 'pipe'}: no regular file")


def test_text_that_no_file_can_hold_is_refused() -> None:
    assert codes_of(f"{HEAD}{ROUTE}settings:\n  a: \udce9\n") == ["R101"]
    assert codes_of(f"{HEAD}{ROUTE}settings:\n  a: ${{A}}\n", {"A": "caf\udce9"}) == ["R111"]
    assert codes_of(f'{HEAD}{ROUTE}settings:\n  a: "\\ud800"\n') == ["R101"]


def test_included_files_are_relative_to_the_file_that_includes_them(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    written(
        tmp_path / "parts",
        queues="include: limits.yaml\nqueues: {/queue/out: {sink: true}}\n",
        limits="limits: {max_handlers: 3}\n",
    )
    path = written(tmp_path, doc=f"include: [parts/queues.yaml]\n{HEAD}{ROUTE}    outbound: [{{queue: /queue/out}}]\n")
    spec = load(path, {})
    assert spec.limits.max_handlers == 3
    assert spec.sinks == {"/queue/out"}
    assert "max_handlers: 3" in spec.source


def test_what_a_document_says_itself_wins_over_what_it_includes_key_by_key(tmp_path: Path) -> None:
    case = "tests: [{{name: {}, input: {{}}, expect: {{}}}}]\n"
    path = written(
        tmp_path,
        doc=f"include: base.yaml\n{HEAD}{ROUTE}limits: {{max_handlers: 7}}\n{case.format('own')}",
        base=f"limits: {{max_handlers: 3, max_fanout_pending: 9}}\npipeline: other\n{case.format('base')}",
    )
    spec = load(path, {})
    assert (spec.limits.max_handlers, spec.limits.max_fanout_pending, spec.name) == (7, 9, "shop")
    assert [test["name"] for test in spec.tests] == ["base", "own"]


def test_an_include_that_includes_itself_is_refused(tmp_path: Path) -> None:
    alone = written(tmp_path, doc=f"include: doc.yaml\n{HEAD}{ROUTE}")
    assert codes_of(alone) == ["R115"]
    path = written(tmp_path, doc=f"include: a.yaml\n{HEAD}{ROUTE}", a="include: b.yaml\n", b="include: ./doc.yaml\n")
    fault = only(path)
    assert (fault.code, fault.file) == ("R115", str(tmp_path / "b.yaml"))
    assert fault.got.count("→") == 3


def test_a_file_that_is_included_twice_is_read_once(tmp_path: Path) -> None:
    path = written(
        tmp_path, doc=f"include: [a.yaml, b.yaml]\n{HEAD}", a="include: c.yaml\n", b="include: c.yaml\n", c=ROUTE
    )
    assert list(load(path, {}).routes) == ["convert"]


def test_a_route_in_two_files_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, doc=f"include: a.yaml\n{HEAD}{ROUTE}", a=ROUTE)
    fault = only(path)
    assert (fault.code, fault.path, fault.file) == ("R116", "routes.convert", str(path))


def test_faults_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        doc=f"include: [a.yaml, none.yaml, b.yaml]\n{HEAD}limit: 1\n",
        a="routes: {a: {inbound: {que: x}}}\n",
        b="settings: {a: on}\nx: [\n",
    )
    faults = faults_of(path)
    assert [(fault.code, Path(fault.file).name, fault.line) for fault in faults] == [
        ("R114", "doc.yaml", 1),
        ("R201", "doc.yaml", 4),
        ("R108", "b.yaml", 1),
        ("R101", "b.yaml", 3),
        ("R201", "a.yaml", 1),
    ]


def test_the_copy_that_executions_keep_holds_all_that_filled_the_document_but_no_secret(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Say «hello»\n", encoding="utf-8")
    (tmp_path / "key.txt").write_text("hunter2", encoding="utf-8")
    settings = (
        "  prompt: !file prompt.txt\n  api_key: !file key.txt\n  name: ${NAME}\n  password: ${P}\n"
        '  tokens: ["${T}"]\n  empty: "x${NONE:-}"\n  proxy: ${PROXY}\n'
    )
    path = written(
        tmp_path,
        doc=f"include: base.yaml\n{HEAD}{ROUTE}ledger: ${{LEDGER:-sqlite:///a.db}}\nsettings:\n{settings}",
        base='limits: {max_handlers: "${N}"}\n',
    )
    environ = {"NAME": "ünï", "P": "hunter2", "PROXY": "http://me:hunter2@host", "T": "hunter2", "N": "3"}
    source = load(path, environ).source
    lines = source.splitlines()
    assert {'# ${NAME}: "ünï"', '# ${N}: "3"', "# ${LEDGER}: not set", "# ${NONE}: not set"} <= {*lines}
    assert '# !file prompt.txt: "Say «hello»\\n"' in lines
    assert {f"# ${{{name}}}: a secret, not kept" for name in ("P", "T", "PROXY")} <= {*lines}
    assert "# !file key.txt: a secret, not kept" in lines
    assert "hunter2" not in source
    (tmp_path / "prompt.txt").write_text("Say nothing\n", encoding="utf-8")
    assert load(path, environ).source != source
