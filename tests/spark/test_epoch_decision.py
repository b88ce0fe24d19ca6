"""An epoch's decision is a value: deciding changes nothing, and nothing is changed before its entry is written."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import QUICK, write_text
from tupletree.config import resolve_options
from tupletree.errors import TupletreeError
from tupletree.runtimes import crash_points
from tupletree.runtimes.api import RunRequest, Summary
from tupletree.runtimes.spark.settle import decision as decisions
from tupletree.runtimes.spark.settle.accounts import Accounts
from tupletree.runtimes.spark.settle.decision import EpochDecider, EpochDecision
from tupletree.runtimes.spark.settle.epoch_runs import CountedRun
from tupletree.testing.in_process import start_in_process
from tupletree.tracking.pending_decision import Times

LINES = 34
POISON = 2
HANG_S = 30.0
KINDS = [("tests.spark.counting", "file"), ("tests.spark.counting", "splits"), ("tests.spark.held", "file")]


class Crash(BaseException):
    """In the place of the end of the process."""


def everything(accounts: Accounts) -> dict[str, Any]:
    """All that the driver knows, as plain data, and nothing that changes with it."""
    pending = accounts.pending
    return {
        "pending": pending.decider(0.0, 0.0).base(accounts.encode_value),
        "changes": pending.decider(0.0, 0.0).changes(accounts.encode_value),
        "in flight": pending.roots_in_flight(),
        "counters": repr(pending.counters),
        "size": pending.size,
        "trees": accounts.trees.all(),
        "attempts": dict(accounts.trees.attempts),
        "next": accounts.trees.next_s(),
        "resuming": accounts.trees.resuming(1e18),
        "waiting": (accounts.waiting.files(), accounts.waiting.roots(), accounts.waiting_names),
        "gone": list(accounts.gone),
        "state": dict(accounts.state),
        "kept": dict(accounts.kept),
        "totals": repr(accounts.totals),
        "inputs": list(accounts.inputs),
        "counted": dict(accounts.counted),
        "replays": (set(accounts.replays), list(accounts.accepted)),
        "settled": (accounts.settled, accounts.joined_taken, accounts.since_base),
    }


def run(place: Path, module: str, source: str, base_epochs: int) -> Summary:
    decisions.BASE_EPOCHS = base_epochs  # the caller's patch undoes it
    t = importlib.import_module(module).topology(place, source=source)
    settings = resolve_options(code={**QUICK, **t.build().options})
    request = RunRequest(t, settings, None, place / "state", append=False, master="", redact=None)
    return start_in_process(request).wait(HANG_S)


@pytest.fixture(autouse=True)
def _undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "BASE_EPOCHS", decisions.BASE_EPOCHS)


@pytest.mark.parametrize(("module", "source"), KINDS)
@pytest.mark.parametrize("base_epochs", [2, 64])
def test_deciding_twice_comes_to_the_same_and_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, base_epochs: int
) -> None:
    write_text(tmp_path, LINES)
    real = EpochDecider.decide
    entries = []

    def decide(self: EpochDecider, accounts: Accounts, counted: CountedRun, times: Times) -> EpochDecision:
        before = everything(accounts)
        first, second = real(self, accounts, counted, times), real(self, accounts, counted, times)
        assert first == second
        assert everything(accounts) == before
        entries.append(first.entry)
        return second

    monkeypatch.setattr(EpochDecider, "decide", decide)
    ended = run(tmp_path, module, source, base_epochs)
    assert (ended.acked, ended.dead, ended.open) == (LINES - POISON, POISON, 0)
    assert any(entry.failed for entry in entries)
    assert any(entry.base for entry in entries) or base_epochs > 2


@pytest.mark.parametrize(("module", "source"), KINDS)
@pytest.mark.parametrize("at", [1, 3])
def test_a_crash_between_the_decision_and_the_commit_leaves_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, at: int
) -> None:
    write_text(tmp_path, LINES)
    real = EpochDecider.decide
    seen: list[tuple[Accounts, dict[str, Any]]] = []
    checked = 0

    def decide(self: EpochDecider, accounts: Accounts, counted: CountedRun, times: Times) -> EpochDecision:
        decision = real(self, accounts, counted, times)
        seen.append((accounts, everything(accounts)))
        return decision

    def crash(name: str) -> None:
        nonlocal checked
        if name == "settle.before_log" and len(seen) == at:
            accounts, before = seen[-1]
            assert everything(accounts) == before
            checked += 1
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(EpochDecider, "decide", decide)
        patched.setattr(crash_points, "on_reached", crash)
        with pytest.raises((TupletreeError, Crash)):
            run(tmp_path, module, source, 64)
    assert checked == 1
    ended = run(tmp_path, module, source, 64)
    assert (ended.acked, ended.dead, ended.open) == (LINES - POISON, POISON, 0)
