"""Dead letters on disk, and the inbox by which other processes ask a run to replay them.

A state directory has `dead/EPOCH.jsonl` (one letter a line, written after the epoch was committed), `inbox/ID.json`
(requests not yet accepted), `dead/replayed/ID.json` (requests carried out) and `dead/dropped/ID.json` (letters that
somebody handled elsewhere). Files are private (mode 0600): letters hold payloads.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tupletree.data.payloads import from_jsonable, lift
from tupletree.durable import DECODE_ERRORS, is_for_now, open_file, private_folder, write_once
from tupletree.errors import CheckpointError, ConfigError, Finding, ProcessingError
from tupletree.runtimes.requests import RequestFolder
from tupletree.texts import is_encodable, json_bytes
from tupletree.topology.components import Spout
from tupletree.tracking.facts import Fact
from tupletree.tracking.message_ids import id_from_plain, id_text, message_key
from tupletree.tracking.outcomes import DeadLetter, Failure, FailureKind

LETTER_FORMAT = 1

MAX_LETTERS = 50_000
"""Letters of one request; more are several requests."""

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Size of a request's file: more than that many letters need."""


class _Line(msgspec.Struct):
    format: int
    id: str
    letter: DeadLetter


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request to replay dead letters, by letter id. Its file is named by its own id."""

    id: str
    letters: list[str]


class DroppedLetters(msgspec.Struct, forbid_unknown_fields=True):
    """Letters that are none any more, by letter id: they were handled elsewhere. Its file is named by its own id.

    Attributes:
        reason: as it was given; may be empty.
        time_s: when, in seconds since the Unix epoch.
    """

    id: str
    letters: list[str]
    reason: str
    time_s: float


_R = TypeVar("_R", ReplayRequest, DroppedLetters)


def write_letters(directory: Path, epoch: int, letters: Sequence[DeadLetter]) -> None:
    """Write an epoch's letters; writing the same epoch again changes nothing."""
    private_folder(directory)
    lines = [
        json_bytes(_Line(LETTER_FORMAT, f"{epoch}-{position}", letter)) + b"\n"
        for position, letter in enumerate(letters)
    ]
    write_once(directory / f"{epoch:010d}.jsonl", lines)


def stored_numbers(directory: Path) -> list[int]:
    """The numbers under which letters are stored, in order."""
    return sorted(int(path.stem) for path in directory.glob("[0-9]*.jsonl"))


def read_letters(directory: Path, number: int) -> list[DeadLetter]:
    """The letters that are stored under a number, replayed ones among them. Raises CheckpointError if damaged."""
    path = directory / f"{number:010d}.jsonl"
    try:
        with open_file(path) as lines:
            return [msgspec.json.decode(line, type=_Line).letter for line in lines]
    except (OSError, *DECODE_ERRORS) as error:
        raise CheckpointError("dead letters cannot be read", where=str(path), got=str(error)) from error


def newest_failures(
    directory: Path, messages: Collection[tuple[str, Hashable]], today: Callable[[str], str]
) -> dict[tuple[str, Hashable], Failure]:
    """What messages died of the last time, without those that have no letter here.

    Letters are read from the newest on, until all are found.

    Args:
        directory: the letters.
        messages: each as its spout and its `message_key`.
        today: gives the name that a spout has now.

    Raises:
        CheckpointError: a file is damaged.
    """
    found: dict[tuple[str, Hashable], Failure] = {}
    missing = {*messages}
    for number in reversed(stored_numbers(directory) if missing else []):
        if not missing:
            break
        for letter in reversed(read_letters(directory, number)):
            message = today(letter.spout), message_key(id_from_plain(letter.message_id))
            if message in missing:
                missing.remove(message)
                found[message] = letter.failure
    return found


def existing(state_dir: Path) -> Path:
    """A state directory as it is given. Raises ConfigError if there is no run in this folder."""
    if not (state_dir / "tupletree.json").exists():
        raise ConfigError("this is not a state directory", where=str(state_dir), expected="the --state-dir of a run")
    return state_dir


def is_local_run(state_dir: Path) -> bool:
    """Whether this is the folder of a local run."""
    return b'"runtime": "local"' in (state_dir / "tupletree.json").read_bytes()


