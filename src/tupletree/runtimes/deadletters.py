"""Dead letters on disk, and the inbox by which other processes ask a run to replay them.

A state directory has `dead/EPOCH.jsonl` (one letter a line, written after the epoch was committed), `inbox/ID.json`
(requests not yet taken up) and `dead/replayed/ID.json` (requests carried out). Files are private (mode 0600): letters
hold payloads.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tupletree.durable import write_once
from tupletree.errors import CheckpointError, ConfigError, Finding
from tupletree.texts import is_encodable, json_bytes
from tupletree.tracking.identity import id_from_plain
from tupletree.tracking.outcomes import DeadLetter

__all__ = [
    "LETTER_FORMAT",
    "Request",
    "carried_out",
    "is_local_run",
    "letters_of",
    "read",
    "request_replay",
    "requests",
    "write_letters",
]

LETTER_FORMAT = 1


class _Line(msgspec.Struct):
    format: int
    id: str
    letter: DeadLetter


class Request(msgspec.Struct):
    """A request to replay dead letters, by letter id."""

    id: str
    letters: list[str]


def write_letters(directory: Path, epoch: int, letters: Sequence[DeadLetter]) -> None:
    """Write an epoch's letters; writing the same epoch again changes nothing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [
        json_bytes(_Line(LETTER_FORMAT, f"{epoch}-{position}", letter)) + b"\n"
        for position, letter in enumerate(letters)
    ]
    write_once(directory / f"{epoch:010d}.jsonl", lines)


def is_local_run(state_dir: Path) -> bool:
    """Whether this is the folder of a local run, which keeps dead letters and nothing else."""
    return b'"runtime": "local"' in (state_dir / "tupletree.json").read_bytes()


def letters_of(state_dir: Path) -> dict[str, DeadLetter]:
    """Every letter that was not replayed, by letter id, oldest first."""
    replayed = {
        letter for path in _request_files(state_dir / "dead" / "replayed") for letter in _request_in(path).letters
    }
    found: dict[str, DeadLetter] = {}
    for path in sorted((state_dir / "dead").glob("[0-9]*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise CheckpointError(
                    "a dead letter cannot be read",
                    where=f"{path}:{number}",
                    got=str(error),
                    next_step="restore the file from a backup; without it its letters are gone, and nothing else",
                ) from error
            if entry.id not in replayed:
                found[entry.id] = entry.letter
    return found


def read(state_dir: Path) -> list[DeadLetter]:
    """The dead letters of a run that were not replayed, oldest first. Raises ConfigError if there is no run."""
    return list(letters_of(_existing(state_dir)).values())


def request_replay(state_dir: Path, selectors: Sequence[str] | None) -> str:
    """Ask the run of this state directory to replay letters; returns the request's id.

    A running topology takes it up by itself, a stopped one at its next start. Letters that an earlier request waits for
    are not asked for again; if it waits for all of them, its id is returned.

    Args:
        state_dir: the run's state directory.
        selectors: message ids as `dead list` shows them (`SPOUT/ID` or `ID`); None is all.

    Raises:
        ConfigError: a selector names no dead letter (all such at once), there is none at all, or the run was a local
            one, which takes no requests.
    """
    letters = letters_of(_existing(state_dir))
    if is_local_run(state_dir):
        raise ConfigError(
            "a local run replays no dead letters",
            where=str(state_dir),
            expected="the --state-dir of a Spark run",
            next_step="`tupletree dead show` has the payloads: mend the cause, and give them to a new run",
        )
    chosen = list(letters) if selectors is None else _select(letters, selectors)
    if not chosen:
        raise ConfigError("there are no dead letters to replay", where=str(state_dir))
    waiting = {letter: one.id for one in requests(state_dir, _pass_over) for letter in one.letters}
    asked = [waiting[letter] for letter in chosen if letter in waiting]
    chosen = [letter for letter in chosen if letter not in waiting]
    if not chosen:
        return asked[-1]
    request = Request(uuid.uuid4().hex, chosen)
    inbox = state_dir / "inbox"
    inbox.mkdir(mode=0o700, exist_ok=True)
    write_once(inbox / f"{request.id}.json", msgspec.json.encode(request))
    return request.id


def _pass_over(_: CheckpointError) -> None:
    """The run complains of requests that cannot be read."""


def _select(letters: dict[str, DeadLetter], selectors: Sequence[str]) -> list[str]:
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
        raise ConfigError("some letters cannot be replayed", findings=unknown)
    return list(dict.fromkeys(letter_id for letter_ids in found.values() for letter_id in letter_ids))


def id_text(stored_id: Any) -> str:
    """How a stored message id is shown: text as it is, everything else as JSON; so also text that is not UTF-8."""
    return stored_id if isinstance(stored_id, str) else json.dumps(_readable(stored_id))


def _readable(stored_id: Any) -> Any:
    match stored_id:
        case list():
            return list(map(_readable, stored_id))
        case {"text": str()}:
            return id_from_plain(stored_id)
        case _:
            return stored_id


def spellings_of(selector: str) -> list[str]:
    """What an `ID` or `SPOUT/ID` may stand for: itself, and its JSON as `id_text` writes it.

    Blanks and escapes of the JSON are those of whoever typed it.
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


def requests(state_dir: Path, complain: Callable[[CheckpointError], None]) -> list[Request]:
    """Requests that wait in the inbox, oldest first; `complain` hears of files that are none."""
    found: list[Request] = []
    for path in _request_files(state_dir / "inbox"):
        try:
            found.append(_request_in(path))
        except CheckpointError as error:
            complain(error)
    return found


def carried_out(state_dir: Path, request_id: str, letters: Sequence[str]) -> None:
    """Move a request out of the inbox once a settled epoch names it; harmless when repeated.

    `letters` are those of its letters that were brought back, by letter id: they are no dead letters any more.
    """
    target = state_dir / "dead" / "replayed"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_once(target / f"{request_id}.json", msgspec.json.encode(Request(request_id, list(letters))))
    (state_dir / "inbox" / f"{request_id}.json").unlink(missing_ok=True)


def _request_files(directory: Path) -> list[Path]:
    found = [path for path in directory.glob("*.json") if not path.name.startswith("_") and path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def _request_in(path: Path) -> Request:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Request)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(
            "this is no replay request that can be read",
            where=str(path),
            got=str(error),
            next_step="remove it, and ask again with `tupletree dead replay`",
        ) from error


def _existing(state_dir: Path) -> Path:
    if not (state_dir / "tupletree.json").exists():
        raise ConfigError(
            "this is not a state directory",
            where=str(state_dir),
            expected="the --state-dir of a run",
        )
    return state_dir
