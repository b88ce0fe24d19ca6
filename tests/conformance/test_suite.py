"""The suite itself: it says what is wrong with a runtime, and believes no gap that it can check."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from tests.conformance.virtual import VirtualRuntime
from tupletree import Topology
from tupletree.config import Options
from tupletree.testing.conformance import SCENARIOS, Ended, Gap, Need, NotConformingError, Scenario, groups, play
from tupletree.testing.conformance.feeding import heard
from tupletree.testing.conformance.runtime import RuntimeUnderTest
from tupletree.topology.model import GroupingKind
from tupletree.tracking.outcomes import DeadLetter, FailureKind

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


class Tampered(VirtualRuntime):
    """A runtime that does everything right, and then does something to it."""

    def __init__(self, tamper: Callable[[Topology, Ended], Ended]) -> None:
        self.tamper = tamper

    def run(self, topology: Topology, options: Options, state_dir: Path) -> Ended:
        return self.tamper(topology, super().run(topology, options, state_dir))


def lose_rows(topology: Topology, ended: Ended) -> Ended:
    for draft in topology.drafts:
        if draft.spec.kind == "sink":
            for file in draft.spec.body.directory.glob("*.jsonl"):
                file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    return ended


def ack_twice(topology: Topology, ended: Ended) -> Ended:
    for draft in topology.drafts:
        if draft.spec.kind == "spout":
            acked = heard(draft.spec.body.key).acked
            acked[next(iter(acked))] += 1
    return ended


def say_less(topology: Topology, ended: Ended) -> Ended:
    return dataclasses.replace(ended, emitted=ended.emitted + 1)


def call_it_an_error(topology: Topology, ended: Ended) -> Ended:
    letters = [
        _with_kind(letter, FailureKind.ERROR) if letter.failure.kind is FailureKind.TIMEOUT else letter
        for letter in ended.letters
    ]
    return dataclasses.replace(ended, letters=letters)


def _with_kind(letter: DeadLetter, kind: FailureKind) -> DeadLetter:
    return replace(letter, failure=replace(letter.failure, kind=kind))


@pytest.mark.parametrize(
    ("tamper", "scenario", "said"),
    [
        (lose_rows, "diamond", "pieces"),
        (ack_twice, "retries", "acks that source heard"),
        (say_less, "filtered", "emitted must be acked"),
        (call_it_an_error, "alternate-unacked", "the failure"),
    ],
)
def test_a_runtime_that_does_not_conform_is_told_what_and_where(
    tamper: Callable[[Topology, Ended], Ended], scenario: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(NotConformingError, match=said) as caught:
        play(Tampered(tamper), [BY_NAME[scenario]], tmp_path).check(BY_NAME[scenario])
    assert f"{scenario} on virtual" in str(caught.value)


def test_a_gap_that_says_refused_is_not_believed_of_a_runtime_that_runs_it(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    runtime.gaps = {Need.TICKS: Gap("we say so")}
    with pytest.raises(NotConformingError, match="said to refuse it, and ran it"):
        play(runtime, [BY_NAME["ticks"]], tmp_path)


def test_a_gap_that_cannot_be_asked_for_is_skipped(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    runtime.gaps = {Need.INACTIVE_START: Gap("not yet", refused=False)}
    play(runtime, [BY_NAME["inactive-start"]], tmp_path).check(BY_NAME["inactive-start"])
    assert not (tmp_path / "inactive-start").exists()


class Forgetful(VirtualRuntime):
    """Neither starts inactive spouts nor says that it cannot."""

    run_from_inactive = RuntimeUnderTest.run_from_inactive


def test_a_runtime_that_forgot_the_inactive_start_is_told_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(NotConformingError, match=r"override run_from_inactive, or name Need\.INACTIVE_START"):
        play(Forgetful(), [BY_NAME["inactive-start"]], tmp_path)


def test_every_scenario_has_a_name_of_its_own_and_says_what_it_is_about() -> None:
    assert len(BY_NAME) == len(SCENARIOS)
    assert [scenario.name for scenario in SCENARIOS if not type(scenario).__doc__] == []


def test_every_grouping_has_a_scenario() -> None:
    asked = {f"grouping-{kind.replace('_', '-')}" for kind in get_args(GroupingKind)}
    assert asked <= BY_NAME.keys()


def test_groups_hold_every_scenario_once_and_only_what_may_share_a_run() -> None:
    runtime = VirtualRuntime()
    grouped = groups(runtime, SCENARIOS)
    assert sorted(scenario.name for group in grouped for scenario in group) == sorted(BY_NAME)
    for group in grouped:
        assert len({frozenset(scenario.options(runtime).items()) for scenario in group}) == 1
        assert len(group) == 1 or not any(_is_peculiar(scenario) for scenario in group)


def _is_peculiar(scenario: Scenario) -> bool:
    return scenario.starts_inactive or scenario.allow_cycle
