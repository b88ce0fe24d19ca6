"""What a changed topology means for what is stored: the rules, on numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from tupletree.topology.changes.upgrades import StoredComponent, UpgradePlan, Words, plan_upgrade, read_words


def component(kind: str = "bolt", **parts: Any) -> dict[str, Any]:
    return {
        "kind": kind, "parallelism": 1, "replay": "runtime", "streams": {}, "inputs": {}, "state": None, "key": None,
        "holding": None, "shapes": {}, **parts,
    }  # fmt: skip


def plan(
    before: Any, after: Any, stored: dict[str, StoredComponent] | None = None, *drops: str, **renames: str
) -> UpgradePlan:
    return plan_upgrade(before, after, stored or {}, Words(renames, frozenset(drops)))


CHANGES = [
    ("state", "int", "str", StoredComponent(keys=3)),
    ("key", "str", "int", StoredComponent(keys=3)),
    ("holding", "window(length_s=1)", "window(length_s=2)", StoredComponent(held=3)),
    ("sink", "calls", ".jsonl files", StoredComponent(undelivered=3)),
    ("replay", "runtime", "source", StoredComponent(open=3)),
    ("inputs", {"a.A": "fields(x)"}, {"a.A": "fields(y)"}, StoredComponent(keys=3)),
    ("kind", "bolt", "sink", StoredComponent(keys=3)),
]


@pytest.mark.parametrize(("part", "was", "now", "stored"), CHANGES)
def test_what_cannot_be_carried_over_is_dropped_on_request(
    part: str, was: Any, now: Any, stored: StoredComponent
) -> None:
    more = {"state": "int"} if part == "inputs" else {}
    before, after = {"it": component(**{**more, part: was})}, {"it": component(**{**more, part: now})}
    (fault,) = plan(before, after, {"it": stored}).faults
    assert "--drop it" in fault.next_step
    assert str(stored) in fault.got
    found = plan(before, after, {"it": stored}, "it")
    assert (found.faults, found.drops) == ([], ["it"])


@pytest.mark.parametrize(("part", "was", "now", "stored"), CHANGES[:-1])
def test_it_may_change_while_nothing_of_it_is_stored(part: str, was: Any, now: Any, stored: StoredComponent) -> None:
    before, after = {"it": component(**{part: was})}, {"it": component(**{part: now})}
    assert not stored.is_empty
    assert plan(before, after).faults == []


def test_a_window_that_holds_nothing_and_changes_begins_without_what_it_remembers() -> None:
    before, after = {"it": component(holding="window(1)")}, {"it": component(holding="window(2)")}
    assert plan(before, after).resets == ["it"]


def test_a_spout_keeps_its_parallelism() -> None:
    (fault,) = plan({"it": component("spout")}, {"it": component("spout", parallelism=2)}, None, "it").faults
    assert fault.what == "parallelism changed from 1 to 2"
    assert plan({"it": component()}, {"it": component(parallelism=2)}).faults == []


def test_a_rename_takes_inputs_along_and_is_refused_where_it_is_none() -> None:
    before = {"a": component("spout"), "b": component(inputs={"a.A": "shuffle()"})}
    after = {"x": component("spout"), "b": component(inputs={"x.A": "shuffle()"})}
    found = plan(before, after, None, a="x")
    assert (found.faults, found.renames) == ([], {"a": "x"})
    assert [(step.component, step.decision) for step in found.steps] == [("x", "renamed"), ("b", "unchanged")]
    for renames in ({"aa": "x"}, {"a": "y"}, {"a": "b"}, {"b": "x"}):
        assert any(one.where.startswith("--rename") for one in plan(before, after, None, **renames).faults), renames


def test_no_component_is_given_the_name_of_another_one_of_before() -> None:
    """What is stored under an old name is found by it: it would count as that of the other component."""
    words = Words({"a": "b"})
    now = {"a": component("spout"), "c": component("spout")}, {"b": component("spout"), "c": component("spout")}
    (fault, taken, removed) = plan_upgrade(*now, {}, words, {"b": "c"}).faults
    assert (fault.what, fault.got) == (
        "the new name belonged to another component of this run",
        "what was 'b' is 'c' now",
    )
    assert (taken.where, removed.where) == ("b", "a")
    assert "--rename" not in removed.next_step
    fault = plan_upgrade(*now, {}, words, {"b": ""}).faults[0]
    assert fault.got == "what was 'b' is dropped"
    # Its own earlier name it may have again, with a word.
    assert plan_upgrade(*now, {}, words, {"b": "a"}).renames == {"a": "b"}
    taken, removed = plan_upgrade(*now, {}, Words(), {"b": "a"}).faults
    assert "--rename a=b" in taken.next_step
    assert "--rename a=b" in removed.next_step


def test_tuples_of_a_removed_input_are_never_said_to_be_dropped_and_kept() -> None:
    """They are dropped where a word says so of the holder: its producer may go on, for others."""
    spouts = {name: component("spout", streams={"Line": "x"}) for name in ("lines", "other")}
    before = {**spouts, "it": component(inputs={"lines.Line": "shuffle()", "other.Line": "shuffle()"})}
    after = {**spouts, "it": component(inputs={"lines.Line": "shuffle()"})}
    stored = {"it": StoredComponent(held=12, held_of={("lines", "Line"): 6, ("other", "Line"): 6})}
    for words in ([], ["other"], ["other.Line"]):
        (fault,) = plan(before, after, stored, *words).faults
        assert "it holds 6 tuples of other.Line" in fault.got
        assert "drop only these, and let their messages go on without them: --drop it.other.Line" in fault.next_step
        assert "all that is stored: --drop it" in fault.next_step
    assert plan(before, after, stored, "it").drops == ["it"]
    found = plan(before, after, stored, "it.other.Line")
    assert (found.faults, found.drops) == ([], [])
    (step,) = [one for one in found.steps if one.component == "it"]
    assert (step.decision, step.change) == (
        "dropped",
        "input 'other.Line' changed from shuffle() to nothing; 6 held tuples of it dropped",
    )
    assert plan(before, after, stored, "it.lines.Line").faults
    # The producer stays, and its stream is gone: the word for that says enough.
    narrower = {**after, "other": component("spout")}
    elsewhere = {**stored, "other": StoredComponent(streams={"Line": 6})}
    assert plan(before, narrower, elsewhere, "other.Line").faults == []
    assert plan(before, after, {"it": StoredComponent(held=6, held_of={("lines", "Line"): 6})}).faults == []
    # Of a spout that is gone, its word is enough: its messages are forgotten. Those of a bolt's go on.
    gone = {"lines": spouts["lines"], "it": after["it"]}
    assert plan(before, gone, stored, "other").faults == []
    bolt = {**before, "other": component(streams={"Line": "x"})}
    assert [one.where for one in plan(bolt, gone, stored, "other").faults] == ["it"]
    assert plan(bolt, gone, stored, "other", "it").faults == []
    assert plan(bolt, gone, stored, "other", "it.other.Line").faults == []
    # The producer has another name in the same start.
    renamed = {"lines": spouts["lines"], "more": spouts["other"], "it": after["it"]}
    assert plan(before, renamed, stored, other="more").faults
    assert plan(before, renamed, stored, "it.more.Line", other="more").faults == []


def test_the_advice_for_a_name_that_is_taken_is_none_that_is_refused() -> None:
    before, after = ({name: component() for name in names} for names in ("ab", "bc"))
    fault = plan(before, after, None, a="b", b="c").faults[0]
    assert fault.what == "something is stored under the new name"
    assert "drop" not in fault.next_step
    assert "rename" not in fault.next_step


def test_a_word_of_before_does_nothing_and_one_that_names_nothing_is_an_error() -> None:
    now = {"x": component("spout")}
    words = Words({"a": "x"}, frozenset({"gone", "x.Line.old"}))
    assert plan_upgrade(now, now, {}, words, {"a": "x", "gone": ""}).faults == []
    (fault,) = plan_upgrade(now, now, {}, Words(drops=frozenset({"gonne"})), {"a": "x", "gone": ""}).faults
    assert fault.what == "there is nothing of that name to drop"


def test_words_are_read_from_a_command_line() -> None:
    assert read_words(["a=b"], ["c"]) == Words({"a": "b"}, frozenset({"c"}))
    for text in ("a", "a=", "=b", "a=a"):
        with pytest.raises(ValueError, match=text):
            read_words([text], [])
