from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tupletree.routes import RouteMessage
from tupletree.routes.adapters import Condition
from tupletree.routes.adapters.paths import Path

MESSAGE = RouteMessage(
    {
        "kind": "md",
        "size": 12,
        "rate": 0.5,
        "nan": float("nan"),
        "none": None,
        "flag": True,
        "tags": ["a", {"b": [1, 2]}],
        "with.dot": {"it's": 1},
        "raw": b"md",
        "bad": "\ud800",
    },
    headers={"source": "web", "content-type": "text/markdown", "a.b": "c"},
    id="m1",
    parents=("p1",),
    executions=("e1", "e2"),
)


def holds(field: str, operator: str, *value: Any) -> bool:
    given = {"value": value[0]} if value else {}
    return Condition.model_validate({"field": field, "operator": operator, **given}).holds(MESSAGE)


@pytest.mark.parametrize(
    ("field", "operator", "value"),
    [
        ("payload.kind", "equals", "md"),
        ("payload.size", "equals", 12.0),
        ("payload.none", "equals", None),
        ("payload.flag", "equals", True),
        ("payload.tags", "equals", ["a", {"b": [1, 2]}]),
        ("payload.kind", "not_equals", "html"),
        ("payload.flag", "not_equals", 1),
        ("payload.kind", "not_equals", None),
        ("payload.kind", "matches", "^m"),
        ("payload.kind", "matches", "d"),
        ("headers.content-type", "matches", r"^text/\w+$"),
        ("payload.kind", "in", ["md", "txt"]),
        ("payload.size", "in", ["md", 12]),
        ("payload.none", "exists", True),
        ("payload.nothing", "exists", False),
        ("payload.nothing.at[3].all", "exists", False),
        ("payload.size", "gt", 11),
        ("payload.size", "gte", 12),
        ("payload.rate", "lt", 1),
        ("payload.rate", "lte", 0.5),
        ("payload.kind", "gt", "ma"),
        ("payload.kind", "contains", "d"),
        ("payload.tags", "contains", {"b": [1, 2]}),
        ("payload", "contains", "kind"),
        ("payload.tags[1].b[-1]", "equals", 2),
        ("payload['with.dot'][\"it's\"]", "equals", 1),
        ("headers.source", "equals", "web"),
        ("headers['a.b']", "equals", "c"),
        ("message.id", "equals", "m1"),
        ("message.execution", "equals", "e1"),
        ("message.executions", "contains", "e2"),
        ("message.parents", "equals", ["p1"]),
    ],
)
def test_a_condition_holds(field: str, operator: str, value: Any) -> None:
    assert holds(field, operator, value)


@pytest.mark.parametrize(
    ("field", "operator", "value"),
    [
        ("payload.kind", "equals", "MD"),
        ("payload.flag", "equals", 1),
        ("payload.size", "equals", "12"),
        ("payload.nan", "equals", float("nan")),
        ("payload.nothing", "equals", None),
        ("payload.nothing", "not_equals", "a"),
        ("payload.kind", "matches", "^d"),
        ("payload.size", "matches", "12"),
        ("payload.raw", "matches", "md"),
        ("payload.bad", "matches", "."),
        ("payload.flag", "in", [1]),
        ("payload.tags", "in", ["a"]),
        ("payload.none", "exists", False),
        ("payload.nothing", "exists", True),
        ("payload.size", "gt", 12),
        ("payload.size", "gt", "1"),
        ("payload.kind", "gt", 1),
        ("payload.flag", "gt", 0),
        ("payload.nan", "gt", 0),
        ("payload.nan", "lte", 0),
        ("payload.none", "lt", 1),
        ("payload.tags", "lt", 1),
        ("payload.nothing", "lt", 1),
        ("payload.size", "contains", 1),
        ("payload.kind", "contains", 1),
        ("payload.tags", "contains", True),
        ("payload.tags[9]", "contains", 1),
        ("payload.kind[0]", "equals", "m"),
        ("payload.tags.a", "exists", True),
        ("headers.none", "matches", ".*"),
    ],
)
def test_a_condition_does_not_hold_where_a_path_is_missing_or_types_differ(
    field: str, operator: str, value: Any
) -> None:
    assert not holds(field, operator, value)


def test_equals_is_the_default_and_exists_needs_no_value() -> None:
    assert Condition(field="payload.kind", value="md").holds(MESSAGE)
    assert holds("payload.kind", "exists")