def is_durable_run(state_dir: Path) -> bool:
    """Whether this is the folder of a durable local run, which can be started again on it."""
    return is_local_run(state_dir) and b'"durable": true' in (state_dir / "tupletree.json").read_bytes()


def letters_of(
    state_dir: Path, complain: Callable[[CheckpointError], None] | None = None, *, with_dropped: bool = False
) -> dict[str, DeadLetter]:
    """Every letter that was neither replayed nor dropped, by letter id, oldest first.

    Args:
        state_dir: of a run.
        complain: called with the error of each file that cannot be read, which is left out; None: it is raised.
        with_dropped: those that were dropped, too.
    """
    refuse = _raise if complain is None else complain
    gone = {letter for one in _replayed(state_dir).read(refuse).values() for letter in one.letters}
    if not with_dropped:
        gone.update(letter for one in _dropped(state_dir).read(refuse).values() for letter in one.letters)
    return {name: one for name, one in _stored_letters(state_dir, refuse) if name not in gone}


def _stored_letters(state_dir: Path, refuse: Callable[[CheckpointError], None]) -> Iterator[tuple[str, DeadLetter]]:
    for path in _letter_files(state_dir / "dead", refuse):
        number = 0
        try:
            with open_file(path) as lines:
                for line in lines:
                    number += 1
                    entry = msgspec.json.decode(line, type=_Line)
                    yield entry.id, entry.letter
        except (OSError, *DECODE_ERRORS) as error:
            fault = CheckpointError(
                "a dead letter cannot be read",
                where=f"{path}:{number}",
                got=str(error),
                next_step="restore the file from a backup; without it only its letters are lost",
            )
            fault.__cause__ = error
            refuse(fault)


def _letter_files(directory: Path, refuse: Callable[[CheckpointError], None]) -> list[Path]:
    try:
        return sorted(directory.glob("[0-9]*.jsonl"))
    except OSError as error:
        fault = CheckpointError("dead letters cannot be looked for", where=str(directory), got=str(error))
        fault.__cause__ = error
        refuse(fault)
        return []


