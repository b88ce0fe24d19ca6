"""Upgrades: what becomes of everything that is stored when a changed topology starts on it.

One function decides, for the start and for `tupletree check --state-dir` alike. Additions and what only widens a class
are accepted; what would lose or move something needs a word of the user's (`--rename`, `--drop`); what cannot be read
is refused, all of it at once. Pure: what is stored is given as numbers. Refuses to carry anything out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from tupletree.errors import Finding, did_you_mean, one_of
from tupletree.texts import counted
from tupletree.topology.changes.fingerprint import Difference, Fingerprint, differences, renamed

Decision: TypeAlias = Literal["unchanged", "accepted", "renamed", "dropped", "refused"]


@dataclass(frozen=True)
class Words:
    """What the user said: `renames` has old → new; `drops` what may be lost."""

    renames: Mapping[str, str] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()


@dataclass
class StoredComponent:
    """What is stored of one component.

    Attributes:
        keys: of its state.
        held: tuples that it holds, or that are to arrive at it.
        open: of a spout: messages that are neither acked nor dead.
        letters: of a spout: its dead letters.
        undelivered: of a sink: rows that are committed and that it does not have yet.
        has_position: of a spout: whether it has one.
        streams: stream of it → tuples that other components hold.
        held_of: (component, stream) → tuples of it among `held`.
    """

    keys: int = 0
    held: int = 0
    open: int = 0
    letters: int = 0
    undelivered: int = 0
    has_position: bool = False
    streams: dict[str, int] = field(default_factory=dict)
    held_of: dict[tuple[str, str], int] = field(default_factory=dict)

    def __str__(self) -> str:
        """What there is, in words; `nothing` if there is none."""
        counts = [
            (self.keys, "key of state", "keys of state"),
            (self.held, "held tuple", "held tuples"),
            (self.open, "open message", "open messages"),
            (self.letters, "dead letter", "dead letters"),
            (self.undelivered, "undelivered row", "undelivered rows"),
        ]
        counts += [
            (one, f"tuple of {name} held elsewhere", f"tuples of {name} held elsewhere")
            for name, one in self.streams.items()
        ]
        found = [f"{count:,} {single if count == 1 else several}" for count, single, several in counts if count]
        return ", ".join([*found, *["the position of its source"] * self.has_position]) or "nothing"

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it would be missed."""
        return str(self) == "nothing"


@dataclass(frozen=True)
class Step:
    """One line of a plan: what becomes of a component, or of a part of it, and why.

    Attributes:
        component: its name now, or the last one that it had.
        decision: what becomes of it.
        change: what changed; empty for nothing.
        stored: what there is of it, in words.
    """

    component: str
    decision: Decision
    change: str
    stored: str


@dataclass
class UpgradePlan:
    """What a start does with what is stored.

    Attributes:
        steps: by component, in the order of the topology; dropped and refused ones that are no more come last.
        faults: why the start is refused; empty: it is not.
        renames: old → new, to be carried out.
        drops: components all that is stored of which is dropped.
        resets: components whose holders begin without what they remember, because nothing is held.
    """

    steps: list[Step] = field(default_factory=list)
    faults: list[Finding] = field(default_factory=list)
    renames: dict[str, str] = field(default_factory=dict)
    drops: list[str] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)

    @property
    def is_change(self) -> bool:
        """Whether anything has changed."""
        return any(step.decision != "unchanged" for step in self.steps)


def read_words(renames: Iterable[str], drops: Iterable[str]) -> Words:
    """The words of a command line: each rename is `old=new`. Raises ValueError, with the text that is none."""
    found: dict[str, str] = {}
    for text in renames:
        old, _, new = text.partition("=")
        if not old or not new or old == new:
            raise ValueError(text)
        found[old] = new
    return Words(found, frozenset(drops))