def test_conditions_are_joined() -> None:
    yes, no = {"field": "payload.kind", "value": "md"}, {"field": "payload.kind", "value": "html"}
    for joined, expected in [
        ({"all_of": [yes, yes]}, True),
        ({"all_of": [yes, no]}, False),
        ({"any_of": [no, yes]}, True),
        ({"any_of": [no, no]}, False),
        ({"not": no}, True),
        ({"not": {"any_of": [no, {"not": {"all_of": [yes]}}]}}, True),
    ]:
        assert Condition.model_validate(joined).holds(MESSAGE) is expected, joined


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({}, "expected field"),
        ({"value": 1}, "expected field"),
        ({"field": "payload.kind"}, "equals needs a value"),
        ({"field": "payload.kind", "operator": "gt"}, "gt needs a value"),
        ({"field": "payload.kind", "operator": "is", "value": 1}, "'equals', 'not_equals'"),
        ({"field": "payload.kind", "operater": "equals", "value": 1}, "operater"),
        ({"field": "kind", "value": 1}, "'kind' is no path"),
        ({"field": "", "value": 1}, "'' is no path"),
        ({"field": "payload..kind", "value": 1}, "cannot be read from '..kind'"),
        ({"field": "payload.a[x]", "value": 1}, "cannot be read from '\\[x\\]'"),
        ({"field": "payloads.kind", "value": 1}, "is no path"),
        ({"field": "message.kind", "value": 1}, "nothing of a message"),
        ({"field": "message", "value": 1}, "nothing of a message"),
        ({"field": "headers.a.b", "value": 1}, "looks into a header"),
        ({"field": "payload.kind", "operator": "in", "value": "md"}, "in takes a list"),
        ({"field": "payload.kind", "operator": "exists", "value": "yes"}, "exists takes true or false"),
        ({"field": "payload.kind", "operator": "gt", "value": [1]}, "gt takes a number or text"),
        ({"field": "payload.kind", "operator": "gt", "value": True}, "gt takes a number or text"),
        ({"field": "payload.kind", "operator": "matches", "value": 1}, "matches takes a regular expression"),
        ({"field": "payload.kind", "operator": "matches", "value": "("}, "missing \\)"),
        ({"field": "payload.kind", "operator": "matches", "value": "(?=a)"}, "expression of RE2"),
        ({"field": "payload.kind", "operator": "matches", "value": "(a{1000}){1000}"}, "expression of RE2"),
        ({"all_of": []}, "at least one condition"),
        ({"all_of": [{"field": "payload.a", "value": 1}], "any_of": [{"field": "payload.a", "value": 1}]}, "one of"),
        ({"not": {"field": "payload.a", "value": 1}, "field": "payload.b", "value": 1}, "one of"),
    ],
)
def test_a_wrong_condition_is_found_when_the_document_is_read(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        Condition.model_validate(wrong)


def test_an_expression_that_backtracks_elsewhere_takes_no_time() -> None:
    evil = Condition(field="payload", operator="matches", value=r"^(a+)+$|^(\w+\s?)*$")
    started = time.perf_counter()
    assert not evil.holds(RouteMessage("a" * 50_000 + "!"))
    assert time.perf_counter() - started < 2


def test_conditions_and_paths_pickle() -> None:
    condition = Condition.model_validate(
        {
            "any_of": [
                {"not": {"field": "payload.kind", "operator": "matches", "value": "^m"}},
                {"field": "headers.source", "operator": "exists"},
            ]
        }
    )
    copy = pickle.loads(pickle.dumps(condition))
    assert copy == condition
    assert copy.holds(MESSAGE)
    assert pickle.loads(pickle.dumps(Path("payload.kind"))).get(MESSAGE) == "md"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(
    payload=json_values, value=json_values, field=st.sampled_from(["payload", "payload.a", "payload[0].b", "headers.a"])
)
def test_a_condition_never_raises(payload: Any, value: Any, field: str) -> None:
    message = RouteMessage(payload)
    for operator in ("equals", "not_equals", "in", "gt", "gte", "lt", "lte", "contains", "exists"):
        try:
            condition = Condition.model_validate({"field": field, "operator": operator, "value": value})
        except ValidationError:
            continue
        assert condition.holds(message) in {True, False}
