"""Tests in documents: what they show of a route, without waiting and without queues."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tupletree.cli.main import main
from tupletree.routes.document import DocumentError, read
from tupletree.routes.testing import Trial, run_tests

STEPS = "tests.routes.testing.steps"


def document(*adapters: Any, tests: Any, **route: Any) -> str:
    """A pipeline of one route to the queues `a` and `b`, and of a second one behind `a` without adapters."""
    steps = [{"type": f"{STEPS}:{one}"} if isinstance(one, str) else one for one in adapters]
    for step in steps:
        step["type"] = step["type"] if ":" in step["type"] else f"{STEPS}:{step['type']}"
    text: str = yaml.safe_dump(
        {
            "version": 1,
            "pipeline": "tested",
            "queues": {"b": {"sink": True}, "c": {"sink": True}},
            "settings": {"extra": 1},
            "routes": {
                "first": {
                    "inbound": {"queue": "in"},
                    "adapters": steps,
                    "outbound": [{"queue": "a"}, {"queue": "b"}],
                    **route,
                },
                "second": {"inbound": {"queue": "a"}, "outbound": [{"queue": "c"}]},
            },
            "tests": [{"name": "t", "route": "first", **one} for one in tests],
        },
        sort_keys=False,
    )
    return text


def trial_of(*adapters: Any, test: Any, **route: Any) -> Trial:
    [trial] = run_tests(read(document(*adapters, tests=[test], **route), {}))
    return trial


def passes(*adapters: Any, test: Any, **route: Any) -> Trial:
    trial = trial_of(*adapters, test=test, **route)
    assert trial.problems == ()
    return trial


def to_both(*payloads: Any) -> dict[str, Any]:
    return {queue: [{"payload": payload} for payload in payloads] for queue in ("a", "b")}


def test_what_comes_out_is_compared_with_what_is_expected() -> None:
    passes(
        "upper",
        test={"input": {"payload": {"name": "x"}}, "expect": {"outputs": to_both({"name": "X"}), "children": 2}},
    )
    trial = trial_of(
        "upper",
        test={"input": {"payload": {"name": "x"}}, "expect": {"outputs": to_both({"name": "x"}), "children": 1}},
    )
    assert trial.problems == (
        "children: expected 1, got 2",
        'a[0]: expected payload {"name":"x"}, got {"name":"X"}',
        'b[0]: expected payload {"name":"x"}, got {"name":"X"}',
    )


def test_an_outcome_that_is_not_named_must_be_done() -> None:
    trial = trial_of("upper", test={"input": {"payload": {}}, "mocks": {"upper": {"filtered": "empty"}}, "expect": {}})
    assert trial.problems == ("outcome: expected done, got filtered (empty)",)
    passes(
        "upper",
        test={
            "input": {},
            "mocks": {"upper": {"filtered": "empty"}},
            "expect": {"outcome": "filtered", "reason": "empty"},
        },
    )
    passes(
        "upper",
        test={"input": {}, "mocks": {"upper": {"unrouted": "none"}}, "expect": {"outcome": "unrouted", "children": 0}},
    )


def test_attempts_are_made_with_their_pauses_and_take_no_time() -> None:
    started_s = time.monotonic()
    handling = {
        "max_retries": 3,
        "retry_delay_seconds": 600,
        "max_retry_delay_seconds": 1200,
        "dead_letter_queue": "dead",
    }
    trial = passes(
        "upper",
        test={
            "input": {"payload": {"name": 3}},
            "expect": {
                "outcome": "dead",
                "attempts": 4,
                "error": "AttributeError",
                "outputs": {"dead": [{"payload": {"name": 3}}]},
            },
        },
        error_handling=handling,
    )
    assert trial.took_s == pytest.approx(600 + 1200 + 1200)
    assert time.monotonic() - started_s < 5


def test_a_mock_gives_an_answer_for_each_call_and_then_its_last_one() -> None:
    mocks = {
        "upper": [
            {"raises": "once"},
            {"raises": "twice", "retry_after_seconds": 50},
            {"payload": 5, "headers": {"h": "x"}},
        ]
    }
    expect = {"attempts": 3, "outputs": {queue: [{"payload": 5, "headers": {"h": "x"}}] for queue in ("a", "b")}}
    trial = passes("upper", test={"input": {}, "mocks": mocks, "expect": expect})
    assert trial.took_s == pytest.approx(1 + 50)


def test_a_permanent_error_is_the_last_attempt() -> None:
    mocks = {"upper": {"raises": "never", "permanent": True}}
    passes("upper", test={"input": {}, "mocks": mocks, "expect": {"outcome": "dead", "attempts": 1, "reason": "never"}})


def test_an_outage_costs_no_attempt() -> None:
    mocks = {"upper": [{"raises": "away", "outage": True}] * 3 + [{"payload": 1}]}
    trial = passes("upper", test={"input": {}, "mocks": mocks, "expect": {"attempts": 1}})
    assert trial.took_s == pytest.approx(3)
    mocks = {"upper": [{"raises": "away", "outage": True}]}
    passes("upper", test={"input": {}, "mocks": mocks, "expect": {"outcome": "held"}})


def test_sleeps_and_timeouts_pass_on_virtual_time() -> None:
    passes("Wait", test={"input": {}, "expect": {"outputs": to_both({"waited_s": 60})}})
    test = {"input": {}, "expect": {"outcome": "dead", "error": "TimeoutError", "attempts": 2}}
    trial = passes("Wait", test=test, timeout_seconds=10, error_handling={"max_retries": 1})
    assert trial.took_s == pytest.approx(21)
    passes(
        "upper",
        test={**test, "mocks": {"upper": {"takes_seconds": 99}}},
        timeout_seconds=10,
        error_handling={"max_retries": 1},
    )


def test_adapters_that_use_threads_and_loops_of_their_own_work() -> None:
    passes("Threaded", test={"input": {}, "expect": {"outputs": to_both(7)}})


def test_a_batch_goes_out_when_it_is_full_or_old_enough() -> None:
    inputs = [{"payload": number} for number in range(5)]
    trial = passes(
        {"type": "Join", "config": {"rest_s": 100}},
        test={"input": inputs, "expect": {"outputs": to_both([0, 1, 2], [3, 4])}},
    )
    assert trial.took_s == pytest.approx(230, abs=1)


def test_a_batch_that_fails_is_tried_member_by_member() -> None:
    inputs = [{"payload": one} for one in ("x", "bad", "y")]
    expect = {"outcomes": ["done", "dead", "done"], "outputs": to_both(["x"], ["y"])}
    passes("Join", test={"input": inputs, "expect": expect}, error_handling={"max_retries": 0})


def test_adapters_that_hold_messages_are_asked_as_time_passes() -> None:
    inputs = [{"payload": one} for one in (1, 2, 3)]
    expect = {"outcomes": ["done", "done", "filtered"], "outputs": to_both([1, 2])}
    passes("Pairs", test={"input": inputs, "expect": expect})
    passes("Never", test={"input": {}, "expect": {"outcome": "held"}})


def test_a_mock_stands_for_a_batch_adapter_too() -> None:
    passes(
        "upper",
        "Join",
        test={
            "input": {"payload": {"name": "x"}},
            "mocks": {"Join": {}},
            "expect": {"outputs": to_both({"name": "X"}), "called": ["upper", "Join"]},
        },
    )


def test_a_condition_skips_an_adapter_and_its_mock() -> None:
    step = {"type": "upper", "condition": {"field": "payload.name", "operator": "exists"}}
    passes(step, test={"input": {"payload": {}}, "expect": {"called": [], "outputs": to_both({})}})
    passes(
        step, test={"input": {"payload": {}}, "mocks": {"upper": {"payload": 1}}, "expect": {"outputs": to_both({})}}
    )


def test_settings_of_a_test_are_laid_over_those_of_the_pipeline() -> None:
    passes(
        "Emits",
        test={
            "input": {"payload": 0},
            "expect": {"outputs": {"a": [{"payload": 0}], "b": [{"payload": 1}, {"payload": 0}]}},
        },
    )
    expect = {"outputs": {"a": [{"payload": 0}], "b": [{"payload": 2}, {"payload": 0}]}}
    passes("Emits", test={"input": {"payload": 0}, "settings": {"extra": 2}, "expect": expect})


def test_what_is_published_goes_on_where_the_test_follows_it() -> None:
    test = {
        "input": {"payload": 1},
        "follow": True,
        "expect": {"outputs": {**to_both(1, 1), "c": [{"payload": 1}] * 2}, "children": 6},
    }
    passes("twice", test=test)


def test_payloads_are_compared_as_json_and_may_be_compared_in_part() -> None:
    given = {"input": {"payload": {"a": 1, "b": [float("nan"), True]}}}
    passes(test={**given, "expect": {"outputs": to_both({"a": 1.0, "b": [float("nan"), True]})}})
    assert trial_of(test={**given, "expect": {"outputs": to_both({"a": True, "b": [float("nan"), 1]})}}).problems
    assert trial_of(test={**given, "expect": {"outputs": to_both({"a": 1})}}).problems
    passes(test={**given, "expect": {"outputs": to_both({"a": 1}), "partial": True}})


def test_an_adapter_that_cannot_be_opened_fails_the_test_with_its_reason() -> None:
    assert "no disk" in trial_of("CannotOpen", test={"input": {}, "expect": {}}).problems[0]


@pytest.mark.parametrize(
    ("test", "code", "path"),
    [
        ({"route": "frist"}, "R409", "tests[0].route"),
        ({"mocks": {"uper": {}}}, "R409", "tests[0].mocks.uper"),
        ({"mocks": {"upper": {"payload": 1, "raises": "x"}}}, "R205", "tests[0].mocks.upper"),
        ({"mocks": {"upper": {"permanent": True}}}, "R205", "tests[0].mocks.upper"),
        ({"mocks": {"upper": {"payloads": 1}}}, "R201", "tests[0].mocks.upper.payloads"),
        ({"expect": {"outputs": {"bb": []}}}, "R409", "tests[0].expect.outputs.bb"),
        ({"expect": {"outcomes": ["done", "done"]}}, "R409", "tests[0].expect.outcomes"),
        ({"expect": {"outcome": "don"}}, "R205", "tests[0].expect.outcome"),
        ({"input": []}, "R205", "tests[0].input"),
        ({"inputs": {}}, "R201", "tests[0].inputs"),
    ],
)
def test_faults_of_tests_are_faults_of_the_document(test: Any, code: str, path: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read(document("upper", tests=[{"input": {}, "expect": {}, **test}]), {})
    [fault] = raised.value.faults
    assert (fault.code, fault.path) == (code, path)
    assert fault.line


def test_two_tests_with_one_name_are_refused() -> None:
    with pytest.raises(DocumentError) as raised:
        read(document("upper", tests=[{"input": {}, "expect": {}}] * 2).replace("&id", "&i").replace("*id", "*i"), {})
    assert [fault.code for fault in raised.value.faults] == ["R410"]


GOOD = {"name": "good", "input": {"payload": {"name": "x"}}, "expect": {}}
BAD = {"name": "bad", "input": {"payload": {"name": 1}}, "expect": {}}


def test_the_command_runs_tests_and_says_which_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "doc.yaml"
    path.write_text(document("upper", tests=[GOOD, BAD]), encoding="utf-8")
    assert main(["routes", "test", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"ok      good  ({path}:" in out
    assert "FAILED  bad" in out
    assert "outcome: expected done, got dead (AttributeError: " in out
    assert "2 tests, 1 failed" in out
    assert main(["routes", "test", str(path), "--only", "goo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tests"][0]["passed"]


def test_tests_of_documents_are_items_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "doc.yaml").write_text(document("upper", tests=[GOOD, BAD]), encoding="utf-8")
    (tmp_path / "wrong.yml").write_text("pipeline: wrong\ntests: []\n", encoding="utf-8")
    (tmp_path / "other.yaml").write_text("a: 1\n", encoding="utf-8")
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tupletree.routes.testing.pytest_plugin",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            str(tmp_path),
            f"--rootdir={tmp_path}",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "outcome: expected done, got dead" in ended.stdout
    assert "R202 the key version is missing" in ended.stdout
    assert "Traceback" not in ended.stdout