class ReplayableLetters:
    """The letters of requests that a running topology can take; what it cannot take is logged, once.

    Args:
        state_dir: of the run.
        read: gives the spout task and the value of a letter, by its id, too. Raises ProcessingError if there is none.
        logger: of the runtime.
    """

    def __init__(
        self, state_dir: Path, read: Callable[[str, DeadLetter], tuple[int, Any]], logger: logging.Logger
    ) -> None:
        self._state_dir = state_dir
        self._read = read
        self._logger = logger
        self._said: set[str] = set()

    def of(self, request: ReplayRequest) -> dict[str, tuple[DeadLetter, int, Any]] | None:
        """Letter id → letter, spout task and value, of those that are still to be replayed.

        None: not all letters can be looked at now. To go on without them would lose them, or replay them twice.
        """
        away: list[CheckpointError] = []

        def complain(error: CheckpointError) -> None:
            if is_for_now(error.__cause__):
                away.append(error)
            else:
                self._say("replays leave it out: %s", str(error))

        letters = letters_of(self._state_dir, complain)
        if away:
            self._say("replays wait for it: %s", str(away[0]))
            return None
        found: dict[str, tuple[DeadLetter, int, Any]] = {}
        for letter_id in request.letters:
            letter = letters.get(letter_id)
            if letter is None:
                continue
            try:
                found[letter_id] = letter, *self._read(letter_id, letter)
            except ProcessingError as error:
                name = f"{letter.spout}/{id_text(letter.message_id)}"
                self._say("a dead letter cannot be replayed: %s", f"{name}: {error}")
        return found

    def _say(self, words: str, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._logger.warning(words, what)


def value_of(letter: DeadLetter, spout: object, cls: type) -> Any:
    """The value of a letter's message, by its class as it is now.

    Raises:
        ProcessingError: it has none; of what was rejected, its source says so.
    """
    if letter.failure.kind is not FailureKind.REJECTED:
        return from_jsonable(letter.payload, cls, may_have_more=True)
    given = lift(letter.payload, {})
    if not isinstance(spout, Spout) or not isinstance(given, bytes):
        raise ProcessingError("its source could not turn it into a message, so it is for the source to give it again")
    try:
        return spout.value_of(given)
    except ProcessingError:
        raise
    except Exception as error:  # the source's and the class's own code may raise anything
        raise ProcessingError(f"{type(error).__name__}: {error}") from error


def _raise(error: CheckpointError) -> None:
    raise error


def read(state_dir: Path) -> list[DeadLetter]:
    """The dead letters of a run that were neither replayed nor dropped, oldest first.

    Raises:
        ConfigError: there is no run.
    """
    return list(letters_of(existing(state_dir)).values())


def request_replay(state_dir: Path, selectors: Sequence[str] | None) -> str:
    """Ask the run of this state directory to replay letters; returns the id of the request, or of the last of several.

    A running topology accepts it by itself, a stopped one at its next start. Letters that an earlier request waits for
    are not asked for again; if it waits for all of them, its id is returned.

    Args:
        state_dir: the run's state directory.
        selectors: message ids as `dead list` shows them (`SPOUT/ID` or `ID`); None is all.

    Raises:
        ConfigError: a selector names no dead letter (all such at once), there is none at all, or the run was a local
            one that is not durable.
    """
    letters = letters_of(existing(state_dir))
    if is_local_run(state_dir) and not is_durable_run(state_dir):
        raise ConfigError(
            "a local run that is not durable replays no dead letters",
            where=str(state_dir),
            expected="the --state-dir of a Spark run, or of a local run with --durable",
            next_step="`tupletree dead show` has the payloads: fix the cause, and send them to a new run",
        )
    chosen = list(letters) if selectors is None else _select(letters, selectors)
    if not chosen:
        raise ConfigError("there are no dead letters to replay", where=str(state_dir))
    waiting = {letter: one.id for one in requests(state_dir, _pass_over) for letter in one.letters}
    asked = [waiting[letter] for letter in chosen if letter in waiting]
    chosen = [letter for letter in chosen if letter not in waiting]
    if not chosen:
        return asked[-1]
    inbox = inbox_of(state_dir)
    private_folder(state_dir / "inbox")
    asked = []
    for start in range(0, len(chosen), MAX_LETTERS):
        request = ReplayRequest(uuid.uuid4().hex, chosen[start : start + MAX_LETTERS])
        write_once(inbox.path_of(request.id), msgspec.json.encode(request))
        asked.append(request.id)
    return asked[-1]


def drop_letters(
    state_dir: Path, selectors: Sequence[str] | None, *, reason: str = "", wall_s: float
) -> list[DeadLetter]:
    """Let letters be none any more, and say which: they were handled elsewhere. The run may go on meanwhile.

    Their messages stay dead in all counts. A replay that was asked for and is not accepted yet leaves them out; one
    that is accepted brings its messages back all the same.

    Args:
        state_dir: the run's state directory.
        selectors: as for `request_replay`; None is all.
        reason: why, for `why`.
        wall_s: now, in seconds since the Unix epoch.

    Raises:
        ConfigError: a selector names no dead letter (all such at once), or there is none at all.
    """
    letters = letters_of(existing(state_dir))
    chosen = list(letters) if selectors is None else _select(letters, selectors, "dropped")
    if not chosen:
        raise ConfigError("there are no dead letters to drop", where=str(state_dir))
    folder = _dropped(state_dir)
    private_folder(private_folder(state_dir / "dead") / "dropped")
    for start in range(0, len(chosen), MAX_LETTERS):
        one = DroppedLetters(uuid.uuid4().hex, chosen[start : start + MAX_LETTERS], reason, wall_s)
        write_once(folder.path_of(one.id), json_bytes(one))
    return [letters[letter_id] for letter_id in chosen]


def dropped_facts(state_dir: Path) -> list[Fact]:
    """A fact for each letter that was dropped."""
    told = {letter: one for one in _dropped(state_dir).read(_pass_over).values() for letter in one.letters}
    return [
        Fact(
            time_s=told[letter_id].time_s,
            what="dropped",
            spout=letter.spout,
            message_id=letter.message_id,
            attempt=letter.attempts,
            note=f"by hand: {told[letter_id].reason}" if told[letter_id].reason else "by hand",
        )
        for letter_id, letter in (_stored_letters(state_dir, _pass_over) if told else ())
        if letter_id in told
    ]


def dropped_count(state_dir: Path) -> int:
    """How many letters were dropped."""
    return len({letter for one in _dropped(state_dir).read(_pass_over).values() for letter in one.letters})


def _pass_over(_: CheckpointError) -> None:
    """Ignore requests that cannot be read: the run reports them."""


def _select(letters: dict[str, DeadLetter], selectors: Sequence[str], to_be: str = "replayed") -> list[str]:
    by_name: dict[str, list[str]] = {}
    for letter_id, letter in letters.items():
        text = id_text(letter.message_id)
        for name in (text, f"{letter.spout}/{text}"):
            by_name.setdefault(name, []).append(letter_id)
    found = {one: [letter_id for name in spellings_of(one) for letter_id in by_name.get(name, ())] for one in selectors}
    unknown = [
        Finding("no dead letter has this id", got=one, next_step="tupletree dead list shows them all")
        for one, letter_ids in found.items()
        if not letter_ids
    ]
    if unknown:
        raise ConfigError(f"some letters cannot be {to_be}", findings=unknown)
    return list(dict.fromkeys(letter_id for letter_ids in found.values() for letter_id in letter_ids))


def spellings_of(selector: str) -> list[str]:
    """What an `ID` or `SPOUT/ID` may stand for: itself, and its JSON as `id_text` writes it.

    Blanks and escapes of the JSON may be written in any way.
    """
    spellings = [selector]
    spout, slash, rest = selector.partition("/")
    for prefix, text in (("", selector), (spout + slash, rest)):
        try:
            value = json.loads(text)
        except ValueError:
            if not is_encodable(text):
                spellings.append(prefix + json.dumps(text))
            continue  # a text id, or the name of a spout before it
        if not isinstance(value, str):
            spellings.append(prefix + id_text(value))
    return list(dict.fromkeys(spellings))


def inbox_of(state_dir: Path) -> RequestFolder[ReplayRequest]:
    """Where other processes leave requests to replay letters."""
    return _folder(state_dir / "inbox", ReplayRequest, "ask again with `tupletree dead replay`, and remove it")


def _replayed(state_dir: Path) -> RequestFolder[ReplayRequest]:
    """Requests that were executed; only the process of a run writes there."""
    next_step = "restore the file from a backup, or remove it: then its letters are dead again"
    return _folder(state_dir / "dead" / "replayed", ReplayRequest, next_step)


def _dropped(state_dir: Path) -> RequestFolder[DroppedLetters]:
    next_step = "restore the file from a backup, or remove it: then its letters are there again"
    return _folder(state_dir / "dead" / "dropped", DroppedLetters, next_step)


def _folder(path: Path, shape: type[_R], next_step: str) -> RequestFolder[_R]:
    return RequestFolder(path, shape, MAX_REQUEST_BYTES, next_step=next_step, fault_of=_fault_of)


def _fault_of(name: str, request: ReplayRequest | DroppedLetters) -> str:
    return "" if request.id == name else f"it is a copy: its id is {request.id[:80]!r}, and its file another"


def requests(state_dir: Path, complain: Callable[[CheckpointError], None]) -> list[ReplayRequest]:
    """Requests that wait in the inbox, oldest first; `complain` is called for files that are none."""
    return list(inbox_of(state_dir).read(complain).values())


def carried_out(state_dir: Path, request_id: str, letters: Sequence[str]) -> None:
    """Move a request out of the inbox once a settled epoch names it; harmless when repeated.

    `letters` are its letters that are replayed, by letter id: they are no longer dead letters.
    """
    target = _replayed(state_dir).path_of(request_id)
    private_folder(private_folder(state_dir / "dead") / "replayed")
    write_once(target, msgspec.json.encode(ReplayRequest(request_id, list(letters))))
    inbox_of(state_dir).remove(request_id)
