"""Which messages must not count yet: against a naive oracle that looks at all pairs, over random messages."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tupletree.tracking.key_lines import (
    ANY,
    MOST_KEYS,
    Behaviour,
    Keys,
    Turn,
    Waiting,
    behind,
    keys_known,
    remembered,
    turns,
)

BELOW = {"first": {"first", "between", "second", "end"}, "second": {"second", "end"}}
COMPONENTS = ("above", "first", "between", "second", "end", "beside")

keys = st.dictionaries(
    st.sampled_from([*BELOW]), st.frozensets(st.integers(ANY, 3), min_size=1, max_size=3), max_size=2
)


@st.composite
def messages(draw: st.DrawFn) -> list[Behaviour]:
    found = []
    for number in range(draw(st.integers(1, 9))):
        failed_at = draw(st.just(frozenset[str]()) | st.frozensets(st.sampled_from(COMPONENTS), min_size=1, max_size=2))
        known = draw(keys)
        if not failed_at:
            known = {bolt: whole for bolt, hashes in known.items() if (whole := hashes - {ANY})}
        found.append(Behaviour(number, known, draw(st.booleans()), failed_at, draw(st.booleans()), draw(st.booleans())))
    return draw(st.permutations(found))


def meet(earlier: Keys, later: Keys) -> set[str]:
    """Ordered bolts at which the later one is behind the earlier one."""
    return {
        bolt
        for bolt in earlier.keys() & later.keys()
        if (mine := later[bolt] - {ANY}) and (ANY in earlier[bolt] or earlier[bolt] & mine)
    }


def waits_in_the_end(one: Behaviour, found: set[int]) -> bool:
    return one.waits or one.number in found or (bool(one.failed_at) and not one.dies)


@given(messages())
def test_nothing_counts_that_has_a_key_of_something_earlier_that_waits(given_: list[Behaviour]) -> None:
    found = behind(given_, BELOW)
    ordered = sorted(given_, key=lambda one: one.number)
    for earlier, later in combinations(ordered, 2):
        if waits_in_the_end(earlier, found) and meet(earlier.keys, later.keys):
            assert waits_in_the_end(later, found) or later.failed_at


@given(messages())
def test_nothing_is_behind_without_a_reason(given_: list[Behaviour]) -> None:
    found = behind(given_, BELOW)
    by_number = {one.number: one for one in given_}
    for number in found:
        one = by_number[number]
        assert not one.waits
        ahead = [other for other in given_ if other.number < number and waits_in_the_end(other, found)]
        bolts = set().union(*(meet(other.keys, one.keys) for other in ahead))
        assert bolts
        if one.failed_at:
            assert not one.crashed
            assert any(one.failed_at & BELOW[bolt] for bolt in bolts)


@given(messages())
def test_a_failure_above_all_ordered_bolts_where_a_message_is_behind_is_its_own(given_: list[Behaviour]) -> None:
    found = behind(given_, BELOW)
    for one in given_:
        if one.failed_at and one.failed_at <= {"above", "beside"}:
            assert one.number not in found


@given(messages())
def test_the_first_message_is_never_behind_so_that_this_ends(given_: list[Behaviour]) -> None:
    assert 0 not in behind(given_, BELOW)


def test_a_message_that_is_dead_holds_up_nothing() -> None:
    dead = Behaviour(0, {"first": frozenset({ANY})}, failed_at={"above"}, dies=True)
    assert behind([dead, Behaviour(1, {"first": frozenset({1})})], BELOW) == set()


def test_what_is_behind_holds_its_other_keys_at_every_ordered_bolt() -> None:
    given_ = [
        Behaviour(0, {"first": frozenset({1})}, failed_at={"first"}),
        Behaviour(1, {"first": frozenset({1}), "second": frozenset({7})}),
        Behaviour(2, {"first": frozenset({2}), "second": frozenset({7})}),
        Behaviour(3, {"first": frozenset({2}), "second": frozenset({8})}),
        Behaviour(4, {"first": frozenset({3}), "second": frozenset({9})}),
    ]
    assert behind(given_, BELOW) == {1, 2, 3}


def test_a_failure_at_an_ordered_bolt_behind_something_earlier_is_taken_back() -> None:
    """An update that fails because what creates its object failed before it."""
    create = Behaviour(0, {"first": frozenset({1})}, failed_at={"end"})
    update = Behaviour(1, {"first": frozenset({1})}, failed_at={"first"}, dies=True)
    assert behind([create, update], BELOW) == {1}


@given(messages(), st.lists(st.integers(0, 50), min_size=9, max_size=9))
def test_what_is_put_back_goes_out_with_the_last_of_what_it_waits_for(
    given_: list[Behaviour], times: list[int]
) -> None:
    waiting = {one.number: Waiting(one.keys, float(times[one.number])) for one in given_}
    put_back = {one.number for one in given_ if one.waits}
    found = turns(waiting, put_back)
    assert found.keys() == put_back
    final = {number: found[number].due_s if number in found else one.due_s for number, one in waiting.items()}
    for number in put_back:
        ahead = [other for other in waiting if other < number and meet(waiting[other].keys, waiting[number].keys)]
        assert final[number] == max([waiting[number].due_s, *(final[other] for other in ahead)])
        behind_, bolt = found[number].behind, found[number].bolt
        assert (behind_ is None) == (not ahead)
        if behind_ is not None:
            last = max(final[other] for other in ahead)
            assert behind_ == min(other for other in ahead if final[other] == last)
            assert bolt in meet(waiting[behind_].keys, waiting[number].keys)


def test_what_waits_for_nothing_goes_out_at_once() -> None:
    assert turns({5: Waiting({"first": frozenset({1})}, -math.inf)}, {5}) == {5: Turn(-math.inf)}


def test_a_message_of_very_many_keys_counts_as_one_that_may_have_any() -> None:
    many = frozenset(range(MOST_KEYS + 1))
    keys = keys_known({"first": many, "second": frozenset({1})}, ("second", "third"))
    assert keys == {"first": many, "second": {1, ANY}, "third": {ANY}}
    assert remembered(keys) == {"first": {ANY}, "second": {1, ANY}, "third": {ANY}}


def test_a_message_of_very_many_keys_is_behind_each_of_them() -> None:
    failed = Behaviour(0, {"first": frozenset({MOST_KEYS})}, failed_at={"first"})
    assert behind([failed, Behaviour(1, {"first": frozenset(range(MOST_KEYS + 1))})], BELOW) == {1}


def test_what_failed_in_two_places_is_behind_for_the_keys_that_it_has_shown() -> None:
    """It failed above the ordered bolt, too, so it may have other keys, but with the one that came it was behind."""
    earlier = Behaviour(0, {"first": frozenset({1})}, failed_at={"first"})
    later = Behaviour(1, {"first": frozenset({1, ANY})}, failed_at={"above", "first"}, dies=True)
    assert behind([earlier, later], BELOW) == {1}