def plan_upgrade(
    stored: Fingerprint,
    current: Fingerprint,
    holdings: Mapping[str, StoredComponent],
    words: Words,
    past: Mapping[str, str] | None = None,
) -> UpgradePlan:
    """Decide about every difference.

    Args:
        stored: the topology that the last start had.
        current: the one that is to start.
        holdings: component, by its stored name → what is stored of it; left out are those with nothing.
        words: what the user said. Words that an earlier start has carried out do nothing.
        past: components that were renamed or dropped earlier: name → the name that it has now, or "" for dropped.
    """
    return _Planning(stored, current, holdings, words, past or {}).plan()


def _with_names(stored: StoredComponent, names: Mapping[str, str]) -> StoredComponent:
    """The same, with the names that producers have now."""
    held_of = {(names.get(producer, producer), stream): one for (producer, stream), one in stored.held_of.items()}
    return replace(stored, held_of=held_of)


class _Planning:
    def __init__(
        self,
        stored: Fingerprint,
        current: Fingerprint,
        holdings: Mapping[str, StoredComponent],
        words: Words,
        past: Mapping[str, str],
    ) -> None:
        self._past = past
        self._words = words
        self._current = current
        self._found = UpgradePlan()
        self._found.renames = self._renames(stored)
        self._before = renamed(stored, self._found.renames)
        names = self._found.renames
        self._holdings = {names.get(name, name): _with_names(one, names) for name, one in holdings.items()}
        self._used: set[str] = set()

    def plan(self) -> UpgradePlan:
        found = self._found
        changed: dict[str, list[Difference]] = {}
        for one in differences(self._before, self._current):
            changed.setdefault(one.component, []).append(one)
        origins = {new: old for old, new in found.renames.items()}
        for name in [*self._current, *(name for name in self._before if name not in self._current)]:
            if name in origins:
                self._step(name, "renamed", f"it was {origins[name]!r}")
            if name in changed:
                self._decide(name, changed[name])
            elif name not in origins:
                self._step(name, "unchanged", "")
        self._refuse_unused()
        return found

    # --- words ----------------------------------------------------------------------------------------------------

    def _renames(self, stored: Fingerprint) -> dict[str, str]:
        found: dict[str, str] = {}
        for old, new in self._words.renames.items():
            if old not in stored and self._past.get(old) == new:
                continue  # an earlier start has carried it out
            fault = self._rename_fault(stored, old, new, new in found.values())
            if fault is None:
                found[old] = new
            else:
                what, *rest = fault
                self._found.faults.append(Finding(what, f"--rename {old}={new}", *rest))
        return found

    def _rename_fault(
        self, stored: Fingerprint, old: str, new: str, is_taken: bool
    ) -> tuple[str, str, str, str] | None:
        """What is wrong with a rename: what, got, expected, next step."""
        if old not in stored:
            what = "there is no such component to rename"
            return what, old, one_of(stored), did_you_mean(old, stored)
        if new not in self._current:
            what = "the topology has no component of the new name"
            return what, new, one_of(self._current), did_you_mean(new, self._current)
        if new in stored:
            what = "something is stored under the new name"
            step = "give the component a name that no component of this run has had"
            return what, new, "a name that is new", step
        if self._past.get(new, old) != old:
            what, now = "the new name belonged to another component of this run", self._past[new]
            got = f"what was {new!r} is {now!r} now" if now else f"what was {new!r} is dropped"
            step = "give the component another name, or start with a fresh --state-dir"
            return what, got, "a name that no other component of this run has had", step
        if old in self._current:
            what = "the topology has a component of the old name, too"
            return what, old, "a name that is gone", "name the component that is gone, or leave the word out"
        if is_taken:
            return "two components are renamed to one", new, "a new name each", ""
        was, now = stored[old]["kind"], self._current[new]["kind"]
        if was != now:
            return "a component of another kind has the new name", f"a {now}", f"a {was}", ""
        return None

    def _has_word(self, *words: str) -> bool:
        found = [word for word in words if word in self._words.drops]
        self._used.update(found)
        return bool(found)

    def _refuse_unused(self) -> None:
        """A misspelt word must not look as if it had been heard; one that is not needed, or no more, does nothing."""
        known = {*self._before, *self._past, *self._current}
        for word in sorted(self._words.drops - self._used):
            if word not in known and not any(word.startswith(f"{name}.") for name in known):
                self._fault(
                    "there is nothing of that name to drop",
                    f"--drop {word}",
                    word,
                    one_of(self._before),
                    did_you_mean(word, self._before),
                )

    # --- differences ----------------------------------------------------------------------------------------------

    def _decide(self, name: str, changes: list[Difference]) -> None:
        first = changes[0]
        if first.part == "component":
            self._decide_whole(name, first)
        elif any(one.part == "kind" for one in changes):
            (kind,) = (one for one in changes if one.part == "kind")
            self._need_drop(name, kind.text, f"a {kind.now} cannot have what a {kind.was} left")
        else:
            for one in changes:
                self._decide_part(one)

    def _decide_whole(self, name: str, change: Difference) -> None:
        if change.kind == "added":
            if self._past.get(name):
                self._fault(
                    "the name belonged to another component of this run",
                    name,
                    f"what was {name!r} is {self._past[name]!r} now",
                    "a name that no component of this run has had",
                    f"{self._way_back(name)}take another name, or start with a fresh --state-dir",
                )
            self._step(name, "accepted", "added")
            return
        kind = self._before[name]["kind"]
        fresh = [one for one in self._current if one not in self._before and self._current[one]["kind"] == kind]
        ways = [f"--rename {name}={one}" for one in fresh if self._past.get(one, name) == name][:3]
        if self._has_word(name):
            self._drop(name, "removed")
            return
        self._step(name, "refused", "removed")
        self._fault(
            change.text,
            name,
            f"stored: {self._at(name)}",
            "the component, or a word",
            f"put it back, or say what becomes of it: {' or '.join([*ways, f'--drop {name}'])}",
        )

    def _way_back(self, name: str) -> str:
        """The word that gives a component its earlier name again, if that is what the topology looks like."""
        now = self._past[name]
        return f"if it is that one: --rename {now}={name}; else " if now not in self._current else ""

    def _decide_part(self, one: Difference) -> None:
        name, at = one.component, self._at(one.component)
        if one.kind in {"added", "moved", "widened"}:
            self._step(name, "accepted", one.text)
        elif one.part == "parallelism":
            self._decide_parallelism(one)
        elif one.part == "stream":
            self._decide_stream(one)
        elif one.part == "input":
            self._decide_input(one)
        elif one.part in {"state", "key"}:
            self._decide_state(one)
        elif one.part == "holding":
            if not at.held:
                self._found.resets.append(name)
                self._step(name, "accepted", one.text)
            else:
                self._need_drop(name, one.text, "tuples that are held would come together in other ways", drains=True)
        elif one.part == "sink":
            self._accept_if(one, not at.undelivered, "rows that are committed wait in the old form")
        else:  # replay: who tries again what is open
            self._accept_if(one, not at.open, "open messages are tried again as it was")

    def _decide_parallelism(self, one: Difference) -> None:
        """That of bolts and sinks may change (`driver.rescale` refuses what belongs to a task)."""
        if self._current[one.component]["kind"] != "spout":
            self._step(one.component, "accepted", one.text)
            return
        step = "each task of a spout has its own position: go back to that parallelism"
        self._refuse(one.component, one.text, str(self._at(one.component)), "the parallelism of before", step)

    def _decide_stream(self, one: Difference) -> None:
        at = self._at(one.component)
        tuples = at.open + at.streams.get(one.name, 0)
        word = f"{one.component}.{one.what}" if one.what else f"{one.component}.{one.name}"
        if one.kind == "removed":
            if tuples and not self._has_word(word, one.component):
                self._refuse(
                    one.component,
                    one.text,
                    f"{tuples:,} tuples and messages with it",
                    "nothing that has it, or a word",
                    f"end them with `tupletree drain` and change it then, or lose it: --drop {word}",
                )
                return
            self._used.add(word)
            self._step(one.component, "dropped" if tuples else "accepted", one.text)
        elif tuples:
            self._refuse(
                one.component,
                one.text,
                f"{tuples:,} tuples and messages of the old class",
                "nothing of it, or a class that old rows can be read with",
                "start the old topology, end what is open with `tupletree drain`, and change it then",
            )
        else:
            self._step(one.component, "accepted", one.text)

    def _decide_input(self, one: Difference) -> None:
        name, at = one.component, self._at(one.component)
        producer, _, stream = one.name.rpartition(".")
        if one.kind == "removed":
            held = at.held_of.get((producer, stream), 0)
            is_spout = producer not in self._current and self._before.get(producer, {}).get("kind") == "spout"
            is_gone = stream not in self._current.get(producer, {"streams": [stream]})["streams"]
            words = [f"{name}.{one.name}", *[one.name] * (is_spout or is_gone), *[producer] * is_spout]
            if not held:
                self._step(name, "accepted", one.text)
            elif self._has_word(*words):
                self._step(name, "dropped", f"{one.text}; {counted(held, 'held tuple')} of it dropped")
            else:
                self._need_drop(
                    name,
                    one.text,
                    f"it holds {counted(held, 'tuple')} of {one.name}",
                    drains=True,
                    less=f"drop only these, and let their messages go on without them: --drop {words[0]}",
                )
        elif self._current[name]["state"] is not None or self._before[name]["holding"] is not None:
            if at.keys or at.held:
                self._need_drop(name, one.text, "what is stored is divided by the old key", drains=not at.keys)
            else:
                self._step(name, "accepted", one.text)
        else:
            self._step(name, "accepted", one.text)

    def _decide_state(self, one: Difference) -> None:
        name, at = one.component, self._at(one.component)
        if not at.keys:
            self._step(name, "accepted", one.text)
        elif one.kind == "removed" and one.what:
            word = f"{name}.{one.what}"
            if self._has_word(word, name):
                self._step(name, "dropped", one.text)
            else:
                step = f"put it back, or lose what it has: --drop {word}"
                self._refuse(name, one.text, str(at), "the field, or a word", step)
        else:
            self._need_drop(name, one.text, "stored values cannot be read with it")

    # --- what is written down ---------------------------------------------------------------------------------------

    def _at(self, name: str) -> StoredComponent:
        return self._holdings.get(name) or StoredComponent()

    def _accept_if(self, one: Difference, accepted: bool, reason: str) -> None:
        if accepted:
            self._step(one.component, "accepted", one.text)
        else:
            self._need_drop(one.component, one.text, reason, drains=True)

    def _need_drop(self, name: str, change: str, reason: str, *, drains: bool = False, less: str = "") -> None:
        """Drop what is stored of a component that stays, if the user said so; `less`: how to drop a part of it."""
        if name in self._found.drops:
            return
        if self._has_word(name):
            self._drop(name, change)
            return
        ways = ["end what is open with `tupletree drain` before the change"] * drains + [less] * bool(less)
        others = "".join(f", or {way}" for way in ways)
        self._refuse(
            name,
            change,
            f"{self._at(name)}; {reason}",
            "what it was, or a word",
            f"go back to how it was{others}, or drop {'all that' if less else 'what'} is stored: --drop {name}",
        )

    def _drop(self, name: str, change: str) -> None:
        self._found.drops.append(name)
        self._step(name, "dropped", change)

    def _step(self, name: str, decision: Decision, change: str) -> None:
        self._found.steps.append(Step(name, decision, change, str(self._at(name))))

    def _refuse(self, name: str, change: str, stored: str, expected: str, next_step: str) -> None:
        self._step(name, "refused", change)
        self._fault(change, name, f"stored: {stored}", expected, next_step)

    def _fault(self, what: str, where: str, got: str, expected: str, next_step: str) -> None:
        self._found.faults.append(Finding(what, where, got, expected, next_step))
